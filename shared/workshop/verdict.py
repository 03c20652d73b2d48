"""What a check found, and how it is told. Torch-free."""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from shared.workshop.exercises import Exercise

MARKS = {"ok": "ok  ", "wrong": "NO  ", "error": "NO  ", "open": "open", "skipped": "-   "}


@dataclass(frozen=True, slots=True)
class Verdict:
    """status: "ok", "wrong" (another result), "error" (it raised), "open" (the stub is still there),
    "skipped" (one before it did not end).

    told: when, expected, got, because; or raised, where, line.
    """

    number: str
    sentence: str
    status: str
    told: dict[str, str] = field(default_factory=dict)


def state_of(verdicts: Seq[Verdict]) -> str:
    """ "solved", "open" or "not yet", for an exercise as a whole."""
    statuses = {verdict.status for verdict in verdicts}
    if statuses <= {"ok"}:
        return "solved"
    return "open" if statuses == {"open"} else "not yet"


def report(exercise: Exercise, verdicts: Seq[Verdict], command: str = "python -m shared.workshop") -> Iterator[str]:
    """Every check by its sentence, and the first one that went wrong in full: one thing at a time.

    command: how this tool is called here.
    """
    yield f"{exercise.number} {exercise.title} · {exercise.file}"
    state = state_of(verdicts)
    if state == "open":
        yield f'  open: replace the line `raise NotImplementedError("exercise {exercise.number}")`. It is to do this:'
        yield from (f"    {verdict.sentence}" for verdict in verdicts)
        yield f"  Read first: {exercise.read}"
        return
    is_told = False
    for verdict in verdicts:
        yield f"  {MARKS[verdict.status]}  {verdict.sentence}"
        if verdict.status in ("wrong", "error") and not is_told:
            is_told = True
            yield from (f"        {line}" for line in _explained(verdict))
    if state == "solved":
        yield "  solved"
    else:
        yield f"  Read again: {exercise.read}"
        yield f"  Stuck? {command} hint {exercise.number}"


def _explained(verdict: Verdict) -> Iterator[str]:
    told = verdict.told
    if "because" in told:
        yield told["when"]
        yield f"expected  {told['expected']}"
        yield f"got       {told['got']}"
        yield told["because"]
        return
    yield told["raised"]
    if "where" in told:
        yield f"at {told['where']}: {told['line']}"
