"""Charts of a decode step: where its milliseconds go, and how it grows with the context; against the roofline."""

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shared.bench.charts.theme import (
    MARKERS,
    ROW,
    Theme,
    beside,
    fill,
    make_room,
    name_rows,
    new_figure,
    plain_log,
    spread_out,
)
from shared.bench.results import Figures, Result, SystemResult
from shared.bench.summary import median_of, stored

MODEL_PARTS = (
    ("linears_s", "linear layers"),
    ("head_s", "head"),
    ("attention_s", "attention"),
    ("model_rest_s", "norms, RoPE, K/V writes"),
)
WHOLE = stored("whole_step_s")
ENGINE_PARTS = ("sampling_s", "batch_building_s", "engine_rest_s")


def draw_step_parts(result: Result, theme: Theme) -> Figure:
    """A bar per batch size, its parts after each other; a line across it at what the machine allows."""
    systems = result.systems
    figure, (plot,) = new_figure("Where do a decode step's milliseconds go?", result, 2.0 + 1.2 * ROW * len(systems))
    for row, system in enumerate(systems):
        left = 0.0
        for number, (name, milliseconds) in enumerate(parts_of(system)):
            plot.barh(row, milliseconds, left=left, height=0.6, label=None if row else name, **fill(theme, number))
            left += milliseconds
        if limit := median_of(system, stored("roofline_s")):
            line = 1000 * limit, row - 0.44, row + 0.44
            plot.vlines(*line, color=theme.ink, linewidth=3, label="" if row else "roofline of this machine")
        beside(plot, left, row, step_parts_text(system))
    plot.set_xlim(left=0)
    plot.set_xlabel("milliseconds per step, each part the median of its own")
    name_rows(plot, [system.label for system in systems])
    plot.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, fontsize=8, borderaxespad=0.2)
    make_room(figure, plot)
    return figure


def parts_of(system: SystemResult) -> list[tuple[str, float]]:
    """Milliseconds of each part, in the order of the bar; what is beside the model is one part."""

    def beside_the_model(repeat: Figures) -> float:
        return sum(repeat.get(name) or 0.0 for name in ENGINE_PARTS)

    parts = [(title, stored(name)) for name, title in MODEL_PARTS] + [("sampling, scheduler", beside_the_model)]
    return [(title, 1000 * (median_of(system, figure) or 0.0)) for title, figure in parts]


def step_parts_text(system: SystemResult) -> str:
    """The whole step, and how much longer than the machine's best that is."""
    whole, limit = (median_of(system, stored(name)) or 0.0 for name in ("whole_step_s", "roofline_s"))
    times = f", {whole / limit:.1f}× the roofline" if limit else ""
    return f"{1000 * whole:,.1f} ms{times}"


def draw_step_time(result: Result, theme: Theme) -> Figure:
    """A line per batch size; below each, what the machine allows at best."""
    question = "How does a decode step grow with the context, and what would the machine allow?"
    figure, (plot,) = new_figure(question, result, 4.4)
    kinds, groups = step_groups(result)
    heights = [value for points in groups.values() for _, step, limit in points for value in (step, limit or step)]
    limits = min(heights) / 1.4, max(heights) * 1.4
    ends = spread_out([math.log(points[-1][1]) for points in groups.values()], 0.055 * math.log(limits[1] / limits[0]))
    for number, ((name, points), end) in enumerate(zip(groups.items(), ends)):
        contexts = [context for context, _, _ in points]
        colour, marker = theme.fills[number % 4], MARKERS[number % len(MARKERS)]
        steps = [step for _, step, _ in points]
        plot.plot(contexts, steps, "-", marker=marker, color=colour, markeredgecolor=theme.ink)
        allowed = [(context, limit) for context, _, limit in points if limit is not None]
        if allowed:
            plot.plot(*zip(*allowed), ":", marker=marker, color=colour, markersize=4)
        beside(plot, contexts[-1], math.exp(end), f"{name}: {milliseconds_text(steps[-1])}", offset=(8, 0))
    _scale_of_contexts(plot, sorted({context for points in groups.values() for context, _, _ in points}))
    plain_log(plot.yaxis, limits)
    what = f"{kinds}; " if kinds else ""
    plot.set_xlabel(f"context of each sequence, tokens; {what}dotted: the roofline of this machine")
    plot.set_ylabel("milliseconds per step")
    make_room(figure, plot)
    return figure


def _scale_of_contexts(plot: Axes, ticks: list[int]) -> None:
    plot.set_xscale("log", base=2)
    plot.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    plot.set_xlim(right=1.1 * ticks[-1])
    plot.grid(axis="y")


def milliseconds_text(milliseconds: float) -> str:
    return f"{milliseconds:,.0f} ms" if milliseconds >= 10 else f"{milliseconds:.1f} ms"


def step_groups(result: Result) -> tuple[str, dict[str, list[tuple[int, float, float | None]]]]:
    """What computes, and batch -> context, step and roofline in milliseconds.

    Of pools of the smallest size alone, and of what has most cases; of several such, the quickest.
    """
    smallest = min(system.settings.get("pool_factor", 1) for system in result.systems)
    of_kind: dict[str, list[SystemResult]] = {}
    for system in result.systems:
        if median_of(system, WHOLE) is not None and system.settings.get("pool_factor", 1) == smallest:
            of_kind.setdefault(", ".join(system.implementation.values()), []).append(system)
    kinds = min(of_kind, key=lambda kind: (-len(of_kind[kind]), sum(median_of(s, WHOLE) or 0 for s in of_kind[kind])))
    groups: dict[str, list[tuple[int, float, float | None]]] = {}
    for system in of_kind[kinds]:
        limit = median_of(system, stored("roofline_s"))
        point = 1000 * (median_of(system, WHOLE) or 0.0), None if limit is None else 1000 * limit
        groups.setdefault(f"{system.settings['num_sequences']} at once", []).append(
            (system.settings["context"], *point)
        )
    return kinds, {name: sorted(points) for name, points in groups.items()}
