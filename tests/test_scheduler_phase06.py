"""Phase 6's scheduler, without weights: who is admitted can finish, whatever the others do."""

import itertools

import pytest

from phase06_block_allocator.block_allocator import BlockAllocator
from phase06_block_allocator.scheduler import Scheduler
from shared.config import EngineConfig
from shared.events import EventLog
from tests.fakes import make_sequence, rows, run_to_end, sample, total_tokens


def scheduler_of(
    num_blocks: int, block_size: int = 4, *, batch: int = 8, budget: int = 64, chunk: int = 32
) -> Scheduler:
    config = EngineConfig(max_batch_size=batch, prefill_budget_tokens=budget, prefill_chunk_size=chunk)
    return Scheduler(config, BlockAllocator(num_blocks, block_size), EventLog())


def test_a_sequence_that_fills_the_pool_to_its_last_slot_finishes() -> None:
    scheduler = scheduler_of(num_blocks=16, block_size=4)  # 64 slots
    seq = make_sequence(40, max_tokens=25)  # the last of 65 tokens is never run
    scheduler.add(seq)
    history = run_to_end(scheduler)
    assert total_tokens(history, "s") == 64
    assert seq.num_output_tokens == 25


def test_the_second_waits_until_the_first_has_left_when_both_could_not_finish() -> None:
    scheduler = scheduler_of(num_blocks=6, block_size=4)
    for name in ("a", "b"):
        scheduler.add(make_sequence(8, max_tokens=9, name=name))  # 16 slots: 4 blocks
    plan = scheduler.plan()
    assert rows(plan) == [("a", 8)]
    scheduler.apply(plan, sample(plan))
    history = run_to_end(scheduler)
    assert not any({"a", "b"} <= {name for name, _ in step} for step in history)
    assert total_tokens(history, "b") == 16


def test_who_does_not_fit_holds_up_the_line_and_is_not_overtaken() -> None:
    scheduler = scheduler_of(num_blocks=6, block_size=4)
    for name, prompt in (("a", 8), ("big", 16), ("small", 2)):
        scheduler.add(make_sequence(prompt, max_tokens=5, name=name))
    history = run_to_end(scheduler)
    first_step = {
        name: next(i for i, step in enumerate(history) if name in dict(step)) for name in ("a", "big", "small")
    }
    assert first_step["a"] < first_step["big"] <= first_step["small"]


def test_blocks_are_taken_as_a_sequence_grows_and_not_before() -> None:
    scheduler = scheduler_of(num_blocks=16, block_size=4, chunk=5)
    scheduler.add(make_sequence(12, max_tokens=20))
    used = []
    for _ in range(4):
        plan = scheduler.plan()
        used.append(scheduler.stats().kv_blocks_used)
        scheduler.apply(plan, sample(plan))
    assert used == [2, 3, 3, 4]


def test_abort_and_finish_give_all_blocks_back() -> None:
    scheduler = scheduler_of(num_blocks=16)
    aborted, finished = make_sequence(9, max_tokens=9, name="aborted"), make_sequence(9, max_tokens=1, name="finished")
    scheduler.add(aborted)
    scheduler.add(finished)
    plan = scheduler.plan()
    scheduler.apply(plan, sample(plan))
    assert set(scheduler.allocator.block_tables) == {"aborted"}
    scheduler.abort(aborted)
    assert scheduler.stats().kv_blocks_free == 16
    scheduler.allocator.check_integrity()


@pytest.mark.parametrize(
    ("num_blocks", "block_size", "batch", "chunk"),
    list(itertools.product([12, 13, 40], [3, 4, 7], [1, 3, 8], [1, 5, 64])),
)
def test_no_size_leads_to_a_deadlock_or_an_overflow(num_blocks: int, block_size: int, batch: int, chunk: int) -> None:
    scheduler = scheduler_of(num_blocks, block_size, batch=batch, chunk=chunk, budget=9)
    lengths = {f"s{n}": n for n in (1, 13, 4, 21, 8, 16)}
    for name, length in lengths.items():
        scheduler.add(make_sequence(length, max_tokens=14, name=name))
    history = run_to_end(scheduler)
    assert {name: total_tokens(history, name) for name in lengths} == {n: x + 13 for n, x in lengths.items()}
    assert scheduler.stats().kv_blocks_free == num_blocks
