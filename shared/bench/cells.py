"""What stands in a cell of a table: a figure of the repeats, as text. What is undefined is UNDEFINED, never 0."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from statistics import median

from shared.bench.results import Result, SystemResult
from shared.bench.summary import (
    Figure,
    base_beside,
    base_for,
    median_of,
    pair_ratios,
    stored,
    tokens_per_second,
    values,
)
from shared.bench.workloads import num_of

UNDEFINED = "–"
Cell = Callable[[Result, SystemResult], str]


def spread(of_repeats: Seq[float], digits: int) -> str:
    """Median (min–max)."""
    if not of_repeats:
        return UNDEFINED
    low, middle, high = min(of_repeats), median(of_repeats), max(of_repeats)
    return f"{middle:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def label(result: Result, system: SystemResult) -> str:
    workload = result.workload
    if workload is None or system.num_requests in (None, workload.num_requests):
        return system.label
    return f"{system.label} ({num_of(system.num_requests or 0, workload.num_requests)})"


def workload(_result: Result, system: SystemResult) -> str:
    return system.workload or UNDEFINED


def setting(name: str) -> Cell:
    return lambda _result, system: str(system.settings.get(name, UNDEFINED))


def throughput(_result: Result, system: SystemResult) -> str:
    value = median_of(system, tokens_per_second)
    return UNDEFINED if value is None else f"{value:,.1f}"


def ratio(figure: Figure) -> Cell:
    def cell(result: Result, system: SystemResult) -> str:
        base = base_for(result, system)
        if base is None or system is base:
            return UNDEFINED if base is None else "1"
        return spread(pair_ratios(system, base, figure), digits=2)

    return cell


def lead(result: Result, system: SystemResult) -> str:
    """How many times this system's throughput the base has, round by round."""
    base = base_for(result, system)
    if base is None or system is base:
        return UNDEFINED if base is None else "1"
    return spread(pair_ratios(base, system), digits=2)


def milliseconds(figure: str) -> Cell:
    def cell(_result: Result, system: SystemResult) -> str:
        seconds = median_of(system, stored(figure))
        if seconds is None:
            return UNDEFINED
        return f"{1000 * seconds:,.0f}" if seconds >= 0.1 else f"{1000 * seconds:.1f}"

    return cell


def peak_rss(_result: Result, system: SystemResult) -> str:
    peaks = values(system, stored("peak_rss_bytes"))
    return f"{max(peaks) / 1e6:,.0f}" if peaks else UNDEFINED


def exact(_result: Result, system: SystemResult) -> str:
    """Of the worst repeat."""
    exact = values(system, stored("num_exact"))
    return f"{min(exact):.0f}/{system.num_requests}" if exact else UNDEFINED


def step_cost(_result: Result, system: SystemResult) -> str:
    return spread([1000 * seconds for seconds in values(system, stored("step_s"))], digits=3)


def median_spread(figure: Figure, digits: int) -> Cell:
    return lambda _result, system: spread(values(system, figure), digits)


def gain(result: Result, system: SystemResult) -> str:
    """In sequences that run at once, draw by draw."""
    base = base_beside(result, system)
    return "1" if system is base else spread(pair_ratios(system, base, stored("running_mean")), digits=2)


def count(figure: Figure) -> Cell:
    def cell(_result: Result, system: SystemResult) -> str:
        value = median_of(system, figure)
        return UNDEFINED if value is None else f"{value:,.0f}"

    return cell


def percent(figure: Figure, digits: int = 1) -> Cell:
    def cell(_result: Result, system: SystemResult) -> str:
        share = median_of(system, figure)
        return UNDEFINED if share is None else f"{100 * share:.{digits}f}"

    return cell


def decimal(figure: Figure, digits: int) -> Cell:
    def cell(_result: Result, system: SystemResult) -> str:
        value = median_of(system, figure)
        return UNDEFINED if value is None else f"{value:,.{digits}f}"

    return cell


def part_of(part: str, whole: str) -> Cell:
    """Summed over the repeats."""

    def cell(_result: Result, system: SystemResult) -> str:
        return f"{sum(values(system, stored(part))):.0f}/{sum(values(system, stored(whole))):.0f}"

    return cell


def scientific(figure: Figure) -> Cell:
    def cell(_result: Result, system: SystemResult) -> str:
        value = median_of(system, figure)
        return UNDEFINED if value is None else f"{value:.1e}"

    return cell
