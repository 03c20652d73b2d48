"""Phase 2's scheduler, without weights: joining and leaving between steps."""

from phase02_iteration_scheduling.scheduler import Scheduler
from shared.config import EngineConfig
from shared.events import EventLog
from shared.sequence import Status
from tests.fakes import make_sequence, rows, run_to_end, sample


def scheduler_of(max_batch_size: int) -> Scheduler:
    return Scheduler(EngineConfig(max_batch_size=max_batch_size), EventLog())


def test_a_new_sequence_runs_its_whole_prompt_then_one_token_a_step() -> None:
    scheduler = scheduler_of(4)
    scheduler.add(make_sequence(5, max_tokens=3, name="a"))
    assert run_to_end(scheduler) == [[("a", 5)], [("a", 1)], [("a", 1)]]


def test_a_sequence_joins_between_two_steps_of_another() -> None:
    scheduler = scheduler_of(4)
    scheduler.add(make_sequence(5, max_tokens=3, name="a"))
    plan = scheduler.plan()
    scheduler.apply(plan, sample(plan))
    scheduler.add(make_sequence(2, max_tokens=2, name="b"))
    assert run_to_end(scheduler) == [[("a", 1), ("b", 2)], [("a", 1), ("b", 1)]]


def test_a_finished_sequence_leaves_and_the_next_one_takes_its_place() -> None:
    scheduler = scheduler_of(2)
    for name, max_tokens in (("a", 1), ("b", 3), ("c", 2)):
        scheduler.add(make_sequence(3, max_tokens=max_tokens, name=name))
    assert run_to_end(scheduler) == [[("a", 3), ("b", 3)], [("b", 1), ("c", 3)], [("b", 1), ("c", 1)]]


def test_the_batch_never_exceeds_its_size_and_keeps_the_order_of_arrival() -> None:
    scheduler = scheduler_of(3)
    names = [f"s{number}" for number in range(10)]
    for number, name in enumerate(names):
        scheduler.add(make_sequence(2, max_tokens=1 + number % 4, name=name))
    history = run_to_end(scheduler)
    assert max(len(step) for step in history) == 3
    assert all([name for name, _ in step] == sorted((name for name, _ in step), key=names.index) for step in history)


def test_the_last_sampled_token_is_never_run() -> None:
    scheduler = scheduler_of(1)
    seq = make_sequence(4, max_tokens=5)
    scheduler.add(seq)
    run_to_end(scheduler)
    assert seq.num_computed_tokens == 4 + 5 - 1 == len(seq.token_ids) - 1


def test_abort_takes_a_sequence_out_of_either_list() -> None:
    scheduler = scheduler_of(1)
    running, waiting = make_sequence(2, name="running"), make_sequence(2, name="waiting")
    scheduler.add(running)
    scheduler.add(waiting)
    scheduler.plan()
    assert running.status is Status.RUNNING
    scheduler.abort(waiting)
    scheduler.abort(running)
    assert not scheduler.plan()
    assert (scheduler.stats().num_running, scheduler.stats().num_waiting) == (0, 0)


def test_free_slots_count_who_waits_as_well_as_who_runs() -> None:
    scheduler = scheduler_of(3)
    scheduler.add(make_sequence(2))
    scheduler.plan()
    scheduler.add(make_sequence(2))
    assert scheduler.num_free_slots() == 1
    scheduler.add(make_sequence(2))
    scheduler.add(make_sequence(2))
    assert scheduler.num_free_slots() == 0


def test_a_plan_prints_as_a_table() -> None:
    scheduler = scheduler_of(2)
    scheduler.add(make_sequence(5, name="a"))
    plan = scheduler.plan()
    scheduler.apply(plan, sample(plan))
    scheduler.add(make_sequence(3, name="b"))
    plan = scheduler.plan()
    assert rows(plan) == [("a", 1), ("b", 3)]
    assert [line.split()[:3] for line in str(plan).splitlines()] == [
        ["sequence", "kind", "tokens"],
        ["a", "decode", "1"],
        ["b", "prefill", "3"],
        ["2", "sequences,", "4"],
    ]
