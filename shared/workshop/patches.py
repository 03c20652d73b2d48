"""Applying a small unified diff by its text alone: line numbers may have moved, the lines may not. Torch-free."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shared.errors import SetupError


@dataclass(frozen=True, slots=True)
class Hunk:
    """In `file`, the lines `before` become `after`."""

    file: str
    before: str
    after: str


def hunks(patch: str) -> Iterator[Hunk]:
    """The hunks of a unified diff. Text before the first `---` line is for people."""
    file, before, after = "", [], []  # type: ignore[var-annotated]
    for line in [*patch.splitlines(), "@@ end"]:
        if line.startswith("+++ "):
            file = line.removeprefix("+++ ").removeprefix("b/").strip()
        elif line.startswith("@@"):
            if before or after:
                yield Hunk(file, "\n".join(before) + "\n", "\n".join(after) + "\n")
            before, after = [], []
        elif file and line[:1] in (" ", "-", "+", ""):
            if line[:1] != "+":
                before.append(line[1:])
            if line[:1] != "-":
                after.append(line[1:])


def apply(patch: str, tree: Path) -> list[str]:
    """Change the tree's files and return their names. Raises SetupError, and changes nothing, where it does not fit."""
    changed: dict[str, str] = {}  # file -> its text
    for hunk in hunks(patch):
        path = tree / hunk.file
        text = changed.get(hunk.file) or path.read_text(encoding="utf-8")
        if text.count(hunk.before) != 1:
            found = text.count(hunk.before)
            raise SetupError(f"the patch does not fit {hunk.file}: its lines are there {found} times, not once")
        changed[hunk.file] = text.replace(hunk.before, hunk.after)
    for file, text in changed.items():
        (tree / file).write_text(text, encoding="utf-8")
    return list(changed)
