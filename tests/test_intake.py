"""Phase 2's intake: everybody is taken, in order, and nobody expires."""

from phase02_iteration_scheduling.intake import Intake
from tests.fakes import make_state


def test_first_in_first_out_up_to_so_many_sequences() -> None:
    intake = Intake()
    states = [make_state("a"), make_state("wide", num_sequences=3), make_state("b")]
    intake.put(states[:1])
    intake.put(states[1:], is_patient=True)
    assert len(intake) == 5
    assert intake.drain(0) == []
    assert intake.drain(2) == states[:2], "a request is never split"
    assert intake.drain(9) == states[2:]
    assert intake.drain(1) == []
    assert len(intake) == 0


def test_no_more_than_asked_for_are_drained() -> None:
    intake = Intake()
    states = [make_state(name) for name in "abc"]
    intake.put(states)
    assert [intake.drain(1) for _ in states] == [[state] for state in states]


def test_a_cancelled_request_is_gone_and_cancelling_again_says_so() -> None:
    intake = Intake()
    cancelled, other = make_state("cancelled"), make_state("other")
    intake.put([cancelled, other])
    assert cancelled in intake
    assert intake.cancel(cancelled) is True
    assert cancelled not in intake
    assert intake.cancel(cancelled) is False
    assert intake.expired() == []
    assert intake.drain(9) == [other]
