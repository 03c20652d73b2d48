"""The graded side of a check: runs in a process of its own, in which the learner's tree is the only one.

    python -m shared.workshop.grade TREE RESULT 4.1 4.2

Writes a JSON list of verdicts to RESULT. Not for people; they call `python -m shared.workshop check 4.1`.
"""

import importlib
import importlib.util
import json
import linecache
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shared.workshop.exercises import Exercise, exercise_by_number
from shared.workshop.markers import is_stubbed
from shared.workshop.verdict import Verdict

SECONDS = 5  # for one exercise's checks, imports aside


class TooLong(BaseException):
    """Raised where the code is when the time is up; no `except Exception` swallows it."""


def main(argv: list[str]) -> None:
    tree, result, numbers = Path(argv[0]), Path(argv[1]), argv[2:]
    verdicts = [verdict for number in numbers for verdict in grade(exercise_by_number(number), tree)]
    result.write_text(json.dumps([asdict(verdict) for verdict in verdicts]), encoding="utf-8")


def grade(exercise: Exercise, tree: Path) -> Iterator[Verdict]:
    """One verdict per check, in the order to read them."""
    try:
        check_tree(exercise, tree)
        checks = _checks(exercise)
        is_open = is_stubbed((tree / exercise.file).read_text(encoding="utf-8"), exercise.number)
        if not is_open:
            importlib.import_module(exercise.module)
    except Exception as error:
        yield Verdict(exercise.number, "its file can be imported", "error", _of_error(error, tree))
        return
    status = ""
    for check in checks:
        told: dict[str, Any] = {}
        if status in ("late", "skipped"):  # the others would not end either
            status = "skipped"
        else:
            status, told = ("open", {}) if is_open else _run(check, tree)
        yield Verdict(exercise.number, check.__name__.replace("_", " "), "error" if status == "late" else status, told)


def check_tree(exercise: Exercise, tree: Path) -> None:
    """Raises RuntimeError if what would be graded is not the learner's file: a solved tree passes every check."""
    for name in ("shared", "tests", exercise.module):
        spec = importlib.util.find_spec(name)
        where = Path(spec.origin).resolve() if spec and spec.origin else None
        if where is None or not where.is_relative_to(tree.resolve()):
            raise RuntimeError(f"{name} would come from {where}, and not from {tree}: this would grade another tree")


def _checks(exercise: Exercise) -> list[Callable[[], None]]:
    importlib.import_module(f"tests.exercises.phase{exercise.phase:02d}")
    from tests.exercises.kit import CHECKS

    return CHECKS[exercise.number]


def _run(check: Callable[[], None], tree: Path) -> tuple[str, dict[str, Any]]:
    from tests.exercises.kit import Wrong

    try:
        with _limited(SECONDS):
            check()
    except Wrong as wrong:
        told = {"when": wrong.when, "expected": repr(wrong.expected), "got": repr(wrong.got), "because": wrong.because}
        return "wrong", told
    except NotImplementedError as stub:
        return "error", {"raised": f"{stub} is not solved yet, and this one needs it"}
    except TooLong as error:
        told = _of_error(error, tree)
        return "late", told | {"raised": f"still running after {SECONDS} s: a loop that never ends?"}
    except Exception as error:
        return "error", _of_error(error, tree)
    return "ok", {}


def _of_error(error: BaseException, tree: Path) -> dict[str, Any]:
    """What was raised, and the last line of the tree's own code (checks left out) that it passed through."""
    told = {"raised": f"{type(error).__name__}: {error}"}
    if isinstance(error, SyntaxError):
        return told | {"where": f"{error.filename}, line {error.lineno}", "line": (error.text or "").strip()}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename).resolve()
        if path.is_relative_to(tree.resolve()) and "workshop" not in path.parts and "tests" not in path.parts:
            line = linecache.getline(frame.filename, frame.lineno or 0).strip()
            return told | {"where": f"{path.relative_to(tree.resolve())}, line {frame.lineno}", "line": line}
    return told


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    """Raises TooLong in the code that runs then. (Not on Windows, which has no such signal.)"""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_: object) -> None:
        raise TooLong

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
