"""Charts of moments and gaps: who waits for whom, and what a long prompt does to streams that run."""

from matplotlib.figure import Figure

from shared.bench.charts.bars import log_limits
from shared.bench.charts.theme import ROW, Theme, beside, fill, make_room, name_rows, new_figure, plain_log
from shared.bench.results import Result, SystemResult
from shared.bench.summary import median_of, stored

GAPS = (  # figure, marker and its size: they can lie on each other, and the last is drawn first
    ("gap_before_p50_s", "o", 7),
    ("gap_p50_s", "s", 5),
    ("gap_p99_s", "^", 8),
    ("gap_max_s", "D", 13),
)


def draw_who_waits(result: Result, theme: Theme) -> Figure:
    """Two timelines on one clock."""
    first, last = result.systems[0], result.systems[-1]
    question = "Four requests at one moment: who waits, and how long?"
    figure, plots = new_figure(question, result, 2.9, num_plots=1)
    (plot,) = plots
    names, row = [], 0
    for system in (first, last):
        for number in range(1, num_requests(system) + 1):
            begin, end = moments_of(system, number)
            plot.barh(row, begin, height=0.6, **fill(theme, 4) | {"hatch": "..."})
            plot.barh(row, end - begin, left=begin, height=0.6, **fill(theme, 0))
            beside(plot, end, row, wait_text(system, number))
            names.append(f"{system.label.partition(':')[0]}, request {number}")
            row += 1
        row += 1
        names.append("")
    name_rows(plot, names[:-1])
    figure.set_figheight(1.3 + ROW * 0.85 * len(names))
    plot.set_xlim(left=0)
    plot.set_xlabel("seconds from the moment that all were sent; dotted: waiting for the first token, plain: writing")
    make_room(figure, plot)
    return figure


def num_requests(system: SystemResult) -> int:
    return sum(name.startswith("request") and name.endswith("_first_s") for name in system.repeats[0])


def moments_of(system: SystemResult, number: int) -> tuple[float, float]:
    """Of a request's first and last token, in seconds: medians over the rounds."""
    first, last = (median_of(system, stored(f"request{number}_{which}_s")) or 0.0 for which in ("first", "last"))
    return first, last


def wait_text(system: SystemResult, number: int) -> str:
    begin, end = moments_of(system, number)
    return f"first after {begin:.2f} s, done after {end:.2f} s"


def draw_gaps(result: Result, theme: Theme) -> Figure:
    systems = result.systems
    question = "How long do running streams pause while a long prompt is read?"
    figure, (plot,) = new_figure(question, result, 1.5 + ROW * 1.5 * len(systems))
    shown: list[float] = []
    for row, system in enumerate(systems):
        moments = [1000 * (median_of(system, stored(name)) or 0) for name, _, _ in GAPS]
        plot.hlines(row, min(moments), max(moments), color=theme.faint, linewidth=2, zorder=1)
        for number, (moment, (_, marker, size)) in reversed(list(enumerate(zip(moments, GAPS)))):
            plot.plot([moment], [row], marker, color=theme.fills[number], markeredgecolor=theme.ink, markersize=size)
        beside(plot, max(moments), row, gaps_text(system), offset=(13, 0))
        shown += moments
    plain_log(plot.xaxis, log_limits(shown))
    plot.grid(axis="x")
    plot.set_xlabel(
        "milliseconds between two tokens, log scale; circle: median before the prompt came,\n"
        "while it is read: square: median, triangle: 99 of 100, diamond: the longest"
    )
    name_rows(plot, [system.label for system in systems])
    make_room(figure, plot)
    return figure


def gaps_text(system: SystemResult) -> str:
    """The longest gap, and what the long prompt paid."""
    longest = 1000 * (median_of(system, stored("gap_max_s")) or 0)
    paid = 1000 * (median_of(system, stored("late_ttft_s")) or 0)
    return f"longest {longest:,.0f} ms\nprompt read in {paid:,.0f} ms"
