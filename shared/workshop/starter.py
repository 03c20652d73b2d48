"""Making a starter: the whole tree, with this phase's lessons taken out of it. Torch-free."""

from pathlib import Path

from shared.errors import SetupError
from shared.workshop.exercises import Exercise, exercises_of
from shared.workshop.markers import solution, with_stub
from shared.workshop.trees import ROOT, Notes, copy_tree, is_learners


def make_starter(phase: int, out: Path, source: Path = ROOT) -> list[Exercise]:
    """Write the starter of a phase to `out` and return what is open in it.

    Raises SetupError for a phase without exercises, and for a source that is a learner's tree itself.
    """
    open_exercises = exercises_of(phase)
    if not open_exercises:
        raise SetupError(f"phase {phase} has no exercises")
    if is_learners(source):
        raise SetupError(f"{source} is a starter itself; make the next one from the repository")
    copy_tree(out, source)
    notes = Notes(phase=phase)
    for exercise in open_exercises:
        path = out / exercise.file
        text = path.read_text(encoding="utf-8")
        notes.solutions[exercise.number] = solution(text, exercise.number)
        path.write_text(with_stub(text, exercise.number, exercise.task), encoding="utf-8")
    notes.save(out)
    return open_exercises
