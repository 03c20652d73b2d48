"""From the rounds of a contest to a result, whatever ends it."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path

from shared.bench.competitor import Competitor
from shared.bench.contest import Contest, Round
from shared.bench.host import Provenance
from shared.bench.peers.process import PeerSpec, PeerWorker
from shared.bench.recorded_round import record_all
from shared.bench.results import ModelRecord, Result, SystemResult, WorkloadRecord
from shared.bench.systems import SystemSpec
from shared.bench.worker import Worker
from shared.bench.workloads import Workload

Keep = Callable[[Result], object]
Announce = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Stamp:
    """What all results of one command have in common. base: the name of the system that ratios refer to.

    record: folder for recordings of an untimed round after the others.
    """

    kind: str
    base: str
    num_rounds: int
    provenance: Provenance
    record: Path | None = None


def announced_worker(spec: SystemSpec | PeerSpec, announce: Announce) -> Competitor:
    announce(f"building {spec.name}")
    return PeerWorker(spec) if isinstance(spec, PeerSpec) else Worker(spec)


def expected_tokens(reference: Worker, workload: Workload, announce: Announce) -> list[list[int]]:
    """The tokens of each request, as HF gives them."""
    announce(f"{workload.label}: what HF answers")
    return [answer.token_ids for answer in reference.serve(workload.requests)[0].answers]


def run_and_keep(contest: Contest, stamp: Stamp, keep: Keep) -> None:
    """Run the rounds; `keep` gets the result of those that were finished, also when something ends them early."""
    finished: list[Round] = []
    try:
        for figures in contest.rounds(stamp.num_rounds):
            finished.append(figures)
    finally:
        if finished:
            keep(_result(contest, stamp, finished))
    if stamp.record is not None:
        record_all(contest, stamp.record)


def _result(contest: Contest, stamp: Stamp, finished: Seq[Round]) -> Result:
    worker, workload = contest.workers[0], contest.workload
    return Result(
        kind=stamp.kind,
        provenance=stamp.provenance,
        systems=[_system_result(contest, worker, finished) for worker in contest.workers],
        planned_repeats=stamp.num_rounds,
        base=stamp.base,
        model=ModelRecord(worker.info.model_name, worker.spec.model.dtype, worker.info.device, worker.info.num_threads),
        workload=WorkloadRecord(
            key=workload.shape.key,
            name=workload.shape.name,
            seed=workload.seed,
            scale=workload.scale,
            num_requests=len(workload.requests),
            sha256=workload.sha256,
        ),
    )


def _system_result(contest: Contest, worker: Competitor, finished: Seq[Round]) -> SystemResult:
    return SystemResult(
        name=worker.spec.name,
        label=worker.spec.label,
        repeats=[figures[worker.spec.name] for figures in finished],
        num_requests=contest.num_requests[worker.spec.name],
        settings=dict(worker.info.settings),
        implementation=dict(worker.info.implementation),
        code=[worker.spec.code],
    )
