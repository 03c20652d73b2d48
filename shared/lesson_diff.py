"""What a phase changed: its new files, the methods it rewrote, and the diff of just those.

    python -m shared.lesson_diff 4            # or 04
    python -m shared.lesson_diff 4 --against 2

Methods are compared as syntax trees, so that comments and line breaks do not count.
"""

import argparse
import ast
import difflib
import sys
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path

from shared.registry import PHASES, Phase, phase_by_number

ROOT = Path(__file__).resolve().parent.parent
IMPORTS = "imports"
EXERCISE_MARKERS = ("# BEGIN SOLUTION ", "# END SOLUTION")
CHAPTER_FILES = {"__init__.py", "__main__.py"}  # every phase has its own; they teach nothing


@dataclass(frozen=True, slots=True)
class FileDiff:
    """One file of a phase beside the file of the same name in an earlier phase, or beside nothing."""

    path: Path
    before: Path | None

    @property
    def num_lines(self) -> int:
        return len(self.path.read_text(encoding="utf-8").splitlines())

    def methods(self) -> dict[str, tuple[str | None, str | None]]:
        """Name ("Class.method" or "function") -> (source before, source now), None where there is none."""
        before = definitions(self.before) if self.before else {}
        now = definitions(self.path)
        return {name: (before.get(name), now.get(name)) for name in dict.fromkeys([*now, *before])}

    def changed(self) -> list[str]:
        """Names of what is new, gone, or different as a syntax tree."""
        return [name for name, (before, now) in self.methods().items() if not same_code(before, now)]


def definitions(path: Path) -> dict[str, str]:
    """Name -> source of every function and method of a file, and of its imports."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    imports = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    found = {IMPORTS: "\n".join(imports)}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = _source(source, node)
        elif isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    found[f"{node.name}.{member.name}"] = _source(source, member)
    return found


def _source(source: str, node: ast.FunctionDef) -> str:
    """With its decorators, at the left margin; where an exercise begins and ends is no code."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    lines = source.splitlines()[first - 1 : node.end_lineno]
    return "\n".join(line[node.col_offset :] for line in lines if not line.lstrip().startswith(EXERCISE_MARKERS))


def same_code(before: str | None, now: str | None) -> bool:
    if before is None or now is None:
        return before is now
    return ast.dump(ast.parse(before)) == ast.dump(ast.parse(now))


def file_diffs(phase: Phase, against: Phase | None = None) -> list[FileDiff]:
    """The phase's files, each beside its latest namesake among the phases before (or in `against`)."""
    earlier = [against] if against else [p for p in reversed(PHASES) if p.number < phase.number]
    files = sorted((ROOT / phase.package).rglob("*.py"))
    return [FileDiff(path, _namesake(path, phase, earlier)) for path in files if path.name not in CHAPTER_FILES]


def _namesake(path: Path, phase: Phase, earlier: Seq[Phase]) -> Path | None:
    inner = path.relative_to(ROOT / phase.package)
    candidates = [ROOT / other.package / inner for other in earlier]
    return next((candidate for candidate in candidates if candidate.exists()), None)


def report(diffs: Seq[FileDiff]) -> Iterator[str]:
    """The lines to print: new files first, then what changed in the others."""
    for diff in diffs:
        name = diff.path.relative_to(ROOT)
        if diff.before is None:
            yield f"new      {name} ({diff.num_lines} lines)"
    for diff in diffs:
        if diff.before is not None:
            yield from _changes(diff)


def _changes(diff: FileDiff) -> Iterator[str]:
    methods, changed = diff.methods(), diff.changed()
    kept = [name for name in methods if name not in changed]
    gone = [name for name in changed if methods[name][1] is None]  # named, and not printed: there is nothing to read
    written = [name for name in changed if name not in gone]
    yield f"changed  {diff.path.relative_to(ROOT)} against {diff.before.relative_to(ROOT) if diff.before else None}"
    for name in written:
        before, now = (len(code.splitlines()) if code else 0 for code in methods[name])
        yield f"           {name}: {before} -> {now} lines"
    if gone:
        yield f"           gone: {', '.join(gone)}"
    yield f"           the same: {', '.join(kept) or 'nothing'}"
    for name in written:
        yield ""
        yield from _unified(name, *methods[name])
    yield ""


def _unified(name: str, before: str | None, now: str | None) -> Iterator[str]:
    lines = difflib.unified_diff((before or "").splitlines(), (now or "").splitlines(), name, name, n=99, lineterm="")
    return (line for line in lines if not line.startswith(("+++", "@@")))


def main(argv: Seq[str] | None = None) -> None:
    from shared.cli import exit_code

    parser = argparse.ArgumentParser(prog="python -m shared.lesson_diff", description="What a phase changed.")
    parser.add_argument("phase", type=int, help="its number: " + ", ".join(str(phase.number) for phase in PHASES))
    parser.add_argument(
        "--against", type=int, metavar="N", help="compare with this phase (default: the latest namesakes)"
    )
    args = parser.parse_args(argv)
    sys.exit(exit_code(lambda: _run(args)))


def _run(args: argparse.Namespace) -> None:
    phase = phase_by_number(args.phase)
    against = phase_by_number(args.against) if args.against else None
    print(f"{phase.label}\n")
    print("\n".join(report(file_diffs(phase, against))))


if __name__ == "__main__":
    main()
