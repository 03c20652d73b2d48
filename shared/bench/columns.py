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
from shared.bench.summary import (
    Figure,
    base_beside,
    base_of,
    difference,
    median_of,
    pair_ratios,
    quotient,
    rest,
    stored,
    tokens_per_second,
    values,
)
from shared.bench.workloads import num_of
from shared.errors import SetupError

UNDEFINED = "–"
WORDS = ("system", "workload")  # columns that are no numbers
USED, RESERVED = (quotient(f"{which}_slots_mean", "pool_slots") for which in ("used", "reserved"))
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
            justify="left" if name in WORDS else "right",
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


def _workload(_result: Result, system: SystemResult) -> str:
    return system.workload or UNDEFINED


def _setting(name: str) -> Cell:
    return lambda _result, system: str(system.settings.get(name, UNDEFINED))


def _throughput(_result: Result, system: SystemResult) -> str:
    value = median_of(system, tokens_per_second)
    return UNDEFINED if value is None else f"{value:,.1f}"


def _ratio(figure: Figure) -> Cell:
    def cell(result: Result, system: SystemResult) -> str:
        base = base_of(result)
        if base is None or system is base:
            return UNDEFINED if base is None else "1"
        return spread(pair_ratios(system, base, figure), digits=2)

    return cell


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


STEP_PARTS = ("whole_step", "linears", "head", "attention", "model_rest", "sampling", "engine_rest")


def _spread(figure: Figure, digits: int) -> Cell:
    return lambda _result, system: spread(values(system, figure), digits)


def _gain(result: Result, system: SystemResult) -> str:
    """In sequences that run at once, draw by draw."""
    base = base_beside(result, system)
    return "1" if system is base else spread(pair_ratios(system, base, stored("running_mean")), digits=2)


def _count(figure: Figure) -> Cell:
    def cell(_result: Result, system: SystemResult) -> str:
        value = median_of(system, figure)
        return UNDEFINED if value is None else f"{value:,.0f}"

    return cell


def _percent(figure: Figure) -> Cell:
    def cell(_result: Result, system: SystemResult) -> str:
        share = median_of(system, figure)
        return UNDEFINED if share is None else f"{100 * share:.1f}"

    return cell


COLUMNS: dict[str, Column] = {
    "system": Column("system", _label),
    "batch": Column("batch", _setting("max_batch_size")),
    "tok_s": Column("output tok/s", _throughput),
    "ratio": Column("ratio to {base} (min–max)", _ratio(tokens_per_second)),
    "ttft_p50": Column("TTFT p50 ms", _milliseconds("ttft_p50_s")),
    "ttft_p99": Column("TTFT p99 ms", _milliseconds("ttft_p99_s")),
    "tpot_p50": Column("TPOT p50 ms", _milliseconds("tpot_p50_s")),
    "itl_p99": Column("ITL p99 ms", _milliseconds("itl_p99_s")),
    "peak_rss": Column("peak RSS MB", _peak_rss),
    "exact": Column("exact", _exact),
    "chunk": Column("chunk", _setting("prefill_chunk_size")),
    "budget": Column("budget", _setting("prefill_budget_tokens")),
    "gap_before_p50": Column("gap p50 before ms", _milliseconds("gap_before_p50_s")),
    "gap_p50": Column("gap p50 ms", _milliseconds("gap_p50_s")),
    "gap_p99": Column("gap p99 ms", _milliseconds("gap_p99_s")),
    "gap_p99_ratio": Column("gap p99 to {base} (min–max)", _ratio(stored("gap_p99_s"))),
    "gap_max": Column("gap max ms", _milliseconds("gap_max_s")),
    "gap_max_ratio": Column("gap max to {base} (min–max)", _ratio(stored("gap_max_s"))),
    "late_ttft": Column("long prompt's TTFT ms", _milliseconds("late_ttft_s")),
    "late_ttft_ratio": Column("TTFT to {base} (min–max)", _ratio(stored("late_ttft_s"))),
    **{part: Column(f"{part.replace('_', ' ')} ms", _milliseconds(f"{part}_s")) for part in STEP_PARTS},
    "step": Column("ms per step (min–max)", _step_cost),
    "workload": Column("workload", _workload),
    "output_mean": Column("output tokens", _count(quotient("output_tokens", "num_jobs"))),
    "block_size": Column("block size", _setting("block_size")),
    "concurrent": Column("running at once (min–max)", _spread(stored("running_mean"), digits=1)),
    "peak": Column("at most", _count(stored("running_peak"))),
    "gain": Column("gain to {base} (min–max)", _gain),
    "waste": Column("waste %", _percent(rest(quotient("used_slots_mean", "allocated_slots_mean")))),
    "pool_kv": Column("K/V % of pool", _percent(USED)),
    "pool_empty": Column("empty % of pool", _percent(difference(RESERVED, USED))),
    "pool_free": Column("free % of pool", _percent(rest(RESERVED))),
    "preemptions": Column("preemptions", _count(stored("preemptions"))),
    "run_again": Column("run again %", _percent(rest(quotient("needed_tokens", "computed_tokens")))),
    "steps": Column("steps", _count(stored("steps"))),
    "at_full_length": Column("fit at full length (min–max)", _spread(stored("num_at_full_length"), digits=0)),
}
INTERFERENCE = ("gap_before_p50", "gap_p50", "gap_p99", "gap_max", "late_ttft")
INTERFERENCE_RATIOS = ("gap_p99_ratio", "gap_max_ratio", "late_ttft_ratio")
CAPACITY = ("concurrent", "peak", "gain", "waste", "pool_kv", "pool_empty", "pool_free", "preemptions", "run_again")
TIMES = ("ttft_p50", "ttft_p99", "tpot_p50", "itl_p99")
DEFAULT_COLUMNS: dict[str, tuple[str, ...]] = {
    "offline": ("system", "batch", "tok_s", "ratio", *TIMES, "peak_rss", "exact"),
    "interference": ("system", *INTERFERENCE, "exact"),
    "step-cost": ("system", "step"),
    "capacity": ("workload", "system", "concurrent", "gain", "waste", "preemptions"),
    "capacity-sweep": ("workload", "block_size", "concurrent", "gain", "waste", "preemptions"),
    "step-parts": ("system", *STEP_PARTS),
}
ON_SCREEN = DEFAULT_COLUMNS | {  # there is more room than in a README
    "interference": ("system", "chunk", "budget", *INTERFERENCE, *INTERFERENCE_RATIOS, "exact"),
    "capacity": ("workload", "system", *CAPACITY, "steps", "at_full_length"),
    "capacity-sweep": ("workload", "block_size", *CAPACITY, "at_full_length"),
}
