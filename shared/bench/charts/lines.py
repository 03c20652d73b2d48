"""Charts with an axis of their own: speculation by workload, goodput over the rate, step time over the context."""

import math
from statistics import median

from matplotlib.figure import Figure

from shared.bench.charts.theme import LINES, MARKERS, ROW, Theme, beside, fill, name_rows, new_figure, plain_log
from shared.bench.results import Result, SystemResult
from shared.bench.summary import base_for, median_of, pair_ratios, quotient, stored

ACCEPTANCE = quotient("accepted_tokens", "drafted_tokens")


def draw_speculation(results: list[Result], theme: Theme) -> Figure:
    """A row per workload, batch size and way to guess; "off" is 1 and has no row."""
    rows = [(result, system) for result in results for system in result.systems if not system.name.endswith("/off")]
    question = "Does guessing ahead pay, and for whom?"
    figure, (plot,) = new_figure(question, results[0], 1.3 + 0.9 * ROW * len(rows))
    for row, (result, system) in enumerate(rows):
        ratios = _ratios(result, system)
        middle = median(ratios)
        plot.barh(row, middle - 1, left=1, height=0.66, **fill(theme, 0 if system.name.endswith("adaptive") else 1))
        plot.hlines(row, min(ratios), max(ratios), color=theme.ink, linewidth=1)
        beside(plot, max(1.0, *ratios), row, speculation_text(result, system))
    plot.axvline(1, color=theme.ink, linewidth=1)
    plot.margins(x=0.4)
    plot.set_xlabel("tokens per second, times no guessing in the same round; hatched: fixed k")
    name_rows(plot, [f"{result.workload.key if result.workload else ''}, {system.label}" for result, system in rows])
    return figure


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
    plot.plot([0, most], [0, most], color=theme.faint, linewidth=1.2)
    beside(plot, most, most, "all of them", offset=(-4, 12), size=8)
    ends = _spread_out([points[-1][1] for points in lines.values()], 0.055 * most)
    for number, ((name, points), end) in enumerate(zip(lines.items(), ends)):
        rates, good = zip(*points)
        marker, line = MARKERS[number % len(MARKERS)], LINES[number % len(LINES)]
        plot.plot(rates, good, line, marker=marker, color=theme.fills[number % 4], markeredgecolor=theme.ink)
        plot.plot([1.06 * most], [end], marker, color=theme.fills[number % 4], markeredgecolor=theme.ink)
        beside(plot, 1.06 * most, end, serving_text(name, points), offset=(8, 0))
    plot.set_xlim(0, 1.55 * most)
    plot.set_xticks(sorted({rate for points in lines.values() for rate, _ in points}))
    plot.set_ylim(bottom=0)
    slo = result.systems[0].settings
    in_time = f"first token within {slo['slo_ttft_ms'] / 1000:g} s, then one per {slo['slo_tpot_ms']} ms"
    plot.set_xlabel(f"requests offered per second; in time: {in_time}")
    plot.set_ylabel("answered in time per second")
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


def draw_step_time(result: Result, theme: Theme) -> Figure:
    """A line per batch size; below each, what the machine allows at best."""
    question = "How does a decode step grow with the context, and what would the machine allow?"
    figure, (plot,) = new_figure(question, result, 4.4)
    groups = step_groups(result)
    for number, (name, points) in enumerate(groups.items()):
        contexts = [context for context, _, _ in points]
        colour, marker = theme.fills[number % 4], MARKERS[number % len(MARKERS)]
        plot.plot(
            contexts, [step for _, step, _ in points], "-", marker=marker, color=colour, markeredgecolor=theme.ink
        )
        limits = [(context, limit) for context, _, limit in points if limit is not None]
        if limits:
            plot.plot(*zip(*limits), ":", marker=marker, color=colour, markersize=4)
        beside(plot, contexts[-1], points[-1][1], f"{name}: {points[-1][1]:,.0f} ms", offset=(8, 0))
    plot.set_xscale("log", base=2)
    ticks = sorted({context for points in groups.values() for context, _, _ in points})
    plot.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    plot.set_xlim(right=ticks[-1] * (ticks[-1] / ticks[0]) ** 0.55 if len(ticks) > 1 else ticks[-1] * 4)
    plot.grid(axis="y")
    heights = [value for points in groups.values() for _, step, limit in points for value in (step, limit or step)]
    plain_log(plot.yaxis, (min(heights) / 1.4, max(heights) * 1.4))
    plot.set_xlabel("context of each sequence, tokens; dotted: the roofline of this machine")
    plot.set_ylabel("milliseconds per step")
    return figure


def step_groups(result: Result) -> dict[str, list[tuple[int, float, float | None]]]:
    """Batch (and what computes) -> context, step and roofline in milliseconds; pools of the smallest size alone."""
    smallest = min(system.settings.get("pool_factor", 1) for system in result.systems)
    groups: dict[str, list[tuple[int, float, float | None]]] = {}
    for system in result.systems:
        step, limit = median_of(system, stored("whole_step_s")), median_of(system, stored("roofline_s"))
        if step is None or system.settings.get("pool_factor", 1) != smallest:
            continue
        kinds = ", ".join(system.implementation.values())
        name = f"{system.settings['num_sequences']} at once" + (f" ({kinds})" if kinds else "")
        context = system.settings["context"]
        groups.setdefault(name, []).append((context, 1000 * step, None if limit is None else 1000 * limit))
    return {name: sorted(points) for name, points in groups.items()}


def _spread_out(heights: list[float], least: float) -> list[float]:
    """Places for labels that would lie on each other, in their order."""
    placed: dict[int, float] = {}
    last = -math.inf
    for number in sorted(range(len(heights)), key=lambda number: heights[number]):
        last = placed[number] = max(heights[number], last + least)
    return [placed[number] for number in range(len(heights))]
