"""The capacity study as a picture of one question: how many sequences run at once on the same slots?

Drawn from a stored result alone, and the same bytes each time: no date, no random ids, no version.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import median

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from shared.bench.results import Result, SystemResult
from shared.bench.summary import base_beside, median_of, pair_ratios, quotient, stored, values
from shared.errors import SetupError

RUNNING = stored("running_mean")


@dataclass(frozen=True, slots=True)
class Look:
    """Of a bar. Bars are told apart by place, name and hatch; the colours are decoration."""

    colour: str
    hatch: str


LOOKS = (Look("#ffffff", "//"), Look("#c9d7e8", "\\\\"), Look("#2f5d8c", ""))  # in the order of the systems
INCHES_WIDE, INCHES_PER_GROUP, INCHES_AROUND = 8.0, 1.35, 0.9


def draw_capacity(result: Result, path: Path) -> None:
    """Write the SVG. Raises SetupError if it cannot be written."""
    groups = _by_workload(result.systems)
    with rc_context({"svg.hashsalt": "pageserve", "svg.fonttype": "none", "font.size": 10}):
        canvas = Canvas(figsize=(INCHES_WIDE, INCHES_AROUND + INCHES_PER_GROUP * len(groups)), layout="constrained")
        canvas.suptitle(_title(result), fontsize=12)
        plots = canvas.subplots(len(groups), 1, sharex=True, squeeze=False)[:, 0]
        for plot, (workload, systems) in zip(plots, groups.items()):
            _draw_group(plot, workload, systems, result)
        plots[-1].set_xlabel("sequences at once, mean over time; whiskers: smallest and largest draw")
        _save(canvas, path)


def _title(result: Result) -> str:
    num_slots = values(result.systems[0], stored("pool_slots"))[0]
    return f"How many sequences run at once in {num_slots:,.0f} slots?"


def _by_workload(systems: list[SystemResult]) -> dict[str, list[SystemResult]]:
    groups: dict[str, list[SystemResult]] = {}
    for system in systems:
        groups.setdefault(system.workload or "", []).append(system)
    return groups


def _draw_group(plot: Axes, workload: str, systems: list[SystemResult], result: Result) -> None:
    for row, (system, look) in enumerate(zip(systems, LOOKS)):
        draws = values(system, RUNNING)
        middle = median_of(system, RUNNING) or 0.0
        whiskers = [[middle - min(draws)], [max(draws) - middle]]
        plot.barh(row, middle, height=0.7, facecolor=look.colour, hatch=look.hatch, edgecolor="black")
        plot.errorbar(middle, row, xerr=whiskers, color="black", capsize=3, linewidth=1)
        plot.annotate(bar_text(result, system), (max(draws), row), (6, 0), textcoords="offset points", va="center")
    plot.set_yticks(range(len(systems)), [system.label for system in systems])
    plot.invert_yaxis()
    plot.set_title(f"{workload}: {_outputs(systems[0])}", loc="left", fontsize=10, fontweight="bold")
    plot.spines[["top", "right"]].set_visible(False)
    plot.margins(x=0.18)


def _outputs(system: SystemResult) -> str:
    mean = median_of(system, quotient("output_tokens", "num_jobs"))
    return f"{mean:.0f} output tokens on average, {system.settings['max_tokens']} allowed"


def bar_text(result: Result, system: SystemResult) -> str:
    """What stands beside a bar: how many, and the gain."""
    base = base_beside(result, system)
    running = f"{median_of(system, RUNNING):.1f}"
    if system is base:
        return running
    gain = median(pair_ratios(system, base, RUNNING))
    return f"{running} ({gain:.2f}×)"


def _save(canvas: Canvas, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        canvas.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    except OSError as error:
        raise SetupError(f"{path}: the chart cannot be written ({error.strerror}): give another --chart") from error
