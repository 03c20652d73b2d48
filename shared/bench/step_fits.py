"""What the step times of a result say together: linear in the context, and flat in the pool's size? Torch-free."""

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from statistics import linear_regression, median

from shared.bench.results import SystemResult
from shared.bench.summary import stored, values

STEP = stored("whole_step_s")
Key = tuple[str, ...]  # what the cases of a group have in common, in words


@dataclass(frozen=True, slots=True)
class Line:
    """A least-squares line through the step times over the context, seconds and tokens.

    r_squared: 1 where the points lie on it. worst: the largest distance of a point from it, as a share of the point.
    """

    start_s: float
    per_token_s: float
    r_squared: float
    worst: float


def fit(contexts: Seq[float], seconds: Seq[float]) -> Line:
    """Three contexts or more, not all the same."""
    slope, start = linear_regression(contexts, seconds)
    distances = [second - (start + slope * context) for context, second in zip(contexts, seconds)]
    mean = sum(seconds) / len(seconds)
    spread = sum((second - mean) ** 2 for second in seconds)
    r_squared = 1 - sum(distance**2 for distance in distances) / spread if spread else 1.0
    return Line(start, slope, r_squared, max(abs(distance) / second for distance, second in zip(distances, seconds)))


def findings(systems: Seq[SystemResult]) -> Iterator[str]:
    """A line of text for each group of cases that differ in the context alone, and in the pool alone."""
    for key, group in _groups(systems, "context").items():
        if len(group) >= 3:
            line = fit(list(group), list(group.values()))
            slope = f"{1e6 * line.per_token_s:.2f} ms per 1,000 tokens of context"
            how_well = f"R² {line.r_squared:.4f}, no point off by more than {line.worst:.0%}"
            yield f"{', '.join(key)}: {1000 * line.start_s:.1f} ms + {slope} ({how_well})"
    for key, group in _groups(systems, "pool_factor").items():
        if len(group) >= 2:
            slowest = max(group.values()) / min(group.values())
            yield f"{', '.join(key)}: pools of {_listed(group)} times the need differ by {slowest - 1:.0%}"


def _groups(systems: Seq[SystemResult], varied: str) -> dict[Key, dict[int, float]]:
    """What is the same -> {what is varied -> median step time in seconds}."""
    groups: dict[Key, dict[int, float]] = {}
    for system in systems:
        settings = {name: value for name, value in system.settings.items() if name != varied}
        key = (system.label.partition(",")[0], *_named(system.implementation), *_named(settings))
        groups.setdefault(key, {})[system.settings[varied]] = median(values(system, STEP))
    return groups


def _named(about: Mapping[str, object]) -> list[str]:
    return [f"{name} {value}" for name, value in about.items()]


def _listed(numbers: Mapping[int, float]) -> str:
    return ", ".join(map(str, sorted(numbers)))
