"""Trees of the repository: where we are, and copies to work in. Torch-free.

A learner's tree is a whole copy with a folder `.workshop` in it: what was taken out, and which hints were read.
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

from shared.errors import SetupError

ROOT = Path(__file__).resolve().parent.parent.parent
NOTES = ".workshop"
LEFT_OUT = {"build", "dist", "site", "results"}  # and hidden folders, and caches


@dataclass
class Notes:
    """What the tool remembers of a learner's tree.

    phase: whose exercises are open in it, None in a mutation lab. mutant: the planted fault's number, in a lab.
    solutions: exercise -> the lines that were taken out. hints: exercise -> how many were read.
    """

    phase: int | None = None
    mutant: int | None = None
    solutions: dict[str, str] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, tree: Path) -> "Notes":
        """Raises SetupError where the tree is not a learner's, or its notes cannot be read."""
        path = tree / NOTES / "notes.json"
        if not path.exists():
            raise SetupError(
                f"{tree} is no learner's tree; make one: python -m shared.workshop make-starter 4 --out DIR"
            )
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise SetupError(f"{path} cannot be read ({error}); make the tree again with make-starter") from error

    def save(self, tree: Path) -> None:
        (tree / NOTES).mkdir(exist_ok=True)
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False)
        (tree / NOTES / "notes.json").write_text(text + "\n", encoding="utf-8")


def is_learners(tree: Path) -> bool:
    return (tree / NOTES / "notes.json").exists()


def find_tree(given: str | None) -> Path:
    """The tree to work on: as given, else the learner's tree or the repository that we stand in.

    Raises SetupError where there is none, so that a check never grades some other, solved tree by mistake.
    """
    start = Path(given or os.getcwd()).resolve()
    for folder in (start, *start.parents) if given is None else (start,):
        if (folder / "phase01_sequential").is_dir() and (folder / "shared" / "workshop").is_dir():
            return folder
    raise SetupError(f"{start} is no tree of this repository; go into your starter, or name it: --tree DIR")


def copy_tree(out: Path, source: Path = ROOT, *, leave_out: frozenset[str] = frozenset()) -> None:
    """Copy the repository's files. leave_out: paths from the root, of folders or files.

    Raises SetupError where `out` has files already, or cannot be written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SetupError(f"--out {out} is there already and not empty; name a new folder")
    if out.resolve().is_relative_to(source.resolve()):
        raise SetupError(f"--out {out} lies inside {source}; name a folder beside it")

    def ignored(folder: str, names: list[str]) -> set[str]:
        inner = Path(folder).relative_to(source)
        return {name for name in names if _is_left_out(inner / name) or str(inner / name) in leave_out}

    try:
        shutil.copytree(source, out, ignore=ignored, dirs_exist_ok=True)
    except OSError as error:
        raise SetupError(f"cannot write to {out}: {error}") from error


def _is_left_out(path: Path) -> bool:
    name = path.name
    is_top = len(path.parts) == 1
    return (
        (name.startswith(".") and name not in (".gitignore", ".ci"))
        or name in ("__pycache__", "notes.json.tmp")
        or name.endswith((".egg-info", ".pyc"))
        or (is_top and name in LEFT_OUT)
    )
