"""Which files a system's speed depends on, and which of them mean something else since a commit."""

import ast
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from pathlib import Path

from shared.bench.host import git

REPOSITORY = Path(__file__).resolve().parents[2]


def code_of(repository: Path, entries: Seq[str]) -> list[str]:
    """The files of the repository that some entry files import, directly or not, the entries included.

    Compiled sources (*.c, *.cpp, *.cu) count where they lie beside one of them. Names are relative to the repository.
    """
    found: set[str] = set()
    pending = list(entries)
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += _imported(repository, repository / name)
    folders = {(repository / name).parent for name in found}
    compiled = {path.relative_to(repository).as_posix() for folder in folders for path in folder.glob("*.c*")}
    return sorted(found | compiled)


def changed_since(repository: Path, commit: str | None, files: Seq[str]) -> list[str] | None:
    """The files whose code differs between the commit and the working tree; comments, docstrings and layout aside.

    None where git cannot tell: no repository, or a clone too shallow to have the commit.
    """
    if commit is None or git(repository, "cat-file", "-e", f"{commit}^{{commit}}") is None:
        return None
    differing = git(repository, "diff", "--name-only", "--relative", commit, "--", *files) if files else ""
    return [name for name in (differing or "").splitlines() if _differs(repository, commit, name)]


def meaning(source: str) -> str:
    """Python code without comments, docstrings and layout; anything else as it is."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return source
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return ast.dump(tree)


def _differs(repository: Path, commit: str, name: str) -> bool:
    path = repository / name
    before = git(repository, "show", f"{commit}:./{name}")
    now = path.read_text(encoding="utf-8").strip() if path.exists() else None
    return before is None or now is None or meaning(before) != meaning(now)


def _imported(repository: Path, path: Path) -> Iterator[str]:
    if path.suffix != ".py" or not path.exists():
        return
    for module in _imported_modules(ast.parse(path.read_text(encoding="utf-8"))):
        name = module.replace(".", "/") + ".py"
        if (repository / name).is_file():
            yield name


def _imported_modules(tree: ast.Module) -> Iterator[str]:
    """Every name that may be a module's: `from a import b` can mean a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
