"""`python -m shared.bench tables`: write the READMEs' tables, or check that nobody has edited them.

A table whose code has changed since is no fault: it is listed, for whoever decides whether to measure again.
"""

import os
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path

from shared.bench.code_files import changed_since, code_of
from shared.bench.markers import Block, blocks, with_tables
from shared.bench.results import Result, read_results
from shared.errors import SetupError

PUBLISHED = Path("shared/bench/published")  # relative to the repository
CHARTS = PUBLISHED / "charts"
NUM_NAMED = 3  # systems or files, in a note
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
    pages = [_page(path, repository, results) for path in paths]
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


def _page(path: Path, repository: Path, results: Mapping[str, Result]) -> Page:
    name, text = path.relative_to(repository).as_posix(), path.read_text(encoding="utf-8")

    def pictures(chart: str) -> str | None:
        return _picture(chart, repository / CHARTS, path.parent)

    try:
        should = with_tables(text, results, pictures)
        return Page(path, name, text, should, list(blocks(text, results, pictures)))
    except SetupError as error:
        raise SetupError(f"{name}, {error}") from None


def _picture(chart: str, folder: Path, here: Path) -> str | None:
    """The two versions of a chart, for a reader's light or dark page; None where it is not drawn (yet)."""
    light, dark = (folder / f"{chart}-{theme}.svg" for theme in ("light", "dark"))
    if not (light.exists() and dark.exists()):
        return None
    light_url, dark_url = (Path(os.path.relpath(path, here)).as_posix() for path in (light, dark))
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{dark_url}">\n'
        f'<img alt="Chart: {chart}, the numbers of the table below" src="{light_url}"></picture>'
    )


def _complaints(repository: Path, name: str, result: Result) -> list[str]:
    """One line at most: who is concerned, and the first of the files."""
    origin = result.provenance
    commit = (origin.commit or "no commit")[:9]
    if origin.is_dirty:
        return [f"{name}: measured with changes that {commit} does not have"]
    entries = dict.fromkeys(tuple(system.code) for system in result.systems)
    changed = {entry: changed_since(repository, origin.commit, code_of(repository, entry)) for entry in entries}
    if any(files is None for files in changed.values()):
        return [f"{name}: cannot tell whether it is up to date: this clone does not have {commit}"]
    old = [system.name for system in result.systems if changed[tuple(system.code)]]
    files = sorted({file for of_entry in changed.values() for file in of_entry or ()})
    concerned = "all" if len(old) == len(result.systems) else _first(old)
    return [f"{name}: older ({commit}) than the code of {concerned}; changed since: {_first(files)}"] if old else []


def _first(names: Seq[str]) -> str:
    rest = len(names) - NUM_NAMED
    return ", ".join(names[:NUM_NAMED]) + (f" and {rest} more" if rest > 0 else "")
