"""Charts of memory: what the pool holds by how it is promised, how many sequences that makes, and a pool too small."""

from statistics import median

from matplotlib.figure import Figure

from shared.bench.charts.theme import ROW, Theme, beside, fill, make_room, name_rows, new_figure
from shared.bench.results import Result, SystemResult
from shared.bench.summary import (
    base_beside,
    difference,
    median_of,
    pair_ratios,
    quotient,
    rest,
    stored,
    tokens_per_second,
    values,
)

RUNNING = stored("running_mean")
USED, RESERVED = (quotient(f"{which}_slots_mean", "pool_slots") for which in ("used", "reserved"))
PARTS = (
    (USED, "used: K/V"),
    (difference(RESERVED, USED), "reserved, and empty: wasted"),
    (rest(RESERVED), "free"),
)
PHASES = {"worst_case": "phase 6", "on_demand": "phase 9"}  # whose allocator and scheduler that is


def draw_memory(result: Result, theme: Theme) -> Figure:
    """The whole pool, three parts of it for each system."""
    systems = result.systems
    figure, (plot,) = new_figure("What is the memory filled with?", result, _height(systems))
    for row, system in enumerate(systems):
        left = 0.0
        for number, (part, what) in enumerate(PARTS):
            share = 100 * (median_of(system, part) or 0.0)
            style = fill(theme, (0, 2, 4)[number]) | {"hatch": ("", "///", "")[number]}
            plot.barh(row, share, left=left, height=0.68, label=what if not row else None, **style)
            left += share
        beside(plot, 100, row, memory_text(system))
    plot.set_xlim(0, 101)
    plot.set_xticks(range(0, 101, 20))
    plot.set_xlabel("% of the pool's slots, mean over time")
    name_rows(plot, _names(systems))
    figure.legend(loc="outside upper right", ncols=3, fontsize=8)
    make_room(figure, plot)
    return figure


def memory_text(system: SystemResult) -> str:
    used, empty = (100 * (median_of(system, part) or 0.0) for part, _ in PARTS[:2])
    return f"{used:.0f} % K/V, {empty:.0f} % empty"


def draw_capacity(result: Result, theme: Theme) -> Figure:
    systems = result.systems
    num_slots = values(systems[0], stored("pool_slots"))[0]
    question = f"How many sequences run at once in {num_slots:,.0f} slots?"
    figure, (plot,) = new_figure(question, result, _height(systems))
    for row, system in enumerate(systems):
        draws = values(system, RUNNING)
        middle = median(draws)
        number = 1 if system is base_beside(result, system) else (0 if system.name.endswith("on_demand") else 3)
        plot.barh(row, middle, height=0.68, **fill(theme, number))
        plot.errorbar(middle, row, xerr=[[middle - min(draws)], [max(draws) - middle]], color=theme.ink, capsize=3)
        beside(plot, max(draws), row, capacity_text(result, system))
    plot.set_xlim(left=0)
    plot.set_xlabel("sequences at once, mean over time; whiskers: smallest and largest draw")
    name_rows(plot, _names(systems))
    make_room(figure, plot)
    return figure


def capacity_text(result: Result, system: SystemResult) -> str:
    """How many, and the gain."""
    base, running = base_beside(result, system), f"{median_of(system, RUNNING):.1f}"
    return running if system is base else f"{running} ({median(pair_ratios(system, base, RUNNING)):.2f}×)"


def draw_preemption(result: Result, theme: Theme) -> Figure:
    """Three bars per pool: the worst case promised, and two ways to give back."""
    systems = result.systems
    question = "A pool too small for everybody: promise the worst case, or give back?"
    figure, (plot,) = new_figure(question, result, 1.6 + 0.9 * ROW * len(systems))
    for row, system in enumerate(systems):
        rates = values(system, tokens_per_second)
        number = 1 if system is base_beside(result, system) else (2 if system.name.endswith("recompute") else 0)
        plot.barh(row, median(rates), height=0.68, **fill(theme, number))
        plot.hlines(row, min(rates), max(rates), color=theme.ink, linewidth=1)
        beside(plot, max(rates), row, preemption_text(result, system))
    plot.set_xlim(left=0)
    plot.set_xlabel("output tokens per second (times phase 8 with the same pool)")
    name_rows(plot, [_pool_name(system) for system in systems])
    make_room(figure, plot)
    return figure


def preemption_text(result: Result, system: SystemResult) -> str:
    """Tokens per second and the ratio, requests finished, preemptions, tokens run again."""
    base, rate = base_beside(result, system), median_of(system, tokens_per_second) or 0.0
    text = f"{rate:.1f}"
    if system is not base:
        text += f" ({median(pair_ratios(system, base)):.2f}×)"
    finished = min(repeat.get("num_exact") or 0 for repeat in system.repeats)
    times, again = (median_of(system, stored(name)) or 0.0 for name in ("preemptions", "recomputed_tokens"))
    preempted = f", {times:,.0f} preempted, {again:,.0f} tokens again" if times else ""
    return f"{text}, {finished:,.0f} of {system.num_requests} done{preempted}"


def _pool_name(system: SystemResult) -> str:
    slots, _, way = system.label.partition(": ")
    return f"{slots}: {way.replace('preemption by ', '')}"


def _names(systems: list[SystemResult]) -> list[str]:
    return [f"{system.workload}: {system.label}{_phase_of(system)}" for system in systems]


def _phase_of(system: SystemResult) -> str:
    phase = PHASES.get(system.name.partition("/")[2])
    return "" if phase is None else f" ({phase})"


def _height(systems: list[SystemResult]) -> float:
    return 1.35 + 0.8 * ROW * len(systems)
