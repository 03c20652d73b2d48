"""The columns that a result can be shown in, and the table of some of them: one for the terminal and the READMEs."""

import io
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from shared.bench.results import Result, SystemResult
from shared.bench.summary import base_of, median_of, pair_ratios, stored, tokens_per_second, values
from shared.bench.workloads import num_of
from shared.errors import SetupError

UNDEFINED = "–"
Cell = Callable[[Result, SystemResult], str]


@dataclass(frozen=True, slots=True)
class Column:
    """header: may name the {base} of the ratios."""

    header: str
    cell: Cell


def make_table(result: Result, columns: Seq[str], systems: Seq[SystemResult]) -> Table:
    """A row per system. Raises SetupError for a column that there is not."""
    if unknown := [name for name in columns if name not in COLUMNS]:
        raise SetupError(f"there is no column {unknown[0]!r}; columns: {', '.join(COLUMNS)}")
    table = Table()
    for name in columns:
        table.add_column(
            COLUMNS[name].header.format(base=result.base),
            justify="left" if name == "system" else "right",
            overflow="fold",
        )
    for system in systems:
        table.add_row(*(COLUMNS[name].cell(result, system) for name in columns))
    return table


def as_markdown(table: Table) -> str:
    table.box = box.MARKDOWN
    out = io.StringIO()
    Console(file=out, width=10_000, markup=False, highlight=False, color_system=None).print(table)
    return "\n".join(line for line in out.getvalue().splitlines() if line.strip())


def spread(of_repeats: Seq[float], digits: int) -> str:
    """Median (min–max)."""
    if not of_repeats:
        return UNDEFINED
    low, middle, high = min(of_repeats), median(of_repeats), max(of_repeats)
    return f"{middle:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def _label(result: Result, system: SystemResult) -> str:
    workload = result.workload
    if workload is None or system.num_requests in (None, workload.num_requests):
        return system.label
    return f"{system.label} ({num_of(system.num_requests or 0, workload.num_requests)})"


def _batch(_result: Result, system: SystemResult) -> str:
    return str(system.settings.get("max_batch_size", UNDEFINED))


def _throughput(_result: Result, system: SystemResult) -> str:
    value = median_of(system, tokens_per_second)
    return UNDEFINED if value is None else f"{value:,.1f}"


def _ratio(result: Result, system: SystemResult) -> str:
    base = base_of(result)
    if base is None or system is base:
        return UNDEFINED if base is None else "1"
    return spread(pair_ratios(system, base), digits=2)


def _milliseconds(figure: str) -> Cell:
    def cell(_result: Result, system: SystemResult) -> str:
        seconds = median_of(system, stored(figure))
        if seconds is None:
            return UNDEFINED
        return f"{1000 * seconds:,.0f}" if seconds >= 0.1 else f"{1000 * seconds:.1f}"

    return cell


def _peak_rss(_result: Result, system: SystemResult) -> str:
    peaks = values(system, stored("peak_rss_bytes"))
    return f"{max(peaks) / 1e6:,.0f}" if peaks else UNDEFINED


def _exact(_result: Result, system: SystemResult) -> str:
    """Of the worst repeat."""
    exact = values(system, stored("num_exact"))
    return f"{min(exact):.0f}/{system.num_requests}" if exact else UNDEFINED


def _step_cost(_result: Result, system: SystemResult) -> str:
    return spread([1000 * seconds for seconds in values(system, stored("step_s"))], digits=3)


COLUMNS: dict[str, Column] = {
    "system": Column("system", _label),
    "batch": Column("batch", _batch),
    "tok_s": Column("output tok/s", _throughput),
    "ratio": Column("ratio to {base} (min–max)", _ratio),
    "ttft_p50": Column("TTFT p50 ms", _milliseconds("ttft_p50_s")),
    "ttft_p99": Column("TTFT p99 ms", _milliseconds("ttft_p99_s")),
    "tpot_p50": Column("TPOT p50 ms", _milliseconds("tpot_p50_s")),
    "itl_p99": Column("ITL p99 ms", _milliseconds("itl_p99_s")),
    "peak_rss": Column("peak RSS MB", _peak_rss),
    "exact": Column("exact", _exact),
    "step": Column("ms per step (min–max)", _step_cost),
}
OFFLINE_COLUMNS = tuple(name for name in COLUMNS if name != "step")
DEFAULT_COLUMNS: dict[str, tuple[str, ...]] = {"offline": OFFLINE_COLUMNS, "step-cost": ("system", "step")}
