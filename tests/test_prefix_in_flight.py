"""Requests that arrive together with the same beginning: one computes it, the others wait for that and share it."""

import random
from collections import Counter

import pytest

from phase06_block_allocator.block_allocator import BlockAllocator
from phase09_preemption.cpu_swap_manager import CPUSwapManager
from phase12_prefix_and_spec.prefix_cache import NoPrefixCache, PrefixCachingAllocator, block_key, root_key
from phase12_prefix_and_spec.scheduler import Scheduler
from shared.config import EngineConfig
from shared.events import EventLog
from shared.reference import greedy_reference
from shared.registry import PHASES
from shared.request import Request, SamplingParams
from shared.sequence import Sequence
from shared.tiny_models import tiny_llama
from tests.fakes import make_sequence, rows, run_to_end, sample
from tests.helpers import Q, greedy, open_engine, token_lists
from tests.test_prefix_cache import sequence_of
from tests.test_scheduler_phase09 import FakePool

final_phases = [phase for phase in PHASES if phase.number >= 12]
PREFIX = [(5 * i * i + i) % 89 for i in range(512)]


def scheduler_of(
    num_blocks: int = 4000,
    block_size: int = 4,
    *,
    make_allocator: type[BlockAllocator] = PrefixCachingAllocator,
    chunk: int = 128,
    budget: int = 512,
    batch: int = 32,
    mode: str = "swap",
) -> Scheduler:
    config = EngineConfig(
        max_batch_size=batch, prefill_budget_tokens=budget, prefill_chunk_size=chunk, preemption_mode=mode
    )
    pool = FakePool()
    pool.device = dict.fromkeys(range(num_blocks), "")
    return Scheduler(config, make_allocator(num_blocks, block_size), CPUSwapManager(50, pool), EventLog())


def add(
    scheduler: Scheduler, token_ids: list[int], name: str, *, salt: str | None = None, max_tokens: int = 2
) -> Sequence:
    seq = sequence_of(token_ids, name, salt)
    seq.max_num_tokens = len(token_ids) + max_tokens
    scheduler.add(seq)
    return seq


def step(scheduler: Scheduler) -> list[tuple[str, int]]:
    plan = scheduler.plan()
    scheduler.apply(plan, sample(plan))
    scheduler.allocator.check_integrity()
    scheduler.swap.check_integrity()
    return rows(plan)


@pytest.mark.parametrize("block_size", [1, 3, 7, 16, 32])
def test_32_prompts_that_arrive_together_compute_what_they_share_once(block_size: int) -> None:
    scheduler = scheduler_of(block_size=block_size)
    own = [[100 + number] * (16 + number % 17) for number in range(32)]
    for number, tokens in enumerate(own):
        add(scheduler, PREFIX + tokens, f"s{number}", max_tokens=1)
    history = run_to_end(scheduler)
    num_shared = len(PREFIX) // block_size * block_size
    assert sum(n for plan in history for _, n in plan) == num_shared + sum(512 - num_shared + len(t) for t in own)
    assert scheduler.totals.num_prefix_hit_tokens == 31 * num_shared
    assert [len(plan) for plan in history[:4]] == [1] * 4, "the first alone: four chunks of 128 are the prefix"
    assert len(history) <= 8


def test_the_same_prompt_many_times_is_computed_once_but_for_its_last_block() -> None:
    scheduler = scheduler_of()
    for number in range(5):
        add(scheduler, PREFIX[:40], f"s{number}", max_tokens=1)
    history = run_to_end(scheduler)
    assert history == [[("s0", 40)], [(f"s{number}", 4) for number in range(1, 5)]]


def test_a_longer_prompt_waits_for_what_it_shares_and_then_goes_on_alone() -> None:
    scheduler = scheduler_of(chunk=16, budget=64)
    add(scheduler, PREFIX[:30], "short", max_tokens=5)
    longer = add(scheduler, PREFIX[:60], "long")
    assert step(scheduler) == [("short", 16)]
    assert step(scheduler) == [("short", 14)]
    assert step(scheduler) == [("short", 1), ("long", 16)]
    assert scheduler.totals.num_prefix_hit_tokens == 28, "30, rounded down to blocks"
    assert longer.num_cached_tokens == 0, "when it arrived nothing was there"


def test_who_shares_nothing_passes_and_the_order_among_those_who_share_is_kept() -> None:
    scheduler = scheduler_of(chunk=8, budget=64)
    add(scheduler, PREFIX[:20], "first")
    add(scheduler, [*PREFIX[:16], 90], "second")
    add(scheduler, [*PREFIX[:16], 91], "third")
    add(scheduler, [95] * 8, "stranger")
    assert step(scheduler) == [("first", 8), ("stranger", 8)]
    assert step(scheduler) == [("stranger", 1), ("first", 8)]
    assert step(scheduler) == [("first", 4), ("second", 1), ("third", 1)]


def test_other_tenants_do_not_wait_and_do_not_share() -> None:
    scheduler = scheduler_of(chunk=64)
    for name, salt in (("a", "x"), ("b", "y"), ("c", None), ("d", "x")):
        add(scheduler, PREFIX[:64], name, salt=salt)
    assert step(scheduler) == [("a", 64), ("b", 64), ("c", 64)]
    assert step(scheduler)[-1] == ("d", 4)


@pytest.mark.parametrize("num_steps", [0, 1, 2, 3])
def test_if_the_first_is_aborted_the_next_goes_on_from_where_it_was(num_steps: int) -> None:
    scheduler = scheduler_of(chunk=10, budget=64)
    first, *_ = [add(scheduler, [*PREFIX[:40], number], name) for number, name in enumerate("abc")]
    for _ in range(num_steps):
        step(scheduler)
    scheduler.abort(first)
    scheduler.allocator.check_integrity()
    assert not scheduler.allocator.coming
    num_there = 10 * num_steps // 4 * 4
    assert step(scheduler) == [("b", 10)]
    assert scheduler.totals.num_prefix_hit_tokens == num_there
    history = run_to_end(scheduler)
    assert sum(n for plan in history for name, n in plan if name == "c") == 1 + 1, "all but its own, and a decode"


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_if_the_first_is_preempted_nobody_waits_for_it_for_ever(mode: str) -> None:
    """An old decode needs memory: the prefill that the others wait for has to go, and comes back."""
    scheduler = scheduler_of(num_blocks=12, chunk=4, budget=8, mode=mode)
    seqs = [add(scheduler, [99] * 7, "old", max_tokens=30)]
    step(scheduler)
    seqs += [add(scheduler, [*PREFIX[:24], number], name, max_tokens=9) for number, name in enumerate("abc")]
    while scheduler.waiting or scheduler.running or scheduler.swapped:
        assert step(scheduler), "a step in which nobody runs"
    assert [seq.num_output_tokens for seq in seqs] == [30, 9, 9, 9]
    assert scheduler.totals.num_preemptions >= 1


def test_nobody_is_admitted_in_a_step_that_preempted_even_if_what_it_waited_for_is_there() -> None:
    scheduler = scheduler_of(num_blocks=10, chunk=8, mode="recompute")
    add(scheduler, [99] * 7, "old", max_tokens=30)
    step(scheduler)
    add(scheduler, PREFIX[:16], "first", max_tokens=30)
    add(scheduler, [*PREFIX[:16], 77], "second")
    victim = add(scheduler, [98] * 8, "stranger", max_tokens=30)
    assert step(scheduler) == [("old", 1), ("first", 8), ("stranger", 8)]
    assert step(scheduler) == [("old", 1), ("stranger", 1), ("first", 8)]
    assert step(scheduler) == [("old", 1), ("first", 1)], "the second would fit beside the first's blocks"
    assert list(scheduler.waiting)[1] is victim
    assert step(scheduler)[-1] == ("second", 1)


def test_completions_of_one_request_share_their_prompt_the_same_way() -> None:
    scheduler = scheduler_of()
    for index in range(4):
        seq = make_sequence(21, max_tokens=1, name="r", index=index)
        seq.request = Request(seq.token_ids, SamplingParams(max_tokens=1, n=4))
        scheduler.add(seq)
    assert [[n for _, n in plan] for plan in run_to_end(scheduler)] == [[21], [1, 1, 1]]


def test_who_wants_the_prompts_logprobs_computes_all_of_it_and_waits_for_nobody() -> None:
    scheduler = scheduler_of(chunk=64)
    add(scheduler, PREFIX[:40], "a")
    scored = add(scheduler, PREFIX[:40], "scored")
    scored.request = Request(PREFIX[:40], SamplingParams(prompt_logprobs=1))
    add(scheduler, PREFIX[:40], "b")
    assert step(scheduler) == [("a", 40), ("scored", 40)]
    assert step(scheduler) == [("a", 1), ("scored", 1), ("b", 4)]


def test_without_a_cache_everybody_computes_side_by_side() -> None:
    scheduler = scheduler_of(make_allocator=NoPrefixCache, chunk=64)
    for name in "abc":
        add(scheduler, PREFIX[:40], name)
    assert step(scheduler) == [("a", 40), ("b", 40), ("c", 40)]


def test_the_integrity_check_finds_a_promise_that_nobody_keeps() -> None:
    scheduler = scheduler_of(chunk=4)
    add(scheduler, PREFIX[:40], "a")
    step(scheduler)
    pool = scheduler.allocator
    pool.coming[b"nobody's"] = "a"
    with pytest.raises(AssertionError, match="a does not compute"):
        pool.check_integrity()
    pool.coming = {next(iter(pool.coming)): "gone"}
    with pytest.raises(AssertionError, match="gone, which is not running"):
        pool.check_integrity()


def prompt_keys(seq: Sequence, block_size: int) -> list[bytes]:
    """Of the prompt's blocks that others may share."""
    keys = [root_key(seq.request.cache_salt)]
    for start in range(0, seq.num_prompt_tokens - block_size, block_size):
        keys.append(block_key(keys[-1], seq.token_ids[start : start + block_size]))
    return keys[1:]


@pytest.mark.parametrize("seed", range(20))
def test_in_random_traffic_no_block_of_a_prompt_is_computed_twice_and_everybody_ends(seed: int) -> None:
    """Prompts from a tree of beginnings, arriving at any time. With memory short or aborts only the second holds."""
    rng = random.Random(seed)
    block_size, is_ample = rng.choice([1, 3, 4]), seed % 2 == 0
    scheduler = scheduler_of(
        4000 if is_ample else 60 // block_size, block_size, chunk=rng.choice([2, 7, 64]), budget=16, batch=6
    )
    computed: Counter[bytes] = Counter()
    live: list[Sequence] = []
    num_arrived = num_steps = 0
    while num_arrived < 40 or live:
        if num_arrived < 40 and rng.random() < 0.4:
            prompt = [rng.randrange(2) for _ in range(rng.randint(1, 5))] * rng.randint(1, 9)
            live.append(add(scheduler, prompt, f"s{num_arrived}", max_tokens=rng.randint(1, 4)))
            num_arrived += 1
        if not is_ample and live and rng.random() < 0.05:
            scheduler.abort(live.pop(rng.randrange(len(live))))
        plan = scheduler.plan()
        assert plan or not live, "a step in which nobody runs"
        for item in plan.items:
            first, end = item.num_computed_tokens // block_size, item.num_computed_tokens + item.num_tokens
            computed.update(prompt_keys(item.seq, block_size)[first : end // block_size])
        scheduler.apply(plan, sample(plan))
        scheduler.allocator.check_integrity()
        live = [seq for seq in live if not seq.is_finished]
        num_steps += 1
        assert num_steps < 3000
    assert not scheduler.allocator.coming
    assert not scheduler.allocator.chains
    if is_ample:
        assert max(computed.values()) == 1
        assert scheduler.totals.num_prefix_hit_tokens > 0


@pytest.mark.parametrize("phase", final_phases, ids=lambda p: p.package[:7])
@pytest.mark.parametrize(("block_size", "chunk"), [(1, 16), (3, 7), (7, 64), (16, 5)])
def test_shared_beginnings_in_flight_give_the_tokens_of_generate(phase, block_size: int, chunk: int) -> None:
    prompts = [[*Q[:48], number, *Q[number : number + number % 5]] for number in range(12)]
    with open_engine(phase, kv_block_size=block_size, prefill_chunk_size=chunk, max_batch_size=8) as engine:
        with engine.events.recording() as events:
            outputs = engine.generate([greedy(prompt, 6) for prompt in prompts])
        computed = sum(event.num_tokens for event in events if event.kind == "chunk")
    assert token_lists(outputs) == [greedy_reference(tiny_llama(), prompt, 6) for prompt in prompts]
    num_shared = 48 // block_size * block_size
    assert computed == sum(map(len, prompts)) - 11 * num_shared
