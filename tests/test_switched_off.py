"""With caching and speculation off the final scheduler is phase 9's: the same plans, step by step, under pressure."""

import random

import pytest

from phase06_block_allocator.block_allocator import BlockAllocator
from phase09_preemption.cpu_swap_manager import CPUSwapManager
from phase09_preemption.scheduler import Scheduler as Phase09Scheduler
from phase12_prefix_and_spec.prefix_cache import NoPrefixCache
from phase12_prefix_and_spec.scheduler import Scheduler as Phase12Scheduler
from shared.config import EngineConfig
from shared.events import EventLog
from shared.sequence import Sequence
from tests.fakes import make_sequence, rows, sample
from tests.test_scheduler_phase09 import FakePool

Scheduler = Phase09Scheduler | Phase12Scheduler


def both(seed: int) -> tuple[Scheduler, Scheduler]:
    rng = random.Random(seed)
    block_size = rng.choice([1, 3, 4, 16])
    num_blocks, swap_blocks = 1 + 48 // block_size, rng.choice([0, 2, 50])
    config = EngineConfig(
        max_batch_size=rng.choice([2, 5, 8]),
        prefill_budget_tokens=rng.choice([5, 16, 64]),
        prefill_chunk_size=rng.choice([1, 4, 32]),
        preemption_mode=rng.choice(["swap", "recompute"]),
    )

    def parts() -> tuple[CPUSwapManager, EventLog]:
        pool = FakePool()
        pool.device = dict.fromkeys(range(num_blocks), "")
        return CPUSwapManager(swap_blocks, pool), EventLog()

    return (
        Phase09Scheduler(config, BlockAllocator(num_blocks, block_size), *parts()),
        Phase12Scheduler(config, NoPrefixCache(num_blocks, block_size), *parts()),
    )


@pytest.mark.parametrize("seed", range(40))
def test_the_plans_are_phase_9s_step_by_step(seed: int) -> None:
    """Arrivals (many with the same prompt) and aborts at random, memory always short; tables are compared as well."""
    rng, schedulers = random.Random(seed), both(seed)
    live: list[tuple[Sequence, ...]] = []
    for number in range(200):
        if number < 120 and rng.random() < 0.4:
            num_prompt, max_tokens = rng.randint(1, 20), rng.randint(1, 25)
            live.append(tuple(make_sequence(num_prompt, max_tokens, name=f"s{number}") for _ in schedulers))
            for scheduler, seq in zip(schedulers, live[-1]):
                scheduler.add(seq)
        if live and rng.random() < 0.03:
            for scheduler, seq in zip(schedulers, live.pop(rng.randrange(len(live)))):
                scheduler.abort(seq)
        plans = [scheduler.plan() for scheduler in schedulers]
        assert rows(plans[0]) == rows(plans[1])
        for scheduler, plan in zip(schedulers, plans):
            scheduler.apply(plan, sample(plan))
        old, new = schedulers
        assert old.allocator.block_tables == new.allocator.block_tables
        assert old.swap.tables == new.swap.tables
        assert old.totals.num_preemptions == new.totals.num_preemptions
        live = [pair for pair in live if not pair[0].is_finished]


def test_the_pressure_was_real() -> None:
    totals = []
    for seed in range(10):
        scheduler, _ = both(seed)
        for number in range(6):
            scheduler.add(make_sequence(5 + number, 25, name=f"s{number}"))
        while plan := scheduler.plan():
            scheduler.apply(plan, sample(plan))
        totals.append(scheduler.totals.num_preemptions)
    assert sum(totals) > 20
