"""The columns that a result can be shown in, and the table of some of them: one for the terminal and the READMEs."""

import io
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from shared.bench import cells
from shared.bench.results import Result, SystemResult
from shared.bench.summary import difference, quotient, rest, scaled, stored, tokens_per_second
from shared.errors import SetupError

WORDS = ("system", "workload")  # columns that are no numbers
USED, RESERVED = (quotient(f"{which}_slots_mean", "pool_slots") for which in ("used", "reserved"))
STEP_PARTS = ("whole_step", "linears", "head", "attention", "model_rest", "sampling", "engine_rest")


@dataclass(frozen=True, slots=True)
class Column:
    """header: may name the {base} of the ratios."""

    header: str
    cell: cells.Cell


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


def said_columns(result: Result, columns: Seq[str]) -> list[str]:
    """Those of the columns that say something of at least one system."""
    return [
        name
        for name in columns
        if any(COLUMNS[name].cell(result, system) != cells.UNDEFINED for system in result.systems)
    ]


def as_markdown(table: Table) -> str:
    table.box = box.MARKDOWN
    out = io.StringIO()
    Console(file=out, width=10_000, markup=False, highlight=False, color_system=None).print(table)
    return "\n".join(line for line in out.getvalue().splitlines() if line.strip())


COLUMNS: dict[str, Column] = {
    "system": Column("system", cells.label),
    "batch": Column("batch", cells.setting("max_batch_size")),
    "tok_s": Column("output tok/s", cells.throughput),
    "ratio": Column("ratio to {base} (min–max)", cells.ratio(tokens_per_second)),
    "lead": Column("{base} to this (min–max)", cells.lead),
    "ttft_p50": Column("TTFT p50 ms", cells.milliseconds("ttft_p50_s")),
    "ttft_p99": Column("TTFT p99 ms", cells.milliseconds("ttft_p99_s")),
    "tpot_p50": Column("TPOT p50 ms", cells.milliseconds("tpot_p50_s")),
    "itl_p99": Column("ITL p99 ms", cells.milliseconds("itl_p99_s")),
    "peak_rss": Column("peak RSS MB", cells.peak_rss),
    "exact": Column("exact", cells.exact),
    "chunk": Column("chunk", cells.setting("prefill_chunk_size")),
    "budget": Column("budget", cells.setting("prefill_budget_tokens")),
    "gap_before_p50": Column("gap p50 before ms", cells.milliseconds("gap_before_p50_s")),
    "gap_p50": Column("gap p50 ms", cells.milliseconds("gap_p50_s")),
    "gap_p99": Column("gap p99 ms", cells.milliseconds("gap_p99_s")),
    "gap_p99_ratio": Column("gap p99 to {base} (min–max)", cells.ratio(stored("gap_p99_s"))),
    "gap_max": Column("gap max ms", cells.milliseconds("gap_max_s")),
    "gap_max_ratio": Column("gap max to {base} (min–max)", cells.ratio(stored("gap_max_s"))),
    "late_ttft": Column("long prompt's TTFT ms", cells.milliseconds("late_ttft_s")),
    "late_ttft_ratio": Column("TTFT to {base} (min–max)", cells.ratio(stored("late_ttft_s"))),
    **{part: Column(f"{part.replace('_', ' ')} ms", cells.milliseconds(f"{part}_s")) for part in STEP_PARTS},
    "batch_building": Column("batch building ms", cells.milliseconds("batch_building_s")),
    "roofline": Column("roofline ms", cells.milliseconds("roofline_s")),
    "of_roofline": Column("of roofline %", cells.percent(quotient("roofline_s", "whole_step_s"))),
    "step": Column("ms per step (min–max)", cells.step_cost),
    "added": Column(
        "watching adds µs, median (min–max)", cells.median_spread(scaled(stored("added_s"), 1e6), digits=1)
    ),
    "added_mean": Column("mean (min–max)", cells.median_spread(scaled(stored("added_mean_s"), 1e6), digits=1)),
    "workload": Column("workload", cells.workload),
    "output_mean": Column("output tokens", cells.count(quotient("output_tokens", "num_jobs"))),
    "block_size": Column("block size", cells.setting("block_size")),
    "concurrent": Column("running at once (min–max)", cells.median_spread(stored("running_mean"), digits=1)),
    "peak": Column("at most", cells.count(stored("running_peak"))),
    "gain": Column("gain to {base} (min–max)", cells.gain),
    "waste": Column("waste %", cells.percent(rest(quotient("used_slots_mean", "allocated_slots_mean")))),
    "pool_kv": Column("K/V % of pool", cells.percent(USED)),
    "pool_empty": Column("empty % of pool", cells.percent(difference(RESERVED, USED))),
    "pool_free": Column("free % of pool", cells.percent(rest(RESERVED))),
    "preemptions": Column("preemptions", cells.count(stored("preemptions"))),
    "run_again": Column("run again %", cells.percent(rest(quotient("needed_tokens", "computed_tokens")))),
    "steps": Column("steps", cells.count(stored("steps"))),
    "at_full_length": Column(
        "fit at full length (min–max)", cells.median_spread(stored("num_at_full_length"), digits=0)
    ),
    "kv_peak": Column("KV blocks peak", cells.count(stored("kv_blocks_peak"))),
    "hit_rate": Column("prefix hit %", cells.percent(quotient("prefix_hit_tokens", "prefix_queried_tokens"))),
    "acceptance": Column("accepted %", cells.percent(quotient("accepted_tokens", "drafted_tokens"))),
    "peak_device": Column("peak device MB", cells.count(scaled(stored("peak_device_bytes"), 1e-6))),
    "finished": Column("finished", cells.exact),
    "recomputed": Column("run again, tokens", cells.count(stored("recomputed_tokens"))),
    "top1": Column("top-1 %", cells.percent(quotient("num_top1", "num_positions"), 2)),
    "clear": Column("clear differences", cells.count(stored("num_clear_differences"))),
    "kl": Column("KL mean", cells.scientific(stored("kl_mean"))),
    "kl_p99": Column("KL p99", cells.scientific(stored("kl_p99"))),
    "loss": Column("loss", cells.decimal(stored("loss_mean"), 4)),
    "positions": Column("positions", cells.count(stored("num_positions"))),
    "answered": Column("answered", cells.part_of("num_ok", "num_requests")),
    "rps": Column("answered/s", cells.decimal(stored("throughput_rps"), 2)),
    "goodput": Column("goodput/s", cells.decimal(stored("goodput_rps"), 2)),
    "good": Column("within SLO %", cells.percent(stored("good_share"))),
    "tpot_p99": Column("TPOT p99 ms", cells.milliseconds("tpot_p99_s")),
    "chunk_gap_p99": Column("gap between events p99 ms", cells.milliseconds("chunk_gap_p99_s")),
    "e2e_mean": Column("E2E mean ms", cells.milliseconds("e2e_mean_s")),
    "e2e_p50": Column("E2E p50 ms", cells.milliseconds("e2e_p50_s")),
    "e2e_p99": Column("E2E p99 ms", cells.milliseconds("e2e_p99_s")),
    "e2e_max": Column("E2E max ms", cells.milliseconds("e2e_max_s")),
    "from_send_mean": Column("from send, mean ms", cells.milliseconds("from_send_mean_s")),
}
INTERFERENCE = ("gap_before_p50", "gap_p50", "gap_p99", "gap_max", "late_ttft")
INTERFERENCE_RATIOS = ("gap_p99_ratio", "gap_max_ratio", "late_ttft_ratio")
CAPACITY = ("concurrent", "peak", "gain", "waste", "pool_kv", "pool_empty", "pool_free", "preemptions", "run_again")
LOAD = (
    "answered",
    "rps",
    "tok_s",
    "ttft_p50",
    "ttft_p99",
    "tpot_p50",
    "tpot_p99",
    "itl_p99",
    "e2e_p50",
    "goodput",
    "good",
)
COUNTED = ("kv_peak", "hit_rate", "acceptance", "preemptions")
TIMES = ("ttft_p50", "ttft_p99", "tpot_p50", "itl_p99")
DEFAULT_COLUMNS: dict[str, tuple[str, ...]] = {
    "offline": ("system", "batch", "tok_s", "ratio", *TIMES, "peak_rss", "exact"),
    "interference": ("system", *INTERFERENCE, "exact"),
    "step-cost": ("system", "step"),
    "watching": ("system", "step", "added", "added_mean"),
    "capacity": ("workload", "system", "concurrent", "gain", "waste", "preemptions"),
    "capacity-sweep": ("workload", "block_size", "concurrent", "gain", "waste", "preemptions"),
    "step-parts": ("system", *STEP_PARTS),
    "step-time": ("system", "whole_step", "attention", "linears", "head", "roofline", "of_roofline"),
    "peers": ("system", "batch", "tok_s", "lead", *TIMES, "peak_rss", "exact"),
    "moves": ("system", "tok_s", "ratio", "tpot_p50", "peak_rss", "exact"),
    "who-waits": ("system", "tok_s", "ttft_p50", "ttft_p99", "tpot_p50", "exact"),
    "preemption": ("system", "finished", "tok_s", "ratio", "ttft_p50", "kv_peak", "preemptions", "recomputed"),
    "speculation": ("system", "tok_s", "ratio", "tpot_p50", "acceptance", "exact"),
    "accuracy": ("system", "positions", "top1", "clear", "kl", "kl_p99", "loss"),
    "load": ("system", *LOAD),
    "load-comparison": ("system", "answered", "ttft_p50", "e2e_mean", "e2e_p99", "e2e_max", "goodput", "good"),
    "serving": ("system", *LOAD),
}
OFFLINE = ("system", "batch", "tok_s", "ratio", *TIMES, "peak_rss", *COUNTED, "exact")
ON_SCREEN = DEFAULT_COLUMNS | {  # there is more room than in a README
    "offline": OFFLINE,
    "step-parts": ("system", *STEP_PARTS, "batch_building", "roofline", "of_roofline"),
    "step-time": ("system", *STEP_PARTS, "batch_building", "roofline", "of_roofline"),
    "interference": ("system", "chunk", "budget", *INTERFERENCE, *INTERFERENCE_RATIOS, "exact"),
    "capacity": ("workload", "system", *CAPACITY, "steps", "at_full_length"),
    "capacity-sweep": ("workload", "block_size", *CAPACITY, "at_full_length"),
}
