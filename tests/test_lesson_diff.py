"""What `python -m shared.lesson_diff` prints: what is new, what was rewritten, and of what is gone the name alone."""

from shared.lesson_diff import ROOT, FileDiff, file_diffs, report
from shared.registry import phase_by_number


def test_a_rewritten_method_is_printed_and_one_that_is_the_same_is_not() -> None:
    text = "\n".join(report(file_diffs(phase_by_number(4))))
    assert "Scheduler._next_to_prefill: 0 -> 8 lines" in text
    assert "+def _next_to_prefill(" in text
    assert "the same: imports, Scheduler.add," in text
    assert "def apply(" not in text


def test_a_new_file_is_named_with_its_length_and_not_printed() -> None:
    lines = list(report([FileDiff(ROOT / "phase03_request_queue" / "request_queue.py", None)]))
    assert len(lines) == 1
    assert lines[0].startswith("new      phase03_request_queue/request_queue.py (")


def test_what_is_gone_is_named_and_not_printed() -> None:
    before = ROOT / "phase01_sequential" / "turnstile.py"
    now = ROOT / "phase02_iteration_scheduling" / "intake.py"
    text = "\n".join(report([FileDiff(now, before)]))
    assert "gone: Turnstile.__init__, Turnstile.join," in text
    assert "-def join(" not in text
    assert "+def put(" in text
