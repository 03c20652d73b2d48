"""Charts of one bar per system: throughput, time to the first token, memory, prefix hits, accuracy of a technique."""

from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shared.bench.cells import label
from shared.bench.charts.theme import ROW, Theme, beside, fill, make_room, name_rows, new_figure, plain_log
from shared.bench.results import Result, SystemResult
from shared.bench.summary import (
    base_of,
    median_of,
    pair_ratios,
    quotient,
    stored,
    tokens_per_second,
    values,
)

AROUND = 1.25  # inches of height beside the bars
HIT_RATE = quotient("prefix_hit_tokens", "prefix_queried_tokens")


def throughput_text(result: Result, system: SystemResult) -> str:
    """What stands beside a bar: tokens per second, and the median of the ratios to the base."""
    base, value = base_of(result), median_of(system, tokens_per_second)
    text = f"{value:.1f}"
    return text if base is None or system is base else f"{text} ({median(pair_ratios(system, base)):.2f}×)"


def draw_throughput(result: Result, theme: Theme) -> Figure:
    systems = result.systems
    figure, (plot,) = new_figure("How many tokens per second does each phase make?", result, _height(len(systems)))
    _bars(plot, systems, theme, [throughput_text(result, system) for system in systems])
    base = base_of(result)
    ratio = "" if base is None else f" (times {base.name})"
    plot.set_xlabel(f"output tokens per second{ratio}, slowest to fastest round")
    name_rows(plot, [label(result, system) for system in systems])
    make_room(figure, plot)
    return figure


def draw_prefix(result: Result, theme: Theme) -> Figure:
    systems = result.systems
    question = "What is it worth to notice that 512 tokens are the same?"
    figure, (plot,) = new_figure(question, result, _height(len(systems)))
    _bars(plot, systems, theme, [prefix_text(result, system) for system in systems])
    plot.set_xlabel("output tokens per second, slowest to fastest round")
    name_rows(plot, [label(result, system) for system in systems])
    make_room(figure, plot)
    return figure


def prefix_text(result: Result, system: SystemResult) -> str:
    hit = median_of(system, HIT_RATE)
    return throughput_text(result, system) + ("" if hit is None else f", {100 * hit:.0f} % of the prompts found")


def _bars(plot: Axes, systems: list[SystemResult], theme: Theme, texts: list[str]) -> None:
    for row, (system, text) in enumerate(zip(systems, texts)):
        of_repeats = values(system, tokens_per_second)
        middle = median(of_repeats)
        plot.barh(row, middle, height=0.68, **fill(theme, 0 if system.name.startswith("phase") else 1))
        whiskers = [[middle - min(of_repeats)], [max(of_repeats) - middle]]
        plot.errorbar(middle, row, xerr=whiskers, color=theme.ink, capsize=3, linewidth=1)
        beside(plot, max(of_repeats), row, text)
    plot.set_xlim(left=0)


def draw_ttft(result: Result, theme: Theme) -> Figure:
    """A line from the median to the 99th percentile: who comes first, and who comes last."""
    systems = in_full_line(result)
    question = "How long until the first token, if all ask at once?"
    figure, (plot,) = new_figure(question, result, _height(len(systems)))
    for row, system in enumerate(systems):
        half, most = (1000 * (median_of(system, stored(f"ttft_p{p}_s")) or 0) for p in (50, 99))
        plot.hlines(row, half, most, color=theme.ink, linewidth=1)
        plot.plot([most], [row], "D", color=theme.fills[2], markeredgecolor=theme.ink, markersize=10)
        plot.plot([half], [row], "o", color=theme.fills[0], markeredgecolor=theme.ink, markersize=6)
        beside(plot, most, row, ttft_text(system), offset=(10, 0))
    plain_log(
        plot.xaxis, log_limits([1000 * v for s in systems for p in (50, 99) for v in values(s, stored(f"ttft_p{p}_s"))])
    )
    plot.grid(axis="x")
    plot.set_xlabel("milliseconds, log scale; circle: half have it, diamond: 99 of 100")
    name_rows(plot, [system.label for system in systems])
    make_room(figure, plot)
    return figure


def in_full_line(result: Result) -> list[SystemResult]:
    """Those that ran all requests of the workload: in a shorter line the wait is shorter."""
    num = result.workload.num_requests if result.workload else None
    return [
        system
        for system in result.systems
        if median_of(system, stored("ttft_p50_s")) is not None and system.num_requests in (None, num)
    ]


def log_limits(shown: list[float]) -> tuple[float, float]:
    """Around what is shown."""
    return min(shown) / 1.3, max(shown) * 1.3


def ttft_text(system: SystemResult) -> str:
    half, most = (1000 * (median_of(system, stored(f"ttft_p{p}_s")) or 0) for p in (50, 99))
    return f"{half:,.0f} / {most:,.0f} ms"


def draw_ablation(result: Result, theme: Theme) -> Figure:
    """The newest engine whole, and with one thing changed: what is left."""
    whole, variants = ablated(result)
    question = "What changes if one technique of the newest engine is changed?"
    figure, (plot,) = new_figure(question, result, _height(len(variants)))
    for row, system in enumerate(variants):
        ratios = pair_ratios(system, whole)
        middle = median(ratios)
        plot.barh(row, middle - 1, left=1, height=0.68, **fill(theme, 0 if middle < 1 else 1))
        plot.hlines(row, min(ratios), max(ratios), color=theme.ink, linewidth=1)
        beside(plot, max(ratios) if middle >= 1 else max(1.0, *ratios), row, f"{middle:.2f}×")
    plot.axvline(1, color=theme.ink, linewidth=1)
    plot.margins(x=0.06)
    plot.set_xlabel(f"tokens per second, in multiples of {whole.label}")
    name_rows(plot, [system.label.partition(", ")[2] for system in variants])
    make_room(figure, plot)
    return figure


def ablated(result: Result) -> tuple[SystemResult, list[SystemResult]]:
    """The whole engine, and its variants: phase12, phase12-no-cache, ..."""
    variants = [system for system in result.systems if system.name.startswith("phase") and "-" in system.name]
    whole = next(system for system in result.systems if variants[0].name.startswith(system.name + "-"))
    return whole, variants


def draw_waterfall(result: Result, theme: Theme) -> Figure:
    """From phase to phase."""
    phases = [system for system in result.systems if system.name.startswith("phase") and "-" not in system.name]
    return _waterfall("Which phase brought how much?", result, phases, theme)


def draw_moves(result: Result, theme: Theme) -> Figure:
    """From one setting of an engine to the next."""
    return _waterfall("What does each move towards a fast engine bring?", result, result.systems, theme)


def _waterfall(question: str, result: Result, systems: list[SystemResult], theme: Theme) -> Figure:
    """Each bar begins where the one before it ended."""
    rates = [median_of(system, tokens_per_second) or 0.0 for system in systems]
    figure, (plot,) = new_figure(question, result, _height(len(systems)))
    for row, (before, after) in enumerate(zip([0.0, *rates], rates)):
        gained = after - before
        plot.barh(row, gained, left=before, height=0.68, **fill(theme, 0 if gained >= 0 else 2))
        plot.vlines(after, row, min(row + 1, len(rates) - 1), color=theme.ink, linewidth=0.8, linestyle=":")
        beside(plot, max(before, after), row, step_text(before, after))
    plot.set_xlim(left=0)
    plot.set_xlabel("output tokens per second; hatched with dots: a loss")
    name_rows(plot, [label(result, system) for system in systems])
    make_room(figure, plot)
    return figure


def step_text(before: float, after: float) -> str:
    gained = f"{after - before:+.1f}".replace("-", "−")
    gained = "±0.0" if gained == "−0.0" else gained
    return f"{after:.1f}" if not before else f"{gained} → {after:.1f}"


def _height(num_rows: int) -> float:
    return AROUND + ROW * num_rows
