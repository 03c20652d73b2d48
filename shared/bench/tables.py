"""`python -m shared.bench tables`: write the READMEs' tables, or check that nobody has edited them.

A table whose code has changed since is no fault: it is listed, for whoever decides whether to measure again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shared.bench.code_files import changed_since, code_of
from shared.bench.markers import Block, blocks, with_tables
from shared.bench.results import Result, read_results
from shared.errors import SetupError

PUBLISHED = Path("shared/bench/published")  # relative to the repository
PATTERNS = ("README.md", "phase*/README.md", "shared/**/README.md")


@dataclass(frozen=True, slots=True)
class Page:
    """A README with at least one marker. name: relative to the repository."""

    path: Path
    name: str
    text: str
    should: str
    blocks: list[Block]

    @property
    def wrong(self) -> list[Block]:
        return [block for block in self.blocks if block.body != block.should]


def read_pages(repository: Path, results: Mapping[str, Result]) -> list[Page]:
    """Raises SetupError, with file and line, for a marker that is not understood."""
    paths = [path for pattern in PATTERNS for path in sorted(repository.glob(pattern))]
    pages = [_page(path, path.relative_to(repository).as_posix(), results) for path in paths]
    return [page for page in pages if page.blocks]


def outdated(repository: Path, pages: list[Page], results: Mapping[str, Result]) -> list[str]:
    """A line for each shown result that was measured before its systems' code changed, or beside a commit."""
    shown = sorted({block.result_name for page in pages for block in page.blocks if block.result_name})
    return [line for name in shown for line in _complaints(repository, name, results[name])]


def update(repository: Path, *, check: bool) -> tuple[list[str], list[str]]:
    """What was wrong in the READMEs, now mended unless `check`; and what is measured at an older commit."""
    results = read_results(repository / PUBLISHED)
    pages = read_pages(repository, results)
    wrong = [f"{page.name}:{block.line}: bench:{block.marker}" for page in pages for block in page.wrong]
    if not check:
        for page in pages:
            if page.text != page.should:
                page.path.write_text(page.should, encoding="utf-8")
    return wrong, outdated(repository, pages, results)


def _page(path: Path, name: str, results: Mapping[str, Result]) -> Page:
    text = path.read_text(encoding="utf-8")
    try:
        return Page(path, name, text, with_tables(text, results), list(blocks(text, results)))
    except SetupError as error:
        raise SetupError(f"{name}, {error}") from None


def _complaints(repository: Path, name: str, result: Result) -> list[str]:
    origin = result.provenance
    commit = (origin.commit or "no commit")[:9]
    if origin.is_dirty:
        return [f"{name}: measured with changes that {commit} does not have"]
    changed = {
        system.name: changed_since(repository, origin.commit, code_of(repository, system.code))
        for system in result.systems
    }
    if any(files is None for files in changed.values()):
        return [f"{name}: cannot tell whether it is up to date: this clone does not have {commit}"]
    return [
        f"{name}: {system} was measured at an older commit ({commit}); changed since: {', '.join(files)}"
        for system, files in changed.items()
        if files
    ]
