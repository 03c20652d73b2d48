"""Which charts there are: the question of each, the published result that it is drawn from, and who measures that."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from matplotlib.figure import Figure

from shared.bench.charts.bars import draw_ablation, draw_moves, draw_prefix, draw_throughput, draw_ttft, draw_waterfall
from shared.bench.charts.lines import draw_serving, draw_speculation
from shared.bench.charts.memory import draw_capacity, draw_memory, draw_preemption
from shared.bench.charts.steps import draw_step_parts, draw_step_time, step_groups
from shared.bench.charts.theme import Theme, as_svg, drawn_in
from shared.bench.charts.time import draw_gaps, draw_who_waits
from shared.bench.results import Result

LEAST_PHASES = 3  # that a picture "by phase" shows


@dataclass(frozen=True, slots=True)
class Chart:
    """find: file name -> result, oldest first, to the results that are drawn; none where they are missing.

    command: what measures them.
    """

    name: str
    command: str
    find: Callable[[Mapping[str, Result]], list[Result]]
    draw: Callable[[list[Result], Theme], Figure]

    def svg(self, results: list[Result], theme: Theme) -> bytes:
        with drawn_in(theme):
            return as_svg(self.draw(results, theme))


def newest(
    kind: str,
    workload: str | None = None,
    fits: Callable[[Result], bool] = lambda _result: True,
    dtype: str = "float32",
) -> Callable[[Mapping[str, Result]], list[Result]]:
    """The newest result of a kind, in this dtype where it has one."""

    def find(results: Mapping[str, Result]) -> list[Result]:
        fitting = [
            result
            for result in results.values()
            if result.kind == kind
            and (workload is None or (result.workload is not None and result.workload.key == workload))
            and (result.model is None or result.model.dtype == dtype)
            and fits(result)
        ]
        return fitting[-1:]

    return find


def newest_of_each(
    kind: str, workloads: Seq[str], dtype: str = "float32"
) -> Callable[[Mapping[str, Result]], list[Result]]:
    """One result for each workload that there is one of."""
    return lambda results: [found for key in workloads for found in newest(kind, key, dtype=dtype)(results)]


def num_phases(result: Result) -> int:
    return sum(system.name.startswith("phase") and "-" not in system.name for system in result.systems)


def has_phases(result: Result) -> bool:
    return num_phases(result) >= LEAST_PHASES


def has_contexts(result: Result) -> bool:
    """Whether there is a line to draw."""
    return any(len(points) > 1 for points in step_groups(result)[1].values())


def has_variants(result: Result) -> bool:
    """Enough of them to compare."""
    names = {system.name for system in result.systems}
    return sum("-" in name and name.partition("-")[0] in names for name in names if name.startswith("phase")) > 1


def has_hits(result: Result) -> bool:
    return any(repeat.get("prefix_hit_tokens") for system in result.systems for repeat in system.repeats)


def of_one(draw: Callable[[Result, Theme], Figure]) -> Callable[[list[Result], Theme], Figure]:
    return lambda results, theme: draw(results[0], theme)


OFFLINE = "python -m shared.bench offline --workloads {} --publish"
CHARTS = (
    Chart("throughput", OFFLINE.format("A"), newest("offline", "A", has_phases), of_one(draw_throughput)),
    Chart("ttft", OFFLINE.format("A"), newest("offline", "A", has_phases), of_one(draw_ttft)),
    Chart("waterfall", OFFLINE.format("A"), newest("offline", "A", has_phases), of_one(draw_waterfall)),
    Chart(
        "ablation",
        OFFLINE.format("A --phases 12 --baselines none --ablate all"),
        newest("offline", "A", has_variants),
        of_one(draw_ablation),
    ),
    Chart("who-waits", "python -m shared.bench who-waits --publish", newest("who-waits"), of_one(draw_who_waits)),
    Chart("gaps", "python -m shared.bench interference --publish", newest("interference"), of_one(draw_gaps)),
    Chart("memory", "python -m shared.bench capacity --publish", newest("capacity"), of_one(draw_memory)),
    Chart("capacity", "python -m shared.bench capacity --publish", newest("capacity"), of_one(draw_capacity)),
    Chart(
        "prefix",
        OFFLINE.format("B --phases 9,12 --baselines hf-static --ablate no-cache"),
        newest("offline", "B", has_hits),
        of_one(draw_prefix),
    ),
    Chart(
        "speculation",
        "python -m shared.bench speculation --publish",
        newest_of_each("speculation", ("repetitive", "chat")),
        draw_speculation,
    ),
    Chart(
        "speculation-bf16",
        "python -m shared.bench speculation --dtype bfloat16 --publish",
        newest_of_each("speculation", ("repetitive", "chat"), "bfloat16"),
        draw_speculation,
    ),
    Chart("preemption", "python -m shared.bench preemption --publish", newest("preemption"), of_one(draw_preemption)),
    Chart("serving", "python -m shared.bench serving --publish", newest("serving"), of_one(draw_serving)),
    Chart(
        "step-time",
        "python -m shared.bench step-time --publish",
        newest("step-time", fits=has_contexts),
        of_one(draw_step_time),
    ),
    Chart("step-parts", "python -m shared.bench step-parts --publish", newest("step-parts"), of_one(draw_step_parts)),
    Chart("moves", "python -m shared.bench moves --publish", newest("moves"), of_one(draw_moves)),
)
