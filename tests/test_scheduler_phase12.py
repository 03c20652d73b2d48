"""Phase 12's scheduler, without weights: what guesses and a cache may not do."""

import pytest

from phase09_preemption.cpu_swap_manager import CPUSwapManager
from phase12_prefix_and_spec.prefix_cache import NoPrefixCache, PrefixCachingAllocator
from phase12_prefix_and_spec.scheduler import Scheduler
from shared.config import EngineConfig
from shared.events import EventLog
from shared.sequence import Status
from shared.step import SampledToken, StepPlan
from tests.fakes import make_sequence, rows, sample
from tests.test_scheduler_phase09 import FakePool

DRAFT = (7, 7, 7)


def scheduler_of(num_blocks: int, *, with_cache: bool = False, budget: int = 64, swap_blocks: int = 0) -> Scheduler:
    config = EngineConfig(max_batch_size=8, prefill_budget_tokens=budget, prefill_chunk_size=32)
    allocator = (PrefixCachingAllocator if with_cache else NoPrefixCache)(num_blocks, 4)
    return Scheduler(config, allocator, CPUSwapManager(swap_blocks, FakePool()), EventLog())


def step(scheduler: Scheduler) -> None:
    plan = scheduler.plan()
    scheduler.apply(plan, sample(plan))


def guess(plan: StepPlan) -> list[list[SampledToken]]:
    """A runner that always guesses three tokens, and is never right."""
    return [[SampledToken(5, draft=DRAFT)] if item.is_sampled else [] for item in plan.items]


def test_nobody_is_preempted_for_a_guess() -> None:
    scheduler = scheduler_of(num_blocks=6)
    for name in ("a", "b"):
        scheduler.add(make_sequence(7, max_tokens=9, name=name))
    plan = scheduler.plan()
    scheduler.apply(plan, guess(plan))
    plan = scheduler.plan()
    assert [item.seq.name for item in plan.items] == ["a", "b"]
    scheduler.apply(plan, guess(plan))
    plan = scheduler.plan()  # each needs a block now, two are free: none is left for guesses beyond them
    assert [item.seq.name for item in plan.items] == ["a", "b"]
    assert scheduler.totals.num_preemptions == 0


@pytest.mark.parametrize("with_cache", [False, True])
@pytest.mark.parametrize("num_blocks", range(6, 11))
def test_what_wrong_guesses_held_is_there_for_the_next_step(num_blocks: int, with_cache: bool) -> None:
    """Only the older one guesses. Whoever comes later is admitted and preempted as if it did not."""
    stories = []
    for num_guesses in (0, 8):
        scheduler = scheduler_of(num_blocks, with_cache=with_cache)
        a, b = make_sequence(8, max_tokens=16, name="a"), make_sequence(8, max_tokens=12, name="b")
        b.token_ids = [99] * 8
        scheduler.add(a)
        story = []
        while not (a.is_finished and b.is_finished):
            if len(story) == 3:
                scheduler.add(b)
            plan = scheduler.plan()
            story.append((rows(plan), scheduler.totals.num_preemptions))
            guesses = [(7,) * num_guesses if item.seq is a else () for item in plan.items]
            scheduler.apply(plan, [[SampledToken(5, draft=draft)] for draft in guesses])
            scheduler.allocator.check_integrity()
        stories.append(story)
    assert stories[0] == stories[1]
    assert scheduler.totals.num_drafted_tokens > 0


def test_guesses_hold_up_no_prompt() -> None:
    scheduler = scheduler_of(num_blocks=40, budget=8)
    scheduler.add(make_sequence(2, max_tokens=50, name="a"))
    plan = scheduler.plan()
    scheduler.apply(plan, [[SampledToken(5, draft=(7,) * 20)]])
    scheduler.add(make_sequence(12, name="b"))
    for in_prompt, num_guesses in ((7, 0), (5, 2)):
        plan = scheduler.plan()
        assert rows(plan) == [("a", 1), ("b", in_prompt)]
        assert [len(item.draft) for item in plan.items] == [num_guesses, 0]
        drafts = [(7,) * 20 if item.seq.name == "a" else () for item in plan.items]
        scheduler.apply(plan, [[SampledToken(5, draft=d)] if i.is_sampled else [] for i, d in zip(plan.items, drafts)])


def test_guesses_fill_what_decodes_leave_of_the_budget() -> None:
    scheduler = scheduler_of(num_blocks=40, budget=8)
    for name in ("a", "b", "c"):
        scheduler.add(make_sequence(2, max_tokens=50, name=name))
    plan = scheduler.plan()
    scheduler.apply(plan, guess(plan))
    plan = scheduler.plan()
    assert [len(item.draft) for item in plan.items] == [3, 2, 0]
    assert plan.num_tokens == 8


def test_a_guess_never_reaches_past_max_tokens() -> None:
    scheduler = scheduler_of(num_blocks=40)
    scheduler.add(make_sequence(2, max_tokens=3, name="a"))
    plan = scheduler.plan()
    scheduler.apply(plan, guess(plan))
    assert len(scheduler.plan().items[0].draft) == 1, "one token is out, with one guess two more can come"


def test_wrong_guesses_leave_progress_where_it_was() -> None:
    scheduler = scheduler_of(num_blocks=40)
    seq = make_sequence(2, max_tokens=50, name="a")
    scheduler.add(seq)
    for _ in range(9):
        plan = scheduler.plan()
        num_slots = 4 * len(scheduler.allocator.block_tables["a"])
        assert num_slots >= seq.num_computed_tokens + plan.num_tokens, "a token without a slot"
        scheduler.apply(plan, guess(plan))
        assert seq.num_uncomputed_tokens == 1


def test_completions_of_one_prompt_wait_for_each_other_only_where_they_can_share() -> None:
    for with_cache, num_prompt, together in ((False, 9, 3), (True, 3, 3), (True, 9, 1)):
        scheduler = scheduler_of(num_blocks=40, with_cache=with_cache)
        for index in range(3):
            seq = make_sequence(num_prompt, name="r", index=index)
            scheduler.add(seq)
        assert len(rows(scheduler.plan())) == together


def test_a_shared_prompt_is_computed_once() -> None:
    scheduler = scheduler_of(num_blocks=40, with_cache=True)
    first, second = make_sequence(9, name="first"), make_sequence(9, name="second")
    scheduler.add(first)
    plan = scheduler.plan()
    scheduler.apply(plan, sample(plan))
    scheduler.add(second)
    assert rows(scheduler.plan()) == [("first", 1), ("second", 1)]
    assert second.num_cached_tokens == 8


def test_guesses_shrink_to_the_slots_that_are_left() -> None:
    scheduler = scheduler_of(num_blocks=3)  # 12 slots
    seq = make_sequence(7, max_tokens=50, name="a")
    scheduler.add(seq)
    plan = scheduler.plan()
    num_guesses = []
    for _ in range(5):
        scheduler.apply(plan, guess(plan))
        plan = scheduler.plan()
        num_guesses.append(len(plan.items[0].draft))
        num_slots = 4 * len(scheduler.allocator.block_tables["a"])
        assert num_slots >= seq.num_computed_tokens + 1 + num_guesses[-1], "a guess without a slot"
    assert num_guesses == [3, 3, 2, 1, 0]


def test_right_guesses_move_progress_past_them_and_are_counted() -> None:
    scheduler = scheduler_of(num_blocks=40)
    seq = make_sequence(2, max_tokens=50, name="r", index=1)
    scheduler.add(seq)
    plan = scheduler.plan()
    scheduler.apply(plan, guess(plan))
    told = []
    for num_right in (3, 1, 0):
        plan = scheduler.plan()
        before = seq.num_computed_tokens
        with scheduler.events.recording() as events:
            scheduler.apply(plan, [[*(SampledToken(7) for _ in range(num_right)), SampledToken(5, draft=DRAFT)]])
        told += [(event.kind, event.request_id, event.index, event.num_tokens) for event in events]
        assert seq.num_computed_tokens == before + 1 + num_right
        assert seq.num_uncomputed_tokens == 1
    assert told == [("drafts_accepted", "r", 1, num_right) for num_right in (3, 1, 0)]
    assert (scheduler.totals.num_drafted_tokens, scheduler.totals.num_accepted_tokens) == (9, 4)


def test_a_prompt_that_is_shared_needs_no_memory_of_its_own() -> None:
    scheduler = scheduler_of(num_blocks=6, with_cache=True)
    for name in ("a", "b"):
        scheduler.add(make_sequence(13, max_tokens=2, name=name))
        step(scheduler)
    assert scheduler.running[-1].name == "b", "four blocks held by a, one for b's last token, one of headroom"


def test_hits_are_told_and_counted_once_per_sequence() -> None:
    scheduler = scheduler_of(num_blocks=40, with_cache=True)
    with scheduler.events.recording() as events:
        for index in range(3):
            scheduler.add(make_sequence(9, name="r" * (index + 1), index=index))
            step(scheduler)
    hits = [(event.request_id, event.index, event.num_tokens) for event in events if event.kind == "prefix_hit"]
    assert hits == [("r", 0, 0), ("rr", 1, 8), ("rrr", 2, 8)]
    assert (scheduler.totals.num_prefix_queried_tokens, scheduler.totals.num_prefix_hit_tokens) == (27, 16)
    assert scheduler.stats().num_prefix_hit_tokens == 16


@pytest.mark.parametrize(("of_a", "num_lost"), [(3, 0), (6, 1)])
def test_coming_back_only_what_the_cache_has_lost_is_copied(of_a: int, num_lost: int) -> None:
    scheduler = scheduler_of(num_blocks=5, with_cache=True, swap_blocks=5)
    pool = scheduler.swap.copier
    pool.device = dict.fromkeys(range(5), "")
    a, b = make_sequence(8, max_tokens=of_a, name="a"), make_sequence(8, max_tokens=9, name="b")
    b.token_ids = [99] * 8
    copied: list[int] = []
    pool.to_device = lambda _host_blocks, device_blocks: copied.append(len(device_blocks))
    for seq in (a, b):
        scheduler.add(seq)
    while not a.is_finished:
        step(scheduler)
    assert scheduler.stats().num_swapped == 1
    step(scheduler)
    assert (b.status, copied) == (Status.RUNNING, [num_lost]), "a, growing, took its last block, or none"
