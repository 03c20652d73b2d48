"""Phase 3's queue, without an engine: order, capacity, deadline, cancellation."""

import threading

import pytest

from phase03_request_queue.request_queue import RequestQueue
from shared.errors import QueueFull
from tests.fakes import make_state


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_first_in_first_out() -> None:
    queue = RequestQueue(10, None)
    states = [make_state(f"r{number}") for number in range(5)]
    for state in states:
        queue.put([state])
    assert queue.drain(2) + queue.drain(10) == states
    assert queue.drain(1) == []


def test_drain_counts_sequences_and_never_splits_a_request() -> None:
    queue = RequestQueue(10, None)
    wide, narrow = make_state("wide", num_sequences=3), make_state("narrow")
    queue.put([wide, narrow])
    assert len(queue) == 4
    assert queue.drain(2) == [wide]
    assert queue.drain(0) == []
    assert len(queue) == 1


def test_a_full_queue_refuses_at_once_and_keeps_what_it_has() -> None:
    queue = RequestQueue(2, None)
    first, second = make_state("a"), make_state("b")
    queue.put([first])
    with pytest.raises(QueueFull, match="at most 2 requests may wait"):
        queue.put([make_state("c"), make_state("d")])
    queue.put([second])
    with pytest.raises(QueueFull) as refused:
        queue.put([make_state("e")])
    assert refused.value.retry_after_s > 0
    assert queue.drain(10) == [first, second]


def test_a_patient_caller_is_never_refused_and_never_expires() -> None:
    clock = Clock()
    queue = RequestQueue(1, 0.5, clock)
    states = [make_state(f"r{number}") for number in range(3)]
    queue.put(states, is_patient=True)
    clock.now += 60
    assert queue.expired() == []
    assert queue.drain(10) == states


def test_who_waits_past_the_deadline_expires_once_and_in_order() -> None:
    clock = Clock()
    queue = RequestQueue(10, 0.5, clock)
    early, late = make_state("early"), make_state("late")
    queue.put([early])
    clock.now += 0.3
    queue.put([late])
    assert queue.expired() == []
    clock.now += 0.3
    assert queue.expired() == [early]
    clock.now += 0.3
    assert queue.expired() == [late]
    assert queue.expired() == []


def test_who_was_drained_but_never_run_expires_too_and_who_runs_does_not() -> None:
    clock = Clock()
    queue = RequestQueue(10, 0.5, clock)
    running, held_up = make_state("running"), make_state("held up")
    queue.put([running, held_up])
    queue.drain(2)
    running.metrics.first_scheduled_time = clock.now
    clock.now += 1
    assert queue.expired() == [held_up]


def test_a_cancelled_request_is_neither_drained_nor_expired() -> None:
    clock = Clock()
    queue = RequestQueue(10, 0.5, clock)
    cancelled, other = make_state("cancelled"), make_state("other")
    queue.put([cancelled, other])
    assert cancelled in queue
    assert queue.cancel(cancelled)
    assert cancelled not in queue
    assert not queue.cancel(cancelled)
    cancelled.end("abort")
    assert queue.drain(10) == [other]
    other.metrics.first_scheduled_time = clock.now
    clock.now += 1
    assert queue.expired() == []


def test_the_record_of_deadlines_does_not_grow_with_requests_served() -> None:
    queue = RequestQueue(10, 3600.0)
    for number in range(1000):
        state = make_state(f"r{number}")
        queue.put([state])
        queue.drain(1)
        state.metrics.first_scheduled_time = 1.0
        queue.expired()
    assert len(queue._deadlines) <= 1


def test_threads_that_put_and_drain_lose_nothing() -> None:
    queue = RequestQueue(100_000, 60.0)
    drained: list[str] = []

    def put_many(thread: int) -> None:
        for number in range(500):
            queue.put([make_state(f"{thread}-{number}")])

    threads = [threading.Thread(target=put_many, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or len(queue):
        drained += [state.request_id for state in queue.drain(3)]
    assert sorted(drained) == sorted(f"{thread}-{number}" for thread in range(4) for number in range(500))
    for thread in range(4):
        own = [name for name in drained if name.startswith(f"{thread}-")]
        assert own == [f"{thread}-{number}" for number in range(500)], "each client's own order is kept"


def test_the_deadline_itself_is_too_late() -> None:
    clock = Clock()
    queue = RequestQueue(10, 0.5, clock)
    state = make_state("a")
    queue.put([state])
    clock.now += 0.5
    assert queue.expired() == [state]
