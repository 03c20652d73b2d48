"""Tables in READMEs, made from the published results alone.

    <!-- bench:offline workload=A columns=system,tok_s,ratio systems=hf,phase02 -->
    (written by `python -m shared.bench tables`)
    <!-- /bench -->

A marker stands at the beginning of a line. Of the results that fit its options, the newest is shown, below the chart
that the option `chart` names, once it is drawn.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from shared.bench.columns import DEFAULT_COLUMNS, as_markdown, make_table
from shared.bench.results import Result, SystemResult
from shared.bench.source_line import source_line
from shared.bench.summary import system_named
from shared.errors import SetupError

OPENING = re.compile(r"^<!-- bench:", re.MULTILINE)
BLOCK = re.compile(r"^(<!-- bench:([\w-]+)([^\n]*?) -->\n)(.*?)(^<!-- /bench -->$)", re.MULTILINE | re.DOTALL)
COMMANDS = {
    "capacity-sweep": "capacity",
    "load-comparison": "load --serve 12 --compare-loops 3",
}  # kind -> what measures it, where that has another name
OPTIONS = ("workload", "dtype", "model", "file", "columns", "systems", "chart")
OF_THE_PAGE = ("columns", "systems", "chart")  # and not of the result
Pictures = Callable[[str], str | None]  # a chart's name -> the lines that show it; None where it is not drawn


@dataclass(frozen=True, slots=True)
class Marker:
    """What a README asks for. options: of OPTIONS, as written."""

    kind: str
    options: Mapping[str, str]

    @classmethod
    def parse(cls, kind: str, text: str) -> "Marker":
        """Raises SetupError for a kind or an option that there is not."""
        if kind not in DEFAULT_COLUMNS:
            raise SetupError(f"there is no table of kind {kind!r}; kinds: {', '.join(DEFAULT_COLUMNS)}")
        options = dict(word.partition("=")[::2] for word in text.split())
        if unknown := [name for name, value in options.items() if name not in OPTIONS or not value]:
            raise SetupError(f"option {unknown[0]!r} of a marker is not known; options: {', '.join(OPTIONS)}")
        return cls(kind, options)

    def __str__(self) -> str:
        return " ".join([self.kind, *(f"{name}={value}" for name, value in self.options.items())])

    @property
    def columns(self) -> list[str]:
        return self._list("columns") or list(DEFAULT_COLUMNS[self.kind])

    def systems(self, result: Result) -> list[SystemResult]:
        return [system_named(result, name) for name in self._list("systems")] or result.systems

    def fits(self, name: str, result: Result) -> bool:
        known = {"file": name.removesuffix(".json")}
        if result.workload is not None:
            known["workload"] = result.workload.key
        if result.model is not None:
            known |= {"dtype": result.model.dtype, "model": result.model.name}
        wanted = {option: value for option, value in self.options.items() if option not in OF_THE_PAGE}
        has_systems = set(self._list("systems")) <= {system.name for system in result.systems}
        return result.kind == self.kind and has_systems and all(known.get(o) == value for o, value in wanted.items())

    def _list(self, option: str) -> list[str]:
        return self.options[option].split(",") if option in self.options else []


@dataclass(frozen=True, slots=True)
class Block:
    """A marker pair in a README. line: of the opening one. body: what stands between, should: what belongs there."""

    line: int
    marker: Marker
    body: str
    should: str
    result_name: str | None  # the published file that is shown


def no_pictures(_chart: str) -> None:
    return None


def blocks(text: str, results: Mapping[str, Result], pictures: Pictures = no_pictures) -> Iterator[Block]:
    """Every marker pair of a text. results: file name -> result, oldest first.

    Raises SetupError, with the line, for a marker that is not closed or not understood.
    """
    closed = {match.start(): match for match in BLOCK.finditer(text)}
    for opening in OPENING.finditer(text):
        line = text.count("\n", 0, opening.start()) + 1
        match = closed.get(opening.start())
        if match is None or OPENING.search(match[4]):
            raise SetupError(f"line {line}: the marker is not closed by a line <!-- /bench -->")
        try:
            yield _block(line, Marker.parse(match[2], match[3]), match[4], results, pictures)
        except SetupError as error:
            raise SetupError(f"line {line}: {error}") from None


def with_tables(text: str, results: Mapping[str, Result], pictures: Pictures = no_pictures) -> str:
    """The text with every table as the results have it. Raises SetupError as `blocks` does."""
    should = {block.line: block.should for block in blocks(text, results, pictures)}

    def replaced(match: re.Match[str]) -> str:
        return match[1] + should[text.count("\n", 0, match.start()) + 1] + match[5]

    return BLOCK.sub(replaced, text)


def _block(line: int, marker: Marker, body: str, results: Mapping[str, Result], pictures: Pictures) -> Block:
    fitting = [name for name, result in results.items() if marker.fits(name, result)]
    if not fitting:
        return Block(line, marker, body, f"\n{_nothing_yet(marker)}\n\n", None)
    name = fitting[-1]
    result = results[name]
    table = as_markdown(make_table(result, marker.columns, marker.systems(result)))
    picture = pictures(marker.options["chart"]) if "chart" in marker.options else None
    above = f"\n{picture}\n" if picture else ""
    return Block(line, marker, body, f"{above}\n{table}\n\n{source_line(name, result)}\n\n", name)


def _nothing_yet(marker: Marker) -> str:
    command = COMMANDS.get(marker.kind, marker.kind)
    has_choice = marker.kind == "offline" and "workload" in marker.options
    workload = f" --workloads {marker.options['workload']}" if has_choice else ""
    return f"Not measured yet: `python -m shared.bench {command}{workload} --publish`"
