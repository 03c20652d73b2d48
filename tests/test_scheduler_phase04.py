"""Phase 4's scheduler, without weights: a budget of tokens per step, decodes first, prompts in chunks."""

import itertools

import pytest

from phase04_chunked_prefill.scheduler import Scheduler
from shared.config import EngineConfig
from shared.events import EventLog
from tests.fakes import make_sequence, rows, run_to_end, sample, total_tokens


def scheduler_of(*, batch: int = 8, budget: int = 16, chunk: int = 8) -> Scheduler:
    config = EngineConfig(max_batch_size=batch, prefill_budget_tokens=budget, prefill_chunk_size=chunk)
    return Scheduler(config, EventLog())


def test_a_long_prompt_is_cut_into_chunks_and_only_the_last_one_samples() -> None:
    scheduler = scheduler_of(chunk=8)
    scheduler.add(make_sequence(20, max_tokens=2, name="a"))
    plan = scheduler.plan()
    assert rows(plan) == [("a", 8)]
    assert not plan.items[0].is_sampled
    scheduler.apply(plan, sample(plan))
    assert run_to_end(scheduler) == [[("a", 8)], [("a", 4)], [("a", 1)]]


def test_one_step_holds_decodes_and_a_chunk() -> None:
    scheduler = scheduler_of(budget=16, chunk=8)
    for name in ("a", "b"):
        scheduler.add(make_sequence(3, name=name))
    plan = scheduler.plan()
    scheduler.apply(plan, sample(plan))
    scheduler.add(make_sequence(96, name="long"))
    assert rows(scheduler.plan()) == [("a", 1), ("b", 1), ("long", 8)]


def test_decodes_take_the_budget_first_and_a_chunk_gets_what_is_left() -> None:
    scheduler = scheduler_of(budget=5, chunk=8)
    for name in ("a", "b"):
        scheduler.add(make_sequence(2, name=name))
    plan = scheduler.plan()
    scheduler.apply(plan, sample(plan))
    scheduler.add(make_sequence(96, name="long"))
    assert rows(scheduler.plan()) == [("a", 1), ("b", 1), ("long", 3)]


def test_several_prompts_share_one_steps_budget_in_order_of_arrival() -> None:
    scheduler = scheduler_of(budget=16, chunk=8)
    for name, length in (("a", 5), ("b", 8), ("c", 20)):
        scheduler.add(make_sequence(length, name=name))
    assert rows(scheduler.plan()) == [("a", 5), ("b", 8), ("c", 3)]


def test_a_begun_prompt_goes_on_before_a_new_one_is_admitted() -> None:
    scheduler = scheduler_of(budget=8, chunk=8)
    scheduler.add(make_sequence(12, name="a"))
    plan = scheduler.plan()
    scheduler.apply(plan, sample(plan))
    scheduler.add(make_sequence(12, name="b"))
    assert rows(scheduler.plan()) == [("a", 4), ("b", 4)]


def test_no_prompt_starts_while_decodes_use_the_whole_budget() -> None:
    scheduler = scheduler_of(batch=4, budget=2, chunk=2)
    for name in ("a", "b", "c"):
        scheduler.add(make_sequence(1, max_tokens=3, name=name))
    assert run_to_end(scheduler) == [
        [("a", 1), ("b", 1)],
        [("a", 1), ("b", 1)],
        [("a", 1), ("b", 1)],
        [("c", 1)],
        [("c", 1)],
        [("c", 1)],
    ]


def test_a_budget_of_one_finishes_everything() -> None:
    scheduler = scheduler_of(batch=3, budget=1, chunk=5)
    for number in range(4):
        scheduler.add(make_sequence(7, max_tokens=3, name=f"s{number}"))
    history = run_to_end(scheduler)
    assert [total_tokens(history, f"s{number}") for number in range(4)] == [7 + 3 - 1] * 4


@pytest.mark.parametrize(
    ("batch", "budget", "chunk"), list(itertools.product([1, 3, 4], [1, 5, 7, 64], [1, 3, 8, 100]))
)
def test_sizes_that_do_not_divide_each_other_lose_no_token(batch: int, budget: int, chunk: int) -> None:
    scheduler = scheduler_of(batch=batch, budget=budget, chunk=chunk)
    lengths = {f"s{number}": length for number, length in enumerate([1, 13, 4, 29, 8])}
    for name, length in lengths.items():
        scheduler.add(make_sequence(length, max_tokens=6, name=name))
    history = run_to_end(scheduler)
    assert {name: total_tokens(history, name) for name in lengths} == {
        name: length + 6 - 1 for name, length in lengths.items()
    }
    for step in history:
        assert sum(num_tokens for _, num_tokens in step) <= budget
        assert max(num_tokens for _, num_tokens in step) <= chunk
