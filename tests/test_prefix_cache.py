"""Phase 12's allocator, without weights: keys name whole prefixes, only computed blocks are shared, nothing is lost."""

import random
import subprocess
import sys

import pytest

from phase12_prefix_and_spec.prefix_cache import NoPrefixCache, PrefixCachingAllocator, block_key, root_key
from shared.request import Request
from shared.sequence import Sequence
from tests.fakes import make_sequence
from tests.test_guards import ROOT


def sequence_of(token_ids: list[int], name: str, salt: str | None = None) -> Sequence:
    seq = make_sequence(len(token_ids), name=name)
    seq.request = Request(token_ids, seq.request.params, cache_salt=salt)
    seq.token_ids = list(token_ids)
    return seq


def compute(pool: PrefixCachingAllocator, seq: Sequence, num_tokens: int | None = None) -> int:
    """What the scheduler does: match, make room, run, register; returns the hit, in tokens."""
    hit = pool.match_prefix(seq)
    num_tokens = len(seq.token_ids) if num_tokens is None else num_tokens
    pool.ensure_capacity(seq.name, num_tokens)
    seq.num_computed_tokens = num_tokens
    pool.register_computed_blocks(seq)
    pool.check_integrity()
    return hit


def test_a_finished_prompt_is_found_again_but_for_its_last_token() -> None:
    pool = PrefixCachingAllocator(20, 4)
    prompt = list(range(30, 42))  # three full blocks
    assert compute(pool, sequence_of(prompt, "a")) == 0
    pool.free("a")
    assert compute(pool, sequence_of(prompt, "b")) == 8, "the third block would leave nothing to compute"
    pool.free("b")
    assert compute(pool, sequence_of([*prompt, 1], "c")) == 12


def test_a_prompt_of_one_block_or_less_finds_nothing() -> None:
    pool = PrefixCachingAllocator(20, 4)
    for number, length in enumerate((1, 3, 4, 4)):
        assert compute(pool, sequence_of(list(range(length)), f"s{number}")) == 0


def test_running_sequences_share_blocks_and_own_their_tails() -> None:
    pool = PrefixCachingAllocator(20, 4)
    prompt = list(range(10))
    compute(pool, sequence_of(prompt, "a"))
    assert compute(pool, sequence_of([*prompt[:8], 77, 78], "b")) == 8
    a, b = pool.block_tables["a"], pool.block_tables["b"]
    assert a[:2] == b[:2]
    assert a[2] != b[2]
    assert [pool.ref_counts[block] for block in a] == [2, 2, 1]


def test_the_key_of_a_block_includes_everything_before_it() -> None:
    """First a true prefix is shared, then two different ones are followed by the same block."""
    pool = PrefixCachingAllocator(20, 4)
    same, one, other, tail = [1] * 4, [2] * 4, [3] * 4, [9] * 4
    compute(pool, sequence_of(same + one + tail + [5], "a"))
    hit = compute(pool, sequence_of(same + other + tail + [5], "b"))
    assert hit == 4
    assert pool.block_tables["a"][2] != pool.block_tables["b"][2], "same tokens, another past"
    assert compute(pool, sequence_of([*same, *tail, 5], "c")) == 4, "known, but after another block than here"


def test_pfx_02_keys_are_digests_that_depend_on_parent_and_not_on_the_process() -> None:
    program = "from phase12_prefix_and_spec.prefix_cache import *; print(block_key(root_key(None), [5,17,33,8]).hex())"
    keys = [
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    ]
    first = block_key(root_key(None), [5, 17, 33, 8])
    assert keys == [first.hex()] * 2
    assert len(first) >= 16
    second = block_key(block_key(root_key(None), [1, 1, 1, 1]), [5, 17, 33, 8])
    assert second != first


def test_salts_separate_tenants() -> None:
    pool = PrefixCachingAllocator(20, 4)
    prompt = list(range(10))
    compute(pool, sequence_of(prompt, "a", salt="tenant 1"))
    assert compute(pool, sequence_of(prompt, "b", salt="tenant 2")) == 0
    assert compute(pool, sequence_of(prompt, "c")) == 0
    assert compute(pool, sequence_of(prompt, "d", salt="tenant 1")) == 8


def test_a_block_is_not_published_before_it_is_computed() -> None:
    pool = PrefixCachingAllocator(20, 4)
    prompt = list(range(12))
    compute(pool, sequence_of(prompt, "a"), num_tokens=7)
    assert compute(pool, sequence_of(prompt, "b")) == 4


def test_the_same_prompt_computed_twice_at_once_keeps_one_key() -> None:
    pool = PrefixCachingAllocator(20, 4)
    prompt = list(range(9))
    a, b = sequence_of(prompt, "a"), sequence_of(prompt, "b")
    for seq in (a, b):
        pool.match_prefix(seq)
        pool.ensure_capacity(seq.name, 9)
        seq.num_computed_tokens = 9
    for seq in (a, b):
        pool.register_computed_blocks(seq)
    assert not set(pool.block_tables["a"]) & set(pool.block_tables["b"])
    pool.free("a")
    pool.check_integrity()
    assert compute(pool, sequence_of(prompt, "c")) == 8
    pool.free("b")
    pool.free("c")
    pool.check_integrity()
    assert pool.num_free_blocks == 20


def test_memory_is_taken_from_the_least_recently_used_and_tails_go_before_their_parents() -> None:
    pool = PrefixCachingAllocator(6, 4)
    old, new = list(range(100, 112)), list(range(200, 212))
    compute(pool, sequence_of(old, "old"))
    pool.free("old")
    compute(pool, sequence_of(new, "new"))
    pool.free("new")
    assert pool.num_free_blocks == 6
    pool.ensure_capacity("big", 8)  # takes two blocks: the tail of `old`, then its middle
    assert len(pool.find_prefix(sequence_of([*old, 1], "again"))) == 1
    assert len(pool.find_prefix(sequence_of([*new, 1], "new again"))) == 3


def test_generated_tokens_are_found_by_the_next_turn_of_a_chat() -> None:
    pool = PrefixCachingAllocator(20, 4)
    seq = sequence_of(list(range(6)), "turn 1")
    compute(pool, seq)
    seq.token_ids += [50, 51, 52]
    compute_more = 8
    pool.ensure_capacity(seq.name, compute_more)
    seq.num_computed_tokens = compute_more
    pool.register_computed_blocks(seq)
    pool.free("turn 1")
    assert compute(pool, sequence_of([*range(6), 50, 51, 52, 60, 61], "turn 2")) == 8


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("key without block", "^keys and blocks disagree"),
        ("cached and referenced", "^block 0: 1 times free"),
        ("free with key", "^a free block has a key"),
        ("cached without key", "^a cached block has no key"),
    ],
)
def test_the_integrity_check_finds_planted_damage(damage: str, message: str) -> None:
    pool = PrefixCachingAllocator(8, 4)
    compute(pool, sequence_of(list(range(9)), "a"))
    block = pool.block_tables["a"][0]
    if damage == "key without block":
        del pool.key_of[block]
    elif damage == "cached and referenced":
        pool.cached[block] = None
    elif damage == "free with key":
        pool.free("a")
        pool.free_blocks.append(pool.cached.popitem()[0])
    else:
        pool.free("a")
        del pool.block_of[pool.key_of.pop(block)]
    with pytest.raises(AssertionError, match=message):
        pool.check_integrity()


def test_random_traffic_never_returns_another_prefix() -> None:
    """Blocks remember what was written into them; whatever is matched must be what the tokens say."""
    rng, pool = random.Random(0), PrefixCachingAllocator(24, 3)
    written: dict[int, tuple[int, ...]] = {}  # block -> the whole prefix up to its end
    live: list[Sequence] = []
    hits = 0
    for number in range(2000):
        if live and (rng.random() < 0.5 or len(live) > 4):
            pool.free(live.pop(rng.randrange(len(live))).name)
        else:
            tokens = [rng.randrange(2) for _ in range(rng.randint(1, 14))]
            seq = sequence_of(tokens, f"s{number}")
            matched = pool.match_prefix(seq)
            for place, block in enumerate(pool.block_tables.get(seq.name, [])):
                assert written[block] == tuple(tokens[: (place + 1) * 3])
            hits += matched > 0
            if pool.can_hold(seq.name, len(tokens)):
                pool.ensure_capacity(seq.name, len(tokens))
                for place, block in enumerate(pool.block_tables[seq.name]):
                    written[block] = tuple(tokens[: (place + 1) * 3])
                seq.num_computed_tokens = rng.randint(matched, len(tokens))
                pool.register_computed_blocks(seq)
                live.append(seq)
            else:
                pool.free(seq.name)
        pool.check_integrity()
    assert hits > 200


def test_freeing_says_how_many_blocks_came_back_and_leaves_no_trace_of_the_name() -> None:
    pool = PrefixCachingAllocator(20, 4)
    compute(pool, sequence_of(list(range(10)), "a"))
    compute(pool, sequence_of(list(range(10)), "b"))
    assert pool.counts() == {"kv_blocks_total": 20, "kv_blocks_used": 4, "kv_blocks_free": 16, "kv_blocks_cached": 0}
    assert pool.free("a") == 1, "two are shared"
    assert pool.free("b") == 3
    assert pool.free("unknown") == 0
    assert pool.counts() == {"kv_blocks_total": 20, "kv_blocks_used": 0, "kv_blocks_free": 20, "kv_blocks_cached": 2}
    assert not any((pool.chains, pool.num_registered, pool.coming, pool.block_tables))


def test_blocks_that_others_hold_cost_nothing_and_cached_ones_do() -> None:
    pool = PrefixCachingAllocator(20, 4)
    compute(pool, sequence_of(list(range(10)), "a"))
    newcomer = sequence_of([*range(8), 77], "b")
    assert pool.num_referenced_prefix_blocks(newcomer) == 2
    pool.free("a")
    assert pool.num_referenced_prefix_blocks(newcomer) == 0
    assert pool.num_known_tokens(newcomer) == 8


def test_a_block_gets_its_key_with_its_last_token_and_not_before() -> None:
    pool, text = PrefixCachingAllocator(20, 4), list(range(50, 63))
    expected = [root_key(None)]
    for start in (0, 4, 8):
        expected.append(block_key(expected[-1], text[start : start + 4]))
    seq = sequence_of(text[:1], "a")
    for length in range(1, len(text) + 1):
        seq.token_ids = text[:length]
        assert pool._keys(seq) == expected[1 : length // 4 + 1]


def test_switched_off_nothing_is_known_or_coming() -> None:
    pool, seq = NoPrefixCache(20, 4), sequence_of(list(range(10)), "a")
    for _ in range(2):
        assert pool.match_prefix(seq) == 0
        pool.ensure_capacity("a", 10)
        seq.num_computed_tokens = 10
        pool.register_computed_blocks(seq)
        assert (pool.num_known_tokens(seq), pool.num_referenced_prefix_blocks(seq)) == (0, 0)
        assert not pool.is_prefix_coming(seq)
        assert pool.free("a") == 3


def test_what_a_failed_sequence_computed_or_read_is_found_by_nobody() -> None:
    pool, prompt = PrefixCachingAllocator(20, 4), list(range(10))
    compute(pool, sequence_of(prompt, "healthy"))
    failed = sequence_of([*prompt, 50, 51, 52], "failed")
    pool.match_prefix(failed)
    pool.ensure_capacity("failed", 13)
    failed.num_computed_tokens = 13
    failed.finish("error")
    pool.register_computed_blocks(failed)
    pool.check_integrity()
    assert pool.num_known_tokens(sequence_of([*prompt, 50, 51, 52, 53], "next")) == 0
    assert pool.free("failed") == 2
    assert pool.free("healthy") == 3
    pool.check_integrity()
