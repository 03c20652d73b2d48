"""`python -m shared.bench offline`: all requests at once, every phase beside Hugging Face, in alternating rounds."""

from collections.abc import Sequence as Seq
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from shared.bench.contest import Contest
from shared.bench.host import Provenance
from shared.bench.latency import latencies
from shared.bench.peers.process import PeerSpec
from shared.bench.recorded_round import check_recordable, num_recorded
from shared.bench.recording import Announce, Keep, Stamp, announced_worker, expected_tokens, run_and_keep
from shared.bench.systems import SystemSpec, reference_spec
from shared.bench.worker import Worker
from shared.bench.workloads import Workload, check_key, make_workload, num_scaled
from shared.errors import SetupError


@dataclass(frozen=True, slots=True)
class OfflinePlan:
    """What to run. specs: the systems, in the order of a round. base: the name of the one that ratios refer to.

    scale: share of each workload's requests, in (0, 1]. slow_scale: share of those that slow systems run.
    kind: of the results.
    """

    workload_keys: Seq[str]
    specs: Seq[SystemSpec | PeerSpec]
    base: str
    scale: float
    slow_scale: float
    seed: int
    num_rounds: int
    provenance: Provenance
    kind: str = "offline"
    record: Path | None = None  # folder for recordings of an untimed round

    def __post_init__(self) -> None:
        names = [spec.name for spec in self.specs]
        if not names:
            raise SetupError("there is nothing to run: name phases or baselines")
        if self.base not in {*names, *(name.rpartition("/")[2] for name in names)}:
            raise SetupError(f"the base {self.base!r} is not among the systems that run: {', '.join(names)}")
        for scale in (self.scale, self.slow_scale):
            num_scaled(1, scale)
        for key in self.workload_keys:
            check_key(key)
        check_recordable(self.record, self.specs)

    @property
    def num_announcements(self) -> int:
        runs = 1 + len(self.specs) * (1 + self.num_rounds) + num_recorded(self.record, self.specs)
        return len(self.workload_keys) * runs + len(self.specs)

    def num_requests(self, spec: SystemSpec | PeerSpec, workload: Workload) -> int:
        return num_scaled(len(workload.requests), self.slow_scale if spec.is_slow else 1.0)


def run_offline(plan: OfflinePlan, announce: Announce, keep: Keep) -> None:
    """Measure workload after workload; `keep` gets each one's result, with the rounds that were finished.

    Also when it is interrupted, or a system fails (SystemFailed). Raises SetupError before anything is timed.
    """
    stamp = Stamp(plan.kind, plan.base, plan.num_rounds, plan.provenance, plan.record)
    workloads, expected = _workloads_and_answers(plan, announce)
    with ExitStack() as stack:
        workers = [stack.enter_context(announced_worker(spec, announce)) for spec in plan.specs]
        for workload, tokens in zip(workloads, expected):
            num_requests = {spec.name: plan.num_requests(spec, workload) for spec in plan.specs}
            contest = Contest(workload, workers, num_requests, workload.warm_up(), tokens, latencies, announce)
            run_and_keep(contest, stamp, keep)


def _workloads_and_answers(plan: OfflinePlan, announce: Announce) -> tuple[list[Workload], list[list[list[int]]]]:
    """The workloads for this model, and for each the tokens of its requests; the reference's memory is free again."""
    with Worker(reference_spec(plan.specs[0].model)) as reference:
        workloads = [_workload(plan, key, reference) for key in plan.workload_keys]
        return workloads, [expected_tokens(reference, workload, announce) for workload in workloads]


def _workload(plan: OfflinePlan, key: str, reference: Worker) -> Workload:
    info = reference.info
    workload = make_workload(
        key,
        vocab_size=info.vocab_size,
        special_ids=info.special_ids,
        seed=plan.seed,
        scale=plan.scale,
        encode=reference.encode,
    )
    if workload.longest > info.max_model_len:
        raise SetupError(
            f"workload {key} has {workload.longest} tokens in a sequence; the model takes {info.max_model_len}"
        )
    return workload
