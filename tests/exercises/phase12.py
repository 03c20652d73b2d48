"""Phase 12: the hash chain, what may be published, acceptance."""

import itertools
from typing import Any

from shared.request import Request
from shared.sequence import Sequence
from tests.exercises.kit import expect, grades
from tests.fakes import make_sequence

ONE, TWO, THREE, FOUR = [1] * 4, [2] * 4, [3] * 4, [4] * 4


NUMBERS = itertools.count()


def sequence_of(token_ids: list[int], name: str = "", salt: str | None = None) -> Sequence:
    """Each with a name of its own, unless it is given one."""
    seq = make_sequence(len(token_ids), name=name or f"s{next(NUMBERS)}")
    seq.request = Request(token_ids, seq.request.params, cache_salt=salt)
    seq.token_ids = list(token_ids)
    return seq


def pool_knowing(*chains: list[list[int]], salt: str | None = None) -> Any:
    """An allocator that knows these chains of blocks; block numbers count up from 0."""
    from phase12_prefix_and_spec.prefix_cache import PrefixCachingAllocator, block_key, root_key

    pool: Any = PrefixCachingAllocator(20, 4)
    number = 0
    for chain in chains:
        key = root_key(salt)
        for tokens in chain:
            key = block_key(key, tokens)
            if key not in pool.block_of:
                pool.block_of[key] = number
                number += 1
    return pool


@grades("12.1")
def the_longest_known_prefix_is_found() -> None:
    pool = pool_knowing([ONE, TWO, THREE])
    expect(
        pool.find_prefix(sequence_of(ONE + TWO + FOUR + [5])),
        [0, 1],
        when="blocks 0, 1, 2 hold 1111, 2222, 3333 in a row; the prompt is 1111 2222 4444 5",
        because="Block by block until a key is unknown.",
    )


@grades("12.1")
def the_same_block_after_another_past_is_another_block() -> None:
    pool = pool_knowing([ONE, TWO, THREE])
    expect(
        pool.find_prefix(sequence_of(ONE + FOUR + THREE + [5])),
        [0],
        when="1111 2222 3333 is known; the prompt is 1111 4444 3333 5: a true prefix, then a difference, then the same",
        because="K/V depends on everything before it. A key without its parent would find block 2 here.",
    )
    expect(
        pool.find_prefix(sequence_of(TWO + THREE + [5])),
        [],
        when="1111 2222 3333 is known; the prompt is 2222 3333 5",
        because="The first block hangs on the root.",
    )


@grades("12.1")
def only_full_blocks_have_a_key() -> None:
    got = [len(pool_knowing()._keys(sequence_of(list(range(length))))) for length in (3, 4, 7, 8, 9)]
    expect(
        got,
        [0, 1, 1, 2, 2],
        when="blocks of 4; sequences of 3, 4, 7, 8 and 9 tokens: keys",
        because="What is not full will change. A full block counts as soon as its last token is known.",
    )


@grades("12.1")
def a_chain_goes_on_where_it_stopped() -> None:
    pool, seq = pool_knowing(), sequence_of(ONE + TWO[:2])
    first = list(pool._keys(seq))
    seq.token_ids += TWO[:2] + THREE
    expect(
        pool._keys(seq),
        pool._keys(sequence_of(ONE + TWO + THREE, "at once")),
        when="asked with 6 tokens, then with 12; and another sequence with the same 12 at once",
        because="The same tokens have the same keys, however they came.",
    )
    expect(
        first, pool._keys(seq)[:1], when="the key of the first block, before and after", because="It is hashed once."
    )


@grades("12.1")
def tenants_with_different_salts_never_meet() -> None:
    pool = pool_knowing([ONE, TWO], salt="tenant 1")
    found = [len(pool.find_prefix(sequence_of(ONE + TWO + [5], salt=salt))) for salt in ("tenant 1", "tenant 2", None)]
    expect(
        found,
        [2, 0, 0],
        when="a prefix of tenant 1; asked by tenant 1, tenant 2, nobody",
        because="The salt is in the root.",
    )


def published(num_computed: int, num_known: int = 0) -> tuple[Any, Sequence]:
    """A sequence of 12 tokens with three blocks (10, 11, 12), so many of its tokens computed. Its keys are given."""
    from phase12_prefix_and_spec.prefix_cache import PrefixCachingAllocator

    pool: Any = PrefixCachingAllocator(20, 4)
    seq = sequence_of(ONE + TWO + THREE, "s")
    pool.block_tables["s"] = [10, 11, 12]
    pool._keys = lambda _: [b"key 0", b"key 1", b"key 2"]
    pool.num_registered["s"] = num_known
    seq.num_computed_tokens = num_computed
    pool.register_computed_blocks(seq)
    return pool, seq


@grades("12.2")
def only_blocks_whose_tokens_all_have_kv_are_published() -> None:
    got = [len(published(num_computed)[0].block_of) for num_computed in (3, 4, 7, 8, 12)]
    expect(
        got,
        [0, 1, 1, 2, 3],
        when="blocks of 4, a table of three; 3, 4, 7, 8, 12 tokens computed: blocks published",
        because="Another sequence would read garbage from the rest.",
    )


@grades("12.2")
def each_block_is_published_under_its_own_key() -> None:
    expect(
        published(12)[0].block_of,
        {b"key 0": 10, b"key 1": 11, b"key 2": 12},
        when="keys 0, 1, 2 of the blocks 10, 11, 12: key -> block",
        because="keys[place] belongs to table[place].",
    )


@grades("12.2")
def what_is_published_already_is_left_alone() -> None:
    pool, seq = published(8, num_known=1)
    expect(
        (pool.block_of, pool.num_registered["s"]),
        ({b"key 1": 11}, 2),
        when="the first block came from the cache, the second is new, 8 tokens are computed: (published, registered)",
        because="Start where the last call stopped, and remember how far you came.",
    )
    pool.block_of.clear()
    pool.register_computed_blocks(seq)
    expect(pool.block_of, {}, when="called again without new tokens: published", because="Nothing is new.")


def accepted(draft: list[int], chosen: list[int]) -> int:
    from phase12_prefix_and_spec.acceptance import accepted_length

    return accepted_length(draft, chosen)


@grades("12.3")
def guesses_count_until_the_first_wrong_one() -> None:
    expect(
        accepted([5, 6, 7], [5, 6, 9, 8]),
        2,
        when="guesses 5 6 7; the target says 5, then 6, then 9, then 8",
        because="Two were right in a row.",
    )


@grades("12.3")
def a_right_guess_after_a_wrong_one_is_worth_nothing() -> None:
    expect(
        accepted([5, 6, 7], [4, 6, 7, 8]),
        0,
        when="guesses 5 6 7; the target says 4, then 6, 7, 8",
        because="What it said after the 5 was computed from a token that is not there.",
    )


@grades("12.3")
def all_may_be_right_and_there_may_be_none() -> None:
    got = (accepted([5, 6], [5, 6, 7]), accepted([], [5]))
    expect(
        got,
        (2, 0),
        when="two guesses, both right; and no guess",
        because="`chosen` has one more than there are guesses.",
    )
