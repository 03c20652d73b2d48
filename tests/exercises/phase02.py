"""Phase 2: the step, joining, leaving."""

from typing import Any

from shared.step import SampledToken
from tests.exercises.kit import add, config, decoding_sequence, expect, grades
from tests.fakes import make_sequence, rows


def scheduler_of(max_batch_size: int) -> Any:
    from phase02_iteration_scheduling.scheduler import Scheduler
    from shared.events import EventLog

    return Scheduler(config(max_batch_size=max_batch_size), EventLog())


class Parts:
    """A scheduler and a runner that write down who was called with what."""

    def __init__(self) -> None:
        from shared.engine import StepEngine
        from shared.events import EventLog

        self.log: list[object] = []
        engine: Any = object.__new__(StepEngine)
        engine.scheduler = engine.runner = self
        engine.events = EventLog()
        engine._take_in = lambda: self.log.append("take in")
        engine._hand_out = lambda plan, outputs, _: self.log.append(("hand out", plan, outputs))
        engine.thread = type("T", (), {"check_may_step": lambda _: None})()
        engine._one_step = _nothing
        self.result = engine.step()

    def plan(self) -> str:
        self.log.append("plan")
        return "the plan"

    def execute(self, plan: object) -> str:
        self.log.append(("execute", plan))
        return "what was sampled"

    def apply(self, plan: object, sampled: object) -> list[str]:
        self.log.append(("apply", plan, sampled))
        return ["the outputs"]


def _nothing() -> Any:
    from contextlib import nullcontext

    return nullcontext()


@grades("2.1")
def a_step_plans_executes_and_applies() -> None:
    expect(
        Parts().log,
        [
            "take in",
            "plan",
            ("execute", "the plan"),
            ("apply", "the plan", "what was sampled"),
            ("hand out", "the plan", ["the outputs"]),
        ],
        when="one step of the engine",
        because="plan -> execute -> apply, then hand out: each takes what the one before it made.",
    )


@grades("2.1")
def a_step_returns_what_it_added() -> None:
    expect(
        Parts().result, ["the outputs"], when="engine.step()", because="Who steps by hand reads the outputs from it."
    )


@grades("2.2")
def a_new_sequence_runs_its_whole_prompt() -> None:
    scheduler = scheduler_of(4)
    add(scheduler, make_sequence(5, name="a"))
    expect(rows(scheduler.plan()), [("a", 5)], when="one prompt of 5 tokens waits", because="All 5 are uncomputed.")


@grades("2.2")
def who_is_past_the_prompt_runs_one_token_beside_a_newcomer() -> None:
    scheduler = scheduler_of(4)
    scheduler._admit(decoding_sequence("a"))
    add(scheduler, make_sequence(3, name="b"))
    expect(
        rows(scheduler.plan()),
        [("a", 1), ("b", 3)],
        when="a decodes, a prompt of 3 tokens (b) waits, room for both",
        because="Rows are what is uncomputed, in order of arrival; b joins before the rows are made.",
    )


@grades("2.2")
def no_more_run_than_max_batch_size_and_the_oldest_goes_first() -> None:
    scheduler = scheduler_of(2)
    add(scheduler, *(make_sequence(2, name=name) for name in "abc"))
    expect(
        [name for name, _ in rows(scheduler.plan())],
        ["a", "b"],
        when="a, b, c wait, max_batch_size is 2",
        because="Take from the left of self.waiting, while there is room.",
    )
    expect(len(scheduler.waiting), 1, when="c still waits", because="Who finds no room stays in line.")


@grades("2.3")
def progress_moves_by_what_was_run() -> None:
    scheduler, seq = scheduler_of(4), decoding_sequence("a")
    apply_once(scheduler, seq)
    expect(
        (seq.num_computed_tokens, len(seq.token_ids)),
        (3, 4),
        when="2 prompt tokens had K/V, 1 token was run, 1 was sampled: (num_computed_tokens, tokens)",
        because="The sampled token has no K/V: exactly one token is uncomputed afterwards.",
    )


@grades("2.3")
def a_row_without_a_token_moves_on_all_the_same() -> None:
    scheduler, seq = scheduler_of(4), make_sequence(8, name="a")
    scheduler._admit(seq)
    from shared.step import ScheduledSequence, StepPlan

    outputs = scheduler.apply(StepPlan([ScheduledSequence.next_tokens(seq, 3)]), [[]])
    expect(
        (seq.num_computed_tokens, outputs),
        (3, []),
        when="3 of 8 prompt tokens were run, nothing was sampled: (num_computed_tokens, outputs)",
        because="From phase 4 on a row may stop short of the last known token.",
    )


@grades("2.3")
def the_finished_leave_and_the_others_stay() -> None:
    scheduler = scheduler_of(4)
    seqs = [decoding_sequence(name, max_tokens=2 if name in "ab" else 9) for name in "abcd"]
    apply_once(scheduler, *seqs)
    expect(
        [seq.name for seq in scheduler.running],
        ["c", "d"],
        when="a and b got their last token, c and d not",
        because="Removing from a list while walking over it skips a neighbour; build a new one.",
    )


@grades("2.3")
def each_token_comes_out_once_in_the_order_of_the_plan() -> None:
    scheduler = scheduler_of(4)
    outputs = apply_once(scheduler, decoding_sequence("a"), decoding_sequence("b"))
    expect(
        [(output.request_id, output.token_ids) for output in outputs],
        [("a", [50]), ("b", [51])],
        when="50 was sampled for a, 51 for b",
        because="sampled[row] belongs to plan.items[row].",
    )


def apply_once(scheduler: Any, *seqs: Any) -> list[Any]:
    from shared.step import ScheduledSequence, StepPlan

    for seq in seqs:
        scheduler._admit(seq)
    plan = StepPlan([ScheduledSequence.next_tokens(seq, 1) for seq in seqs])
    return scheduler.apply(plan, [[SampledToken(50 + row)] for row, _ in enumerate(seqs)])
