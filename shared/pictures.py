"""Pictures for notebooks, drawn from what an engine really did: its events, and what was recorded of its steps.

Each returns a Picture, a matplotlib figure that a notebook shows as it is. Colours are per request.
"""

import io
import itertools
from collections import Counter
from collections.abc import Sequence as Seq
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from shared.events import Event
from shared.step_record import StepRecord
from shared.timeline import DECODE, PREFILL, QUEUED, timelines

WIDTH = 7.0  # inches
EMPTY = "#eeeeee"


class Picture(Figure):
    """A figure that pyplot does not know of: a notebook shows it once, and nothing keeps it."""

    def _repr_png_(self) -> bytes:
        png = io.BytesIO()
        self.savefig(png, format="png", metadata={"Software": None})
        return png.getvalue()


def color_of(name: str, names: Seq[str]) -> Any:
    """The colour of a request or sequence among these."""
    return matplotlib.colormaps["tab10"](list(names).index(name) % 10)


def timeline_picture(events: Seq[Event]) -> Picture:
    """One line per request on a shared clock in ms: thin while queued, pale in prefill, full in decode."""
    lines = timelines(events)
    names = [line.request_id for line in lines]
    start = min(line.arrived for line in lines)
    end = max(event.time for event in events)
    figure, axes = _figure(0.28 * len(lines) + 0.8)
    for place, line in enumerate(lines):
        color = color_of(line.request_id, names)
        marks = [line.arrived, line.prefill_started, line.prefill_ended, line.finished or end]
        edges = [(mark if mark is not None else marks[3]) or 0.0 for mark in marks]
        for (left, right), height, alpha in zip(itertools.pairwise(edges), (0.1, 0.6, 0.6), (0.6, 0.45, 1.0)):
            axes.barh(place, (right - left) * 1e3, height, (left - start) * 1e3, color=color, alpha=alpha)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel(f"ms   ({QUEUED} thin: queued   {PREFILL} pale: prefill   {DECODE} full: decode)")
    return figure


def budget_picture(records: Seq[StepRecord], budget: int | None = None) -> Picture:
    """Per step, how many tokens of whom were run; decodes at the bottom, as they take the budget first."""
    names = _names(records)
    figure, axes = _figure(2.4)
    for record in records:
        bottom = 0
        for row in sorted(record.rows, key=lambda row: row.kind == "prefill"):
            pale = 0.45 if row.kind == "prefill" else 1.0
            color = color_of(row.name, names)
            axes.bar(record.number, row.num_tokens, 0.8, bottom, color=color, alpha=pale, edgecolor="white")
            bottom += row.num_tokens
    if budget is not None:
        axes.axhline(budget, color="black", linestyle="--", linewidth=1)
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("tokens (pale: prefill)")
    _legend(axes, names)
    return figure


def block_map(records: Seq[StepRecord], num_blocks: int) -> Picture:
    """Blocks from bottom to top, steps from left to right: who held which; a shared block is hatched."""
    names = _names(records)
    figure, axes = _figure(max(1.8, 0.16 * num_blocks + 0.8))
    for record in records:
        holders = {block: name for name, table in record.block_tables.items() for block in table}
        counts = Counter(block for table in record.block_tables.values() for block in table)
        for block in range(num_blocks):
            color = color_of(holders[block], names) if block in holders else EMPTY
            hatch = "//" if counts[block] > 1 else None
            axes.bar(record.number, 0.9, 0.9, block - 0.45, color=color, hatch=hatch, edgecolor="white")
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("block")
    _legend(axes, names)
    return figure


def bars(values: dict[str, float], label: str) -> Picture:
    """One bar per name, with its number."""
    figure, axes = _figure(0.3 * len(values) + 0.8)
    drawn = axes.barh(list(values), list(values.values()), 0.6, color="#5b7fb5")
    axes.bar_label(drawn, padding=3, fmt="%g")
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.margins(x=0.12)
    return figure


def _names(records: Seq[StepRecord]) -> list[str]:
    return list(dict.fromkeys(row.name for record in records for row in record.rows))


def _figure(height: float) -> tuple[Picture, Any]:
    figure = Picture(figsize=(WIDTH, height), dpi=72, layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _legend(axes: Any, names: Seq[str]) -> None:
    handles = [Patch(color=color_of(name, names), label=name) for name in names]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
