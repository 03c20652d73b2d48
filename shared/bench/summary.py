"""Medians and pair ratios, always from the figures of the repeats. It knows nothing of tables."""

from collections.abc import Callable, Iterable
from statistics import median

from shared.bench.results import Figures, Result, SystemResult
from shared.errors import SetupError

Figure = Callable[[Figures], float | None]


def stored(name: str) -> Figure:
    """Reads the figure `name` of a repeat; None where it is undefined or was not measured."""
    return lambda repeat: repeat.get(name)


def tokens_per_second(repeat: Figures) -> float | None:
    tokens, seconds = repeat.get("output_tokens"), repeat.get("seconds")
    return tokens / seconds if tokens and seconds else None


def quotient(part: str, whole: str) -> Figure:
    """Reads one stored figure as a share of another; None where one is missing or the whole is nothing."""

    def figure(repeat: Figures) -> float | None:
        numerator, denominator = repeat.get(part), repeat.get(whole)
        return numerator / denominator if numerator is not None and denominator else None

    return figure


def difference(one: Figure, other: Figure) -> Figure:
    """What one has more than the other; None where either is undefined."""

    def figure(repeat: Figures) -> float | None:
        high, low = one(repeat), other(repeat)
        return high - low if high is not None and low is not None else None

    return figure


def scaled(figure: Figure, factor: float) -> Figure:
    """In another unit."""

    def in_other_unit(repeat: Figures) -> float | None:
        value = figure(repeat)
        return None if value is None else factor * value

    return in_other_unit


def rest(share: Figure) -> Figure:
    """What a share leaves of the whole."""
    return difference(lambda _repeat: 1, share)


def values(system: SystemResult, figure: Figure) -> list[float]:
    """Of the repeats in which it is defined."""
    return [value for repeat in system.repeats if (value := figure(repeat)) is not None]


def median_of(system: SystemResult, figure: Figure) -> float | None:
    of_repeats = values(system, figure)
    return median(of_repeats) if of_repeats else None


def pair_ratios(system: SystemResult, base: SystemResult, figure: Figure = tokens_per_second) -> list[float]:
    """A figure over the base's in the same round, round by round: the host's slow drift cancels out."""
    pairs = [(figure(one), figure(other)) for one, other in zip(system.repeats, base.repeats)]
    return [one / other for one, other in pairs if one is not None and other]


def base_of(result: Result) -> SystemResult | None:
    """The system that ratios refer to."""
    return system_named(result, result.base) if result.base is not None else None


def base_for(result: Result, system: SystemResult) -> SystemResult | None:
    """What a system's ratios refer to: the base, or the one of its own group where names are group/system."""
    return base_beside(result, system) if "/" in system.name else base_of(result)


def base_beside(result: Result, system: SystemResult) -> SystemResult:
    """What a system's ratios refer to where rows have workloads of their own: D/some -> D/base."""
    return system_named(result, f"{system.name.partition('/')[0]}/{result.base}")


def system_named(result: Result, name: str) -> SystemResult:
    """Raises SetupError, listing the systems there are."""
    for system in result.systems:
        if system.name == name:
            return system
    known = ", ".join(system.name for system in result.systems)
    raise SetupError(f"the result has no system {name!r}; systems: {known}")


def other_cpu_share(result: Result) -> float | None:
    """What other processes took of all cores' time in the worst round, its runs weighted by their length."""
    rounds = zip(*(system.repeats for system in result.systems))
    return max((share for runs in rounds if (share := _mean_share(runs)) is not None), default=None)


def _mean_share(runs: Iterable[Figures]) -> float | None:
    known = [(run["seconds"], run["other_cpu_share"]) for run in runs if "other_cpu_share" in run]
    lost = sum((seconds or 0) * (share or 0) for seconds, share in known)
    total = sum(seconds or 0 for seconds, _ in known)
    return lost / total if total else None
