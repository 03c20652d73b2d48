"""What all schedulers have in common, without weights: limits, figures, and the events that say what they did."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from phase02_iteration_scheduling.scheduler import Scheduler as Phase02Scheduler
from phase04_chunked_prefill.scheduler import Scheduler as Phase04Scheduler
from phase06_block_allocator.block_allocator import BlockAllocator
from phase06_block_allocator.scheduler import Scheduler as Phase06Scheduler
from phase09_preemption.cpu_swap_manager import CPUSwapManager
from phase09_preemption.scheduler import Scheduler as Phase09Scheduler
from phase12_prefix_and_spec.prefix_cache import NoPrefixCache
from phase12_prefix_and_spec.scheduler import Scheduler as Phase12Scheduler
from shared.config import EngineConfig
from shared.events import EventLog
from shared.sequence import Sequence, Status
from tests.fakes import make_sequence, rows, sample
from tests.test_scheduler_phase09 import FakePool

EVERY = (2, 4, 6, 9, 12)


def scheduler_of(phase: int, *, num_blocks: int = 40, swap_blocks: int = 40, **settings: Any) -> Any:
    config = EngineConfig(
        **{"max_batch_size": 8, "prefill_budget_tokens": 64, "prefill_chunk_size": 32} | settings  # type: ignore[arg-type]
    )
    pool = FakePool()
    pool.device = dict.fromkeys(range(num_blocks), "")
    swap = CPUSwapManager(swap_blocks, pool)
    if phase == 12:
        return Phase12Scheduler(config, NoPrefixCache(num_blocks, 4), swap, EventLog())
    if phase == 9:
        return Phase09Scheduler(config, BlockAllocator(num_blocks, 4), swap, EventLog())
    if phase == 6:
        return Phase06Scheduler(config, BlockAllocator(num_blocks, 4), EventLog())
    return (Phase02Scheduler if phase == 2 else Phase04Scheduler)(config, EventLog())


def add(scheduler: Any, *lengths: int, max_tokens: int = 20, first: int = 0) -> list[Sequence]:
    """Sequences a, b, c, ... of these prompt lengths; their indices count up, so that no two events look alike."""
    seqs = [make_sequence(n, max_tokens, chr(97 + i), i) for i, n in enumerate(lengths, start=first)]
    for seq in seqs:
        scheduler.add(seq)
    return seqs


def step(scheduler: Any) -> list[tuple[str, int]]:
    plan = scheduler.plan()
    scheduler.apply(plan, sample(plan))
    return rows(plan)


@contextmanager
def told(scheduler: Any) -> Iterator[list[tuple[Any, ...]]]:
    """Everything that the scheduler says inside, but for what it found in a cache."""
    with scheduler.events.recording() as events:
        happened: list[tuple[Any, ...]] = []
        yield happened
    happened += [(e.kind, e.request_id, e.index, e.detail) for e in events if e.kind != "prefix_hit"]


@pytest.mark.parametrize("phase", EVERY)
def test_who_is_admitted_runs_and_an_event_says_so(phase: int) -> None:
    scheduler = scheduler_of(phase)
    with told(scheduler) as happened:
        seqs = add(scheduler, 3, 5)
        scheduler.plan()
    assert [seq.status for seq in seqs] == [Status.RUNNING] * 2
    assert happened == [("admitted", "a", 0, ""), ("admitted", "b", 1, "")]


@pytest.mark.parametrize("phase", EVERY)
def test_no_more_run_than_the_batch_holds_and_the_figures_say_who_waits(phase: int) -> None:
    scheduler = scheduler_of(phase, max_batch_size=2)
    add(scheduler, 3, 5, 4, 2, 6)
    assert [name for name, _ in step(scheduler)] == ["a", "b"]
    stats = scheduler.stats()
    assert (stats.num_running, stats.num_waiting) == (2, 3)
    if phase >= 6:
        assert (stats.kv_blocks_total, stats.kv_blocks_used, stats.kv_blocks_free) == (40, 3, 37)
    if phase >= 9:
        assert (stats.num_swapped, stats.swap_blocks_total, stats.swap_blocks_used) == (0, 40, 0)


@pytest.mark.parametrize("phase", EVERY)
def test_free_slots_count_whoever_is_here(phase: int) -> None:
    scheduler = scheduler_of(phase, max_batch_size=4)
    assert scheduler.num_free_slots() == 4
    add(scheduler, 2, 2)
    scheduler.plan()
    assert scheduler.num_free_slots() == 2
    add(scheduler, 2)
    assert scheduler.num_free_slots() == 1
    add(scheduler, 2, 2, 2)
    assert scheduler.num_free_slots() == 0


@pytest.mark.parametrize("phase", EVERY)
def test_abort_takes_a_sequence_out_of_either_line(phase: int) -> None:
    scheduler = scheduler_of(phase, max_batch_size=1)
    running, waiting, other = add(scheduler, 2, 2, 2)
    step(scheduler)
    scheduler.abort(waiting)
    scheduler.abort(running)
    scheduler.abort(running)
    assert step(scheduler) == [(other.name, 2)]


@pytest.mark.parametrize("phase", EVERY[1:])
def test_decodes_take_the_budget_first_and_prompts_share_what_is_left_to_the_last_token(phase: int) -> None:
    scheduler = scheduler_of(phase, num_blocks=100, prefill_budget_tokens=7, prefill_chunk_size=4)
    add(scheduler, 3, 3)
    assert step(scheduler) == [("a", 3), ("b", 3)]
    add(scheduler, 40, 20, 20, first=2)
    assert step(scheduler) == [("a", 1), ("b", 1), ("c", 4), ("d", 1)]
    assert scheduler.stats().num_waiting == 1, "nobody is admitted to run nothing"


@pytest.mark.parametrize("phase", [9, 12])
def test_events_and_figures_tell_of_a_swap_and_of_the_way_back(phase: int) -> None:
    scheduler = scheduler_of(phase, num_blocks=5)
    a, b = add(scheduler, 8, 8, max_tokens=4)
    step(scheduler)
    with told(scheduler) as happened:
        step(scheduler)
    assert happened == [("preempted", "b", 1, "swap")]
    assert scheduler.num_free_slots() == 8 - 2
    stats = scheduler.stats()
    assert (stats.num_running, stats.num_swapped, stats.num_preemptions, stats.swap_blocks_used) == (1, 1, 1, 2)
    with told(scheduler) as happened:
        while not a.is_finished:
            step(scheduler)
        step(scheduler)
    assert happened == [("swapped_in", "b", 1, "")]
    assert b.status is Status.RUNNING


@pytest.mark.parametrize("phase", [9, 12])
def test_a_victim_to_recompute_waits_with_nothing_computed_and_an_event_says_so(phase: int) -> None:
    scheduler = scheduler_of(phase, num_blocks=5, swap_blocks=1)
    _, b = add(scheduler, 8, 8)
    step(scheduler)
    with told(scheduler) as happened:
        step(scheduler)
    assert happened == [("preempted", "b", 1, "recompute")]
    assert (b.status, b.num_computed_tokens, b.draft) == (Status.WAITING, 0, [])


@pytest.mark.parametrize("phase", [9, 12])
def test_what_preemptions_cost_adds_up(phase: int) -> None:
    scheduler = scheduler_of(phase, num_blocks=7, preemption_mode="recompute")
    seqs = add(scheduler, 8, 8, 6)
    lost = num_preemptions = 0
    while any(not seq.is_finished for seq in seqs):
        before = {seq: seq.num_computed_tokens for seq in scheduler.running}
        step(scheduler)
        victims = [seq for seq in before if seq.status is Status.WAITING]
        lost += sum(before[seq] for seq in victims)
        num_preemptions += len(victims)
    totals = scheduler.totals
    assert (totals.num_recomputed_tokens, totals.num_preemptions) == (lost, num_preemptions)
    assert num_preemptions > 1


@pytest.mark.parametrize("phase", [9, 12])
def test_where_nothing_else_could_run_the_newest_prefill_gives_way(phase: int) -> None:
    scheduler = scheduler_of(phase, num_blocks=12, prefill_chunk_size=4)
    add(scheduler, 16, 16)
    assert step(scheduler) == [("a", 4), ("b", 4)]
    scheduler.allocator.ensure_capacity("somebody else", 4 * scheduler.allocator.num_free_blocks)
    assert step(scheduler) == [("a", 4)]
    assert [seq.name for seq in scheduler.waiting] == ["b"]


@pytest.mark.parametrize("phase", [9, 12])
def test_a_prefill_that_still_has_one_slot_needs_nobody_to_give_way(phase: int) -> None:
    scheduler = scheduler_of(phase, num_blocks=12, prefill_chunk_size=3)
    add(scheduler, 16, 16)
    assert step(scheduler) == [("a", 3), ("b", 3)]
    scheduler.allocator.ensure_capacity("somebody else", 4 * scheduler.allocator.num_free_blocks)
    assert step(scheduler) == [("a", 1), ("b", 1)]


@pytest.mark.parametrize("phase", [9, 12])
def test_a_lone_prefill_without_any_room_waits(phase: int) -> None:
    scheduler = scheduler_of(phase, num_blocks=12, prefill_chunk_size=4)
    add(scheduler, 16)
    step(scheduler)
    scheduler.allocator.ensure_capacity("somebody else", 4 * scheduler.allocator.num_free_blocks)
    assert step(scheduler) == []
    scheduler.allocator.free("somebody else")
    assert step(scheduler) == [("a", 4)]


@pytest.mark.parametrize("phase", [9, 12])
def test_whoever_runs_alone_may_use_the_last_block_and_whoever_joins_may_not(phase: int) -> None:
    scheduler = scheduler_of(phase, num_blocks=4)
    add(scheduler, 8, 8)
    assert step(scheduler) == [("a", 8)], "both would fit exactly, with no headroom"
    alone = scheduler_of(phase, num_blocks=2)
    add(alone, 8, max_tokens=1)
    assert step(alone) == [("a", 8)]
