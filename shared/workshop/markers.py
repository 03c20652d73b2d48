"""Where an exercise's solution stands in a file, and the file without it. Torch-free.

    # BEGIN SOLUTION 4.1
    ...                      the lines that are the lesson
    # END SOLUTION

(The markers are nbgrader's.) What replaces the lines raises NotImplementedError, so that whoever runs into it is told.
"""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from shared.errors import SetupError

BEGIN = re.compile(r"^(\s*)# BEGIN SOLUTION (\d+\.\d+)\s*$")
END = re.compile(r"^\s*# END SOLUTION\s*$")
WIDTH = 110  # of a stub's comment lines


@dataclass(frozen=True, slots=True)
class Region:
    """A marked piece of a file. first, last: line numbers of the two markers, from 0. indent: of the first one."""

    number: str
    first: int
    last: int
    indent: str


def regions(source: str) -> list[Region]:
    """The marked pieces of a file, in order. Raises SetupError where markers are nested or do not match."""
    found: list[Region] = []
    opened: re.Match[str] | None = None
    start = 0
    for index, line in enumerate(source.splitlines()):
        if begin := BEGIN.match(line):
            if opened:
                raise SetupError(f"line {index + 1}: exercise {begin[2]} begins inside exercise {opened[2]}")
            opened, start = begin, index
        elif END.match(line):
            if not opened:
                raise SetupError(f"line {index + 1}: END SOLUTION without a BEGIN")
            found.append(Region(opened[2], start, index, opened[1]))
            opened = None
    if opened:
        raise SetupError(f"exercise {opened[2]} begins and does not end")
    return found


def solution(source: str, number: str) -> str:
    """The lines between an exercise's markers, at the left margin."""
    region = _find(source, number)
    return textwrap.dedent("\n".join(source.splitlines()[region.first + 1 : region.last])) + "\n"


def with_stub(source: str, number: str, task: str) -> str:
    """The file with an exercise's lines taken out and its task written in their place."""
    region = _find(source, number)
    lines = source.splitlines()
    lines[region.first : region.last + 1] = _stub(region, task)
    return "\n".join(lines) + "\n"


def is_stubbed(source: str, number: str) -> bool:
    return f'NotImplementedError("exercise {number}")' in source


def _find(source: str, number: str) -> Region:
    for region in regions(source):
        if region.number == number:
            return region
    raise SetupError(f"no lines are marked as the solution of exercise {number}")


def _stub(region: Region, task: str) -> Iterator[str]:
    for line in textwrap.wrap(f"EXERCISE {region.number}: {task}", WIDTH - len(region.indent)):
        yield f"{region.indent}# {line}"
    yield f'{region.indent}raise NotImplementedError("exercise {region.number}")'
