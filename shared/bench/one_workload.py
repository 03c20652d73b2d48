"""A contest over a single workload: the reference answers, every system is built, and the rounds are run and kept."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from contextlib import ExitStack

from shared.bench.contest import Contest
from shared.bench.latency import Answer
from shared.bench.recording import Announce, Keep, Stamp, announced_worker, run_and_keep
from shared.bench.systems import SystemSpec, reference_spec
from shared.bench.worker import Worker
from shared.bench.workloads import Workload

Figures = Callable[[Seq[Answer]], Mapping[str, float | int | None]]
Prepare = Callable[[Worker], tuple[Workload, list[list[int]]]]  # the reference -> a workload, and its right tokens


def run_one_workload(
    specs: Seq[SystemSpec], prepare: Prepare, figures: Figures, stamp: Stamp, announce: Announce, keep: Keep
) -> None:
    """`keep` gets the rounds that were finished, also when something ends them early."""
    with Worker(reference_spec(specs[0].model)) as reference:
        workload, expected = prepare(reference)
    num_requests = {spec.name: len(workload.requests) for spec in specs}
    with ExitStack() as stack:
        workers = [stack.enter_context(announced_worker(spec, announce)) for spec in specs]
        contest = Contest(workload, workers, num_requests, workload.warm_up(), expected, figures, announce)
        run_and_keep(contest, stamp, keep)


def num_announcements(num_systems: int, num_rounds: int) -> int:
    """The reference's, then of each system: building, warm-up, rounds."""
    return 1 + num_systems * (2 + num_rounds)
