"""What an exercise is, and where to find one by its number. Torch-free."""

from dataclasses import dataclass
from functools import cached_property

from shared.errors import SetupError
from shared.registry import phase_by_number


@dataclass(frozen=True)
class Exercise:
    """A few lines that are the heart of a phase.

    number: "4.1". file: from the root of the tree. task: what is to be written, as it stands in the stub.
    read: the section to read again when it goes wrong. hints: a direction, the shape, almost the code.
    """

    number: str
    title: str
    file: str
    task: str
    read: str
    hints: tuple[str, str, str]

    @cached_property
    def phase(self) -> int:
        return int(self.number.split(".")[0])

    @property
    def module(self) -> str:
        """Its file as Python imports it."""
        return self.file.removesuffix(".py").replace("/", ".")


def exercises() -> tuple[Exercise, ...]:
    """In the order of the phases."""
    from shared.workshop import memory_exercises, scheduling_exercises

    return scheduling_exercises.EXERCISES + memory_exercises.EXERCISES


def exercises_of(phase: int) -> list[Exercise]:
    """Raises SetupError for a phase that there is none of."""
    phase_by_number(phase)
    return [exercise for exercise in exercises() if exercise.phase == phase]


def exercise_by_number(number: str) -> Exercise:
    """Raises SetupError, listing what there is."""
    for exercise in exercises():
        if exercise.number == number:
            return exercise
    known = ", ".join(exercise.number for exercise in exercises())
    raise SetupError(f"there is no exercise {number}; exercises: {known}")
