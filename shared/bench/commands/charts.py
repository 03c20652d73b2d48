"""`charts`: draw the published results."""

import argparse
import os
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import TYPE_CHECKING

from shared.bench.code_files import REPOSITORY
from shared.bench.keeping import err, out
from shared.bench.results import Result, read_results
from shared.bench.tables import PUBLISHED
from shared.errors import SetupError

if TYPE_CHECKING:
    from shared.bench.charts.catalogue import Chart

FOLDER = "charts"
EXPLANATION = """Each chart answers one question, in a light and a dark version, from the committed JSON in
shared/bench/published and nothing else. One whose data has not been measured is skipped, and the command that would
measure it is shown. The files are the same bytes each time, with one version of matplotlib."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", metavar="NAME,NAME", help="default: all; --list shows the names")
    parser.add_argument("--list", action="store_true", help="show which charts there are, and draw nothing")
    parser.add_argument("--results", metavar="DIR", help="the JSON; default: shared/bench/published")
    parser.add_argument("--out", metavar="DIR", help="default: the folder charts beside the JSON")
    parser.add_argument("--png", metavar="DIR", help="also as pictures for a look, which are not committed")


def run(args: argparse.Namespace, _argv: Seq[str]) -> int:
    from shared.bench.charts.catalogue import CHARTS  # imports matplotlib

    wanted = args.only.split(",") if args.only else [chart.name for chart in CHARTS]
    if unknown := set(wanted) - {chart.name for chart in CHARTS}:
        raise SetupError(f"--only {unknown.pop()}: there is no such chart; charts: {', '.join(c.name for c in CHARTS)}")
    folder = Path(args.results or REPOSITORY / PUBLISHED)
    if not folder.is_dir():
        raise SetupError(f"--results {folder}: there is no such folder")
    results = read_results(folder)
    for chart in (chart for chart in CHARTS if chart.name in wanted):
        found = chart.find(results)
        if not found:
            out.print(f"{chart.name}: not measured yet: {chart.command}", soft_wrap=True)
        elif args.list:
            out.print(f"{chart.name}: from {chart.command}", soft_wrap=True)
        else:
            _draw(chart, found, Path(args.out or folder / FOLDER), args.png)
    return 0


def _draw(chart: "Chart", found: list[Result], folder: Path, png: str | None) -> None:
    from shared.bench.charts.theme import THEMES, drawn_in

    for theme in THEMES:
        path = folder / f"{chart.name}-{theme.name}.svg"
        _write(path, chart.svg(found, theme))
        if png:
            Path(png).mkdir(parents=True, exist_ok=True)
            with drawn_in(theme):
                chart.draw(found, theme).savefig(Path(png, f"{chart.name}-{theme.name}.png"), dpi=110)
    err.print(f"{chart.name}: drawn in {folder}, light and dark")


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".tmp")
        unfinished.write_bytes(content)
        os.replace(unfinished, path)
    except OSError as error:
        raise SetupError(f"{path}: the chart cannot be written ({error.strerror}): give another --out") from error
