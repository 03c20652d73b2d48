"""Phase 12's scheduler, without weights: what guesses and a cache may not do."""

from phase09_preemption.cpu_swap_manager import CPUSwapManager
from phase12_prefix_and_spec.prefix_cache import NoPrefixCache, PrefixCachingAllocator
from phase12_prefix_and_spec.scheduler import Scheduler
from shared.config import EngineConfig
from shared.events import EventLog
from shared.step import SampledToken, StepPlan
from tests.fakes import make_sequence, rows, sample
from tests.test_scheduler_phase09 import FakePool

DRAFT = (7, 7, 7)


def scheduler_of(num_blocks: int, *, with_cache: bool = False, budget: int = 64) -> Scheduler:
    config = EngineConfig(max_batch_size=8, prefill_budget_tokens=budget, prefill_chunk_size=32)
    allocator = (PrefixCachingAllocator if with_cache else NoPrefixCache)(num_blocks, 4)
    return Scheduler(config, allocator, CPUSwapManager(0, FakePool()), EventLog())


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
    for _ in range(5):
        plan = scheduler.plan()
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
