"""Phase 3: a line with a length, and a wait with an end."""

from typing import Any

from tests.exercises.kit import expect, grades
from tests.fakes import make_state


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def queue_of(capacity: int, timeout_s: float | None, clock: Clock) -> Any:
    from phase03_request_queue.request_queue import RequestQueue

    return RequestQueue(capacity, timeout_s, clock)


def waiting(queue: Any) -> list[str]:
    return [state.request_id for state in queue._waiting]


def refuses(queue: Any, states: list[Any]) -> bool:
    from shared.errors import QueueFull

    try:
        queue.put(states)
    except QueueFull:
        return True
    return False


@grades("3.1")
def requests_wait_in_the_order_in_which_they_came() -> None:
    queue = queue_of(10, None, Clock())
    for name in "abc":
        queue.put([make_state(name)])
    expect(waiting(queue), ["a", "b", "c"], when="a, b, c are put", because="self._waiting is an ordered set: a dict.")


@grades("3.1")
def a_full_queue_refuses_at_once() -> None:
    queue = queue_of(2, None, Clock())
    queue.put([make_state("a")])
    expect(
        refuses(queue, [make_state("b")]), False, when="capacity 2, one waits, b comes", because="There is room for b."
    )
    expect(
        refuses(queue, [make_state("c")]),
        True,
        when="capacity 2, two wait, c comes: was QueueFull raised?",
        because="Refused early, a client can go elsewhere while there is time.",
    )


@grades("3.1")
def it_is_all_or_none() -> None:
    queue = queue_of(2, 5.0, Clock())
    queue.put([make_state("a")])
    refuses(queue, [make_state("b"), make_state("c")])
    expect(
        (waiting(queue), len(queue._deadlines)),
        (["a"], 1),
        when="capacity 2, a waits, b and c come together: (who waits, deadlines)",
        because="Decide before you change anything: nobody of those who were refused may stay behind.",
    )


@grades("3.1")
def a_patient_caller_has_neither_limit_nor_deadline() -> None:
    queue = queue_of(1, 5.0, Clock())
    queue.put([make_state(name) for name in "abc"], is_patient=True)
    expect(
        (waiting(queue), len(queue._deadlines)),
        (["a", "b", "c"], 0),
        when="capacity 1, three come and are patient: (who waits, deadlines)",
        because="engine.generate(...) waits for as long as it takes.",
    )


@grades("3.1")
def a_deadline_is_the_arrival_plus_the_timeout() -> None:
    clock = Clock()
    queue = queue_of(10, 5.0, clock)
    queue.put([make_state("a")])
    clock.now += 1
    queue.put([make_state("b")])
    expect(
        [(when, state.request_id) for when, state in queue._deadlines],
        [(105.0, "a"), (106.0, "b")],
        when="timeout 5 s; a comes at 100, b at 101",
        because="(when, who), soonest first, by self._clock().",
    )
    endless = queue_of(10, None, clock)
    endless.put([make_state("a")])
    expect(len(endless._deadlines), 0, when="timeout_s is None", because="Then nobody has a deadline.")


def due_queue(*names: str) -> tuple[Any, list[Any], Clock]:
    """Requests with deadlines at 105, 106, ...; put there by hand."""
    clock = Clock()
    queue = queue_of(10, 5.0, clock)
    states = [make_state(name) for name in names]
    queue._waiting = dict.fromkeys(states)
    queue._deadlines.extend((105.0 + place, state) for place, state in enumerate(states))
    return queue, states, clock


def expired(queue: Any) -> list[str]:
    return [state.request_id for state in queue.expired()]


@grades("3.2")
def nobody_expires_before_the_deadline_and_everybody_after_it() -> None:
    queue, _, clock = due_queue("a", "b", "c")
    got = []
    for now in (104.9, 106.5, 107.5):
        clock.now = now
        got.append(expired(queue))
    expect(
        got,
        [[], ["a", "b"], ["c"]],
        when="deadlines at 105 (a), 106 (b), 107 (c); asked at 104.9, 106.5 and 107.5",
        because="Everybody who is due by now, each once, the soonest first.",
    )


@grades("3.2")
def who_was_drained_but_never_ran_expires_too() -> None:
    queue, states, clock = due_queue("a")
    del queue._waiting[states[0]]
    clock.now = 200.0
    expect(
        expired(queue),
        ["a"],
        when="a left the queue, but the scheduler could not start it; its deadline has passed",
        because="It has waited just as long. What counts is whether a step ran it (first_scheduled_time).",
    )


@grades("3.2")
def who_runs_or_is_done_does_not_expire() -> None:
    queue, (runs, done, _), clock = due_queue("runs", "done", "waits")
    runs.metrics.first_scheduled_time = 101.0
    done.end("abort")
    clock.now = 200.0
    expect(
        expired(queue),
        ["waits"],
        when="one runs, one is finished, one waits; all deadlines have passed",
        because="A 504 for a request that is being answered would be a lie.",
    )


@grades("3.2")
def who_has_begun_is_forgotten_and_hides_nobody() -> None:
    queue, (runs, _), clock = due_queue("runs", "late")
    runs.metrics.first_scheduled_time = 101.0
    clock.now = 106.5
    expect(
        expired(queue),
        ["late"],
        when="the head of the line runs, the next one is late",
        because="Take the head off, go on.",
    )
    queue, (runs, _), clock = due_queue("runs", "early")
    runs.metrics.first_scheduled_time = 101.0
    expired(queue)
    expect(
        len(queue._deadlines),
        1,
        when="the head runs and nobody is due: deadlines that are kept",
        because="Those who have begun are taken off at once, or the record grows with every request served.",
    )
