"""How charts look: two themes, patterns that do without colour, and files that are the same bytes each time.

Bars are told apart by place, name and hatch, lines by marker and a name at their end; colour is decoration.
"""

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import NullLocator

from shared.bench.results import Result


@dataclass(frozen=True, slots=True)
class Theme:
    """fills: of bars and lines, in the order in which they are needed."""

    name: str
    background: str
    ink: str
    faint: str
    fills: tuple[str, ...]


LIGHT = Theme("light", "#ffffff", "#1f2328", "#d0d7de", ("#2f5d8c", "#8fb3d9", "#d97b29", "#5f8f5f", "#e8eef5"))
DARK = Theme("dark", "#0d1117", "#e6edf3", "#3d444d", ("#6ea8e0", "#33587f", "#e39a55", "#7fb77f", "#1b2733"))
THEMES = (LIGHT, DARK)
HATCHES = ("", "///", "...", "xxx", "\\\\\\")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":")
WIDE = 8.6  # inches
ROW = 0.42  # inches of height per bar


@contextmanager
def drawn_in(theme: Theme) -> Iterator[None]:
    """Inside, figures have the theme's colours; ids depend on the content alone, and text stays text."""
    settings: dict[Any, Any] = {
        "svg.hashsalt": "pageserve",
        "svg.fonttype": "none",
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "hatch.linewidth": 0.8,
        "figure.facecolor": theme.background,
        "savefig.facecolor": theme.background,
        "axes.facecolor": theme.background,
        "axes.edgecolor": theme.ink,
        "axes.labelcolor": theme.ink,
        "axes.labelsize": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "text.color": theme.ink,
        "xtick.color": theme.ink,
        "ytick.color": theme.ink,
        "legend.frameon": False,
        "grid.color": theme.faint,
        "grid.linewidth": 0.6,
    }
    with rc_context(settings):
        yield


def new_figure(question: str, result: Result, height: float, num_plots: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure that asks its question on top and says at the bottom where its numbers are from; plots side by side."""
    figure = Figure(figsize=(WIDE, height), layout="constrained")
    figure.suptitle(question, x=0.01, ha="left", fontsize=12.5, fontweight="bold")
    figure.supxlabel(source(result), x=0.01, ha="left", fontsize=7)
    plots = figure.subplots(1, num_plots, squeeze=False, sharey=num_plots > 1)[0]
    for plot in plots:
        plot.use_sticky_edges = False  # a bar that ends at the edge would look cut
    return figure, list(plots)


def source(result: Result) -> str:
    """Workload, model, machine and commit, short."""
    origin, model, workload = result.provenance, result.model, result.workload
    about = [] if model is None else [f"{model.name} in {model.dtype}, {_threads(model.num_threads)}"]
    if model is not None and workload is not None:
        name = f"{workload.key} {workload.name}" if len(workload.key) == 1 else workload.name
        about.insert(0, f"{name}, {workload.num_requests} requests")
    commit = "no commit" if origin.commit is None else f"commit {origin.commit[:7]}"
    num_rounds = len(result.systems[0].repeats)
    rounds = f"median of {num_rounds} rounds" if num_rounds > 1 else "one round"
    machine = f"{origin.machine.cpu.replace('(R)', '')}, {origin.machine.num_cores} cores"
    return " · ".join([*about, rounds, machine, commit, origin.date[:10]])


def _threads(number: int) -> str:
    return f"{number} thread" + ("s" if number != 1 else "")


def as_svg(figure: Figure) -> bytes:
    """The same bytes for the same figure: no date, no version, no random ids."""
    out = io.BytesIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def fill(theme: Theme, number: int) -> dict[str, Any]:
    """Of the bar number so and so of its kind."""
    return {
        "facecolor": theme.fills[number % len(theme.fills)],
        "hatch": HATCHES[number % len(HATCHES)],
        "edgecolor": theme.ink,
        "linewidth": 0.8,
    }


def beside(plot: Axes, x: float, y: float, text: str, offset: tuple[float, float] = (5, 0), size: float = 9) -> None:
    """Text right of a point, which takes part in no layout: `make_room` sees to it. offset: in points."""
    annotation = plot.annotate(text, (x, y), offset, textcoords="offset points", va="center", fontsize=size)
    annotation.set_in_layout(False)


def make_room(figure: Figure, plot: Axes) -> None:
    """Move the right end so far out that every text beside a point is whole. The last thing that is done to a plot.

    On the way from a point to its text's end nothing is stretched, so the rest of the width is shared out anew.
    """
    figure.draw_without_rendering()
    frame, scale = plot.get_window_extent(), plot.transScale
    left, right = (scale.transform((x, 1.0))[0] for x in plot.get_xlim())
    most = right
    for text in (one for one in plot.texts if isinstance(one, Annotation)):
        at = scale.transform(text.xy)[0]
        shown_at = plot.transData.transform(text.xy)[0]
        needed = text.get_window_extent().x1 - shown_at
        most = max(most, left + (at - left) * frame.width / max(frame.width - needed, frame.width / 4))
    plot.set_xlim(right=scale.inverted().transform((most, 1.0))[0])


def spread_out(heights: list[float], least: float) -> list[float]:
    """Places for labels that would lie on each other, in their order."""
    placed: dict[int, float] = {}
    last = -math.inf
    for number in sorted(range(len(heights)), key=lambda number: heights[number]):
        last = placed[number] = max(heights[number], last + least)
    return [placed[number] for number in range(len(heights))]


def plain_log(axis: Axis, limits: tuple[float, float]) -> None:
    """Whole numbers along a logarithmic axis. limits: what it has to hold."""
    low, high = limits
    if isinstance(axis, XAxis):
        axis.axes.set(xscale="log", xlim=limits)
    else:
        axis.axes.set(yscale="log", ylim=limits)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [base * 10.0**power for power in powers for base in (1, 2, 5)]
    shown = [tick for tick in ticks if low <= tick <= high]
    axis.set_ticks(shown, [f"{tick:,g}" if tick < 1 else f"{tick:,.0f}" for tick in shown])
    axis.set_minor_locator(NullLocator())


def name_rows(plot: Axes, names: list[str]) -> None:
    """From the top down, along the left side."""
    plot.set_yticks(range(len(names)), names)
    plot.set_ylim(len(names) - 0.5, -0.5)
    plot.tick_params(axis="y", length=0)
