"""Phase 6: growing by the block, and promising the worst case."""

from typing import Any

from tests.exercises.kit import CountingAllocator, add, config, expect, grades
from tests.fakes import make_sequence


def pool_of(num_blocks: int, block_size: int = 4) -> Any:
    from phase06_block_allocator.block_allocator import BlockAllocator

    return BlockAllocator(num_blocks, block_size)


def scheduler_of(num_blocks: int) -> Any:
    from phase06_block_allocator.scheduler import Scheduler
    from shared.events import EventLog

    return Scheduler(config(), CountingAllocator(num_blocks), EventLog())


@grades("6.1")
def a_table_grows_when_its_tokens_need_another_block() -> None:
    pool, lengths = pool_of(20), (1, 3, 4, 5, 8, 9)
    expect(
        [len(pool.ensure_capacity("a", length)) for length in lengths],
        [1, 0, 0, 1, 0, 1],
        when=f"blocks of 4; room for {lengths} tokens is asked for, one after the other: new blocks",
        because="num_tokens is the whole length wanted: 4 tokens fit into one block, 5 need two.",
    )


@grades("6.1")
def new_blocks_come_at_the_end_of_the_table() -> None:
    pool = pool_of(8)
    first = list(pool.ensure_capacity("a", 4))
    second = list(pool.ensure_capacity("a", 12))
    expect(
        pool.block_tables["a"],
        first + second,
        when="a grows from 4 tokens to 12",
        because="Position p is in block_table[p // block_size]: an old block must not move.",
    )


@grades("6.1")
def two_sequences_never_hold_the_same_block() -> None:
    pool = pool_of(8)
    pool.ensure_capacity("a", 8)
    pool.ensure_capacity("b", 8)
    shared = set(pool.block_tables["a"]) & set(pool.block_tables["b"])
    expect(
        shared,
        set(),
        when="a and b have 8 tokens each",
        because="self._take_free_block() takes a block off the free ones.",
    )
    pool.check_integrity()


@grades("6.1")
def what_does_not_fit_is_refused_and_changes_nothing() -> None:
    pool = pool_of(3)
    pool.ensure_capacity("a", 8)
    try:
        pool.ensure_capacity("b", 5)
        raised = False
    except MemoryError:
        raised = True
    expect(
        (raised, pool.num_free_blocks, pool.block_tables.get("b", [])),
        (True, 1, []),
        when="1 block is free, b needs 2: (MemoryError, free blocks, b's table)",
        because="Count before you take: a half-grown table would keep a block that nobody knows of.",
    )
    pool.check_integrity()


@grades("6.1")
def asking_for_less_than_one_has_changes_nothing() -> None:
    pool = pool_of(8)
    pool.ensure_capacity("a", 12)
    expect(
        (pool.ensure_capacity("a", 2), len(pool.block_tables["a"])),
        ([], 3),
        when="a holds 12 tokens and asks for room for 2: (new blocks, its blocks)",
        because="Blocks are given back by free(), not here.",
    )


@grades("6.2")
def two_that_cannot_both_finish_do_not_run_together() -> None:
    scheduler = scheduler_of(num_blocks=6)
    scheduler._worst_case = lambda _: 4
    first, second = make_sequence(8, name="a"), make_sequence(8, name="b")
    expect(scheduler._can_admit(first), True, when="6 blocks, worst case 4, nobody runs", because="4 of 6 is fine.")
    scheduler._admit(first)
    expect(
        scheduler._can_admit(second),
        False,
        when="6 blocks; a runs, which may grow to 4 blocks; b may, too",
        because="Each would wait for the other's blocks for ever: nobody gives any back before phase 9.",
    )


@grades("6.2")
def it_counts_what_is_promised_and_not_what_is_free() -> None:
    scheduler = scheduler_of(num_blocks=8)
    scheduler._worst_case = lambda _: 4
    seqs = [make_sequence(8, name=name) for name in "abc"]
    scheduler._admit(seqs[0])
    scheduler.allocator.ensure_capacity("a", 4)
    expect(
        scheduler._can_admit(seqs[1]),
        True,
        when="8 blocks; a may grow to 4 and holds 1; b may grow to 4",
        because="4 + 4 is exactly the pool: it fits.",
    )
    scheduler._admit(seqs[1])
    scheduler.allocator.ensure_capacity("b", 4)
    expect(
        scheduler._can_admit(seqs[2]),
        False,
        when="8 blocks; a and b hold 1 each and may grow to 4 each; c may grow to 4",
        because="6 blocks are free now, and all of them are promised.",
    )


@grades("6.3")
def the_last_token_needs_no_slot() -> None:
    scheduler = scheduler_of(num_blocks=16)
    seq = make_sequence(40, max_tokens=25)
    expect(
        scheduler._worst_case(seq),
        16,
        when="blocks of 4, a prompt of 40 tokens, at most 25 more (65 in all)",
        because="64 slots yield 25 tokens: the last one is sampled and never run.",
    )


@grades("6.3")
def lengths_around_a_block_edge_are_right() -> None:
    scheduler = scheduler_of(num_blocks=16)
    lengths = (4, 5, 6, 8, 9, 10)
    got = [scheduler._worst_case(make_sequence(1, max_tokens=length - 1)) for length in lengths]
    expect(
        got,
        [1, 1, 2, 2, 2, 3],
        when=f"blocks of 4; sequences that can get {lengths} tokens long",
        because="Test kB, kB + 1 and kB + 2: this off-by-one is the one everybody makes.",
    )


@grades("6.3")
def the_prompt_alone_is_not_the_worst_case() -> None:
    scheduler = scheduler_of(num_blocks=16)
    seq = make_sequence(4, max_tokens=13)
    add(scheduler, seq)
    expect(
        scheduler._worst_case(seq), 4, when="blocks of 4, prompt 4, max_tokens 13", because="It may grow to 17 tokens."
    )
