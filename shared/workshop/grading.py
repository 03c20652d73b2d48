"""Grading a tree from outside: a process of its own, whose path begins with that tree. Torch-free."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence as Seq
from pathlib import Path

from shared.errors import SetupError
from shared.workshop.exercises import Exercise
from shared.workshop.verdict import Verdict

DEADLINE_S = 120  # imports included, which take their time on a slow disk


def grade_tree(tree: Path, exercises: Seq[Exercise]) -> dict[str, list[Verdict]]:
    """Exercise -> its verdicts. Raises SetupError where grading itself breaks down."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "verdicts.json"
        numbers = [exercise.number for exercise in exercises]
        done = run_in_tree(tree, ["-m", "shared.workshop.grade", str(tree), str(result), *numbers])
        if not result.exists():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise SetupError(f"the checks could not run in {tree}: {last}")
        verdicts = [Verdict(**record) for record in json.loads(result.read_text(encoding="utf-8"))]
    return {number: [verdict for verdict in verdicts if verdict.number == number] for number in numbers}


def run_in_tree(tree: Path, arguments: Seq[str], deadline_s: float = DEADLINE_S) -> subprocess.CompletedProcess[str]:
    """Run this Python in a tree, whose modules come before any that are installed."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONSAFEPATH", "PYTHONHOME")}
    environment["PYTHONPATH"] = str(tree)
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    try:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=deadline_s,
        )
    except subprocess.TimeoutExpired as late:
        raise SetupError(f"the checks did not end within {deadline_s:.0f} s; is there a loop without an end?") from late
