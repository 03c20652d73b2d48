"""Charts of what pays and for whom: speculation by workload, goodput over the rate."""

from dataclasses import replace
from statistics import median

from matplotlib.figure import Figure

from shared.bench.charts.theme import (
    LINES,
    MARKERS,
    ROW,
    Theme,
    beside,
    fill,
    make_room,
    name_rows,
    new_figure,
    spread_out,
)
from shared.bench.results import Result, SystemResult
from shared.bench.summary import base_for, median_of, pair_ratios, quotient, stored

ACCEPTANCE = quotient("accepted_tokens", "drafted_tokens")


def draw_speculation(results: list[Result], theme: Theme) -> Figure:
    """A row per workload, batch size and way to guess; "off" is 1 and has no row."""
    rows = [(result, system) for result in results for system in result.systems if not system.name.endswith("/off")]
    question = "Does guessing ahead pay, and for whom?"
    figure, (plot,) = new_figure(question, _together(results), 1.3 + 0.9 * ROW * len(rows))
    for row, (result, system) in enumerate(rows):
        ratios = _ratios(result, system)
        middle = median(ratios)
        plot.barh(row, middle - 1, left=1, height=0.66, **fill(theme, 0 if system.name.endswith("adaptive") else 1))
        plot.hlines(row, min(ratios), max(ratios), color=theme.ink, linewidth=1)
        beside(plot, max(1.0, *ratios), row, speculation_text(result, system))
    plot.axvline(1, color=theme.ink, linewidth=1)
    plot.set_xlim(left=0.9 * min(1.0, *(ratio for of_row in rows for ratio in _ratios(*of_row))))
    plot.set_xlabel("tokens per second, times no guessing in the same round; hatched: fixed k")
    name_rows(plot, [f"{result.workload.key if result.workload else ''}, {system.label}" for result, system in rows])
    make_room(figure, plot)
    return figure


def _together(results: list[Result]) -> Result:
    """What stands for all of them where it is said where numbers are from."""
    workloads = [result.workload for result in results if result.workload]
    name = " and ".join(workload.name for workload in workloads)
    return replace(results[0], workload=replace(workloads[0], key="", name=name)) if workloads else results[0]


def speculation_text(result: Result, system: SystemResult) -> str:
    accepted = median_of(system, ACCEPTANCE)
    right = "" if accepted is None else f", {100 * accepted:.0f} % of guesses right"
    return f"{median(_ratios(result, system)):.2f}×{right}"


def _ratios(result: Result, system: SystemResult) -> list[float]:
    base = base_for(result, system)
    assert base is not None
    return pair_ratios(system, base)


def draw_serving(result: Result, theme: Theme) -> Figure:
    """A line per phase: how much of what is offered is answered in time."""
    question = "How many requests per second are answered in time?"
    figure, (plot,) = new_figure(question, result, 4.4)
    lines = serving_lines(result)
    most = max(rate for points in lines.values() for rate, _ in points)
    num = max(system.num_requests or 2 for system in result.systems)
    at_best = most * num / (num - 1)  # so many come within one gap less
    plot.plot([0, most], [0, at_best], color=theme.faint, linewidth=1.2)
    beside(plot, most, at_best, "all, at once", offset=(6, 4), size=8)
    ends = spread_out([points[-1][1] for points in lines.values()], 0.055 * most)
    for number, ((name, points), end) in enumerate(zip(lines.items(), ends)):
        rates, good = zip(*points)
        marker, line = MARKERS[number % len(MARKERS)], LINES[number % len(LINES)]
        plot.plot(rates, good, line, marker=marker, color=theme.fills[number % 4], markeredgecolor=theme.ink)
        plot.plot([1.06 * most], [end], marker, color=theme.fills[number % 4], markeredgecolor=theme.ink)
        beside(plot, 1.06 * most, end, serving_text(name, points), offset=(8, 0))
    plot.set_xlim(0, 1.07 * most)
    plot.set_xticks(sorted({rate for points in lines.values() for rate, _ in points}))
    plot.set_ylim(bottom=0)
    slo = result.systems[0].settings
    in_time = f"first token within {slo['slo_ttft_ms'] / 1000:g} s, then one per {slo['slo_tpot_ms']} ms"
    plot.set_xlabel(f"requests offered per second; in time: {in_time}")
    plot.set_ylabel("answered in time per second")
    make_room(figure, plot)
    return figure


def serving_text(name: str, points: list[tuple[float, float]]) -> str:
    """A line's name, and its goodput at the highest rate."""
    return f"{name} ({points[-1][1]:.2f}/s)"


def serving_lines(result: Result) -> dict[str, list[tuple[float, float]]]:
    """Phase -> (rate offered, goodput) at every finite rate."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for system in result.systems:
        rate, good = median_of(system, stored("offered_rps")), median_of(system, stored("goodput_rps"))
        if rate is not None and good is not None:
            number = int(system.name.partition("@")[0].removeprefix("phase"))
            lines.setdefault(f"phase {number}", []).append((rate, good))
    return {name: sorted(points) for name, points in lines.items()}
