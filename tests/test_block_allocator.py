"""Phase 6's allocator: tables grow by the block, nothing is lost, and the last token needs no slot."""

import random

import pytest

from phase06_block_allocator.block_allocator import BlockAllocator
from phase12_prefix_and_spec.prefix_cache import PrefixCachingAllocator


def test_a_sequence_gets_a_block_when_its_tokens_need_one() -> None:
    pool = BlockAllocator(num_blocks=8, block_size=4)
    assert [len(pool.ensure_capacity("a", n)) for n in (1, 3, 4, 5, 8, 9)] == [1, 0, 0, 1, 0, 1]
    assert len(pool.block_tables["a"]) == 3
    pool.check_integrity()


@pytest.mark.parametrize("block_size", [1, 3, 4, 7, 16])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_lengths_around_a_block_edge(block_size: int, k: int) -> None:
    pool = BlockAllocator(num_blocks=32, block_size=block_size)
    for num_tokens, num_blocks in ((k * block_size - 1, k), (k * block_size, k), (k * block_size + 1, k + 1)):
        if num_tokens == (k - 1) * block_size:
            num_blocks = k - 1  # a block of one token: kB - 1 is an edge, too
        pool.ensure_capacity("a", num_tokens)
        assert len(pool.block_tables.get("a", ())) == num_blocks
        pool.free("a")


def test_two_sequences_never_hold_the_same_block() -> None:
    pool = BlockAllocator(num_blocks=10, block_size=2)
    for num_tokens in range(1, 9):
        pool.ensure_capacity("a", num_tokens)
        pool.ensure_capacity("b", num_tokens)
        assert not set(pool.block_tables["a"]) & set(pool.block_tables["b"])
        pool.check_integrity()


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    pool = BlockAllocator(num_blocks=3, block_size=4)
    pool.ensure_capacity("a", 8)
    assert pool.can_hold("b", 4)
    assert not pool.can_hold("b", 5)
    assert pool.can_hold("a", 12)
    with pytest.raises(MemoryError, match="b needs 2 more blocks, 1 are free"):
        pool.ensure_capacity("b", 5)
    assert "b" not in pool.block_tables
    assert pool.num_free_blocks == 1
    pool.check_integrity()


@pytest.mark.parametrize("make", [BlockAllocator, PrefixCachingAllocator])
def test_shrinking_takes_back_what_is_past_a_length_and_no_more(make: type[BlockAllocator]) -> None:
    pool = make(num_blocks=5, block_size=4)
    table = list(pool.ensure_capacity("a", 15))
    for num_tokens, num_left in ((20, 4), (13, 4), (12, 3), (5, 2), (0, 0)):
        pool.shrink("a", num_tokens)
        assert pool.block_tables["a"] == table[:num_left]
        assert pool.num_free_blocks == 5 - num_left
        pool.check_integrity()


def test_free_gives_back_all_blocks_once() -> None:
    pool = BlockAllocator(num_blocks=5, block_size=4)
    pool.ensure_capacity("a", 9)
    assert pool.free("a") == 3
    assert pool.free("a") == 0
    assert pool.free("unknown") == 0
    assert pool.num_free_blocks == 5
    pool.check_integrity()


def test_a_shared_block_is_free_when_its_last_owner_goes() -> None:
    pool = BlockAllocator(num_blocks=5, block_size=4)
    shared = pool.ensure_capacity("a", 4)
    pool.block_tables["b"] = list(shared)
    pool.ref_counts[shared[0]] += 1
    pool.check_integrity()
    assert pool.free("a") == 0
    assert pool.free("b") == 1
    pool.check_integrity()


@pytest.mark.parametrize("damage", ["lost", "doubly free", "free and held", "miscounted"])
def test_the_integrity_check_finds_planted_damage(damage: str) -> None:
    pool = BlockAllocator(num_blocks=4, block_size=4)
    pool.ensure_capacity("a", 5)
    if damage == "lost":
        pool.free_blocks.pop()
    elif damage == "doubly free":
        pool.free_blocks.append(pool.free_blocks[0])
    elif damage == "free and held":
        pool.free_blocks.append(pool.block_tables["a"][0])
    else:
        pool.ref_counts[pool.block_tables["a"][0]] += 1
    with pytest.raises(AssertionError, match="block"):
        pool.check_integrity()


def test_waste_is_less_than_a_block_per_sequence() -> None:
    pool = BlockAllocator(num_blocks=100, block_size=16)
    lengths = {f"s{n}": n for n in (1, 15, 16, 17, 100)}
    for name, num_tokens in lengths.items():
        pool.ensure_capacity(name, num_tokens)
    figures = pool.fragmentation(lengths)
    assert figures.num_used_slots == sum(lengths.values())
    assert figures.num_allocated_slots == 16 * (1 + 1 + 1 + 2 + 7)
    assert figures.num_allocated_slots - figures.num_used_slots <= 15 * len(lengths)
    assert figures.waste == pytest.approx(1 - 149 / 192)
    assert BlockAllocator(3, 4).fragmentation({}).waste == 0.0


def test_random_traffic_keeps_every_block_accounted_for() -> None:
    rng, pool = random.Random(0), BlockAllocator(num_blocks=40, block_size=3)
    lengths: dict[str, int] = {}
    for number in range(3000):
        name = f"s{rng.randrange(12)}"
        if rng.random() < 0.2:
            pool.free(name)
            lengths.pop(name, None)
        else:
            wanted = lengths.get(name, 0) + rng.randrange(1, 9)
            if pool.can_hold(name, wanted):
                pool.ensure_capacity(name, wanted)
                lengths[name] = wanted
        pool.check_integrity()
        assert all(len(pool.block_tables[s]) == pool.num_blocks_for(n) for s, n in lengths.items()), number


def test_blocks_are_handed_out_from_the_first_and_what_was_freed_last_comes_first() -> None:
    pool = BlockAllocator(num_blocks=6, block_size=4)
    assert pool.ensure_capacity("a", 12) == [0, 1, 2]
    pool.ensure_capacity("b", 4)
    pool.free("a")
    assert pool.ensure_capacity("c", 8) == [0, 1], "whose memory is still warm"
