"""`python -m shared.bench offline`: all requests at once, every phase beside Hugging Face, in alternating rounds."""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from shared.bench.contest import Contest, Round
from shared.bench.host import Provenance
from shared.bench.results import ModelRecord, Result, SystemResult, WorkloadRecord
from shared.bench.systems import SystemInfo, SystemSpec, reference_spec
from shared.bench.worker import Worker
from shared.bench.workloads import Workload, check_key, make_workload, num_scaled
from shared.errors import SetupError

Keep = Callable[[Result], None]
Announce = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class OfflinePlan:
    """What to run. specs: the systems, in the order of a round. base: the name of the one that ratios refer to.

    scale: share of each workload's requests, in (0, 1]. slow_scale: share of those that slow systems run.
    """

    workload_keys: Seq[str]
    specs: Seq[SystemSpec]
    base: str
    scale: float
    slow_scale: float
    seed: int
    num_rounds: int
    provenance: Provenance

    def __post_init__(self) -> None:
        names = [spec.name for spec in self.specs]
        if not names:
            raise SetupError("there is nothing to run: name phases or baselines")
        if self.base not in names:
            raise SetupError(f"the base {self.base!r} is not among the systems that run: {', '.join(names)}")
        for scale in (self.scale, self.slow_scale):
            num_scaled(1, scale)
        for key in self.workload_keys:
            check_key(key)

    @property
    def num_announcements(self) -> int:
        return len(self.workload_keys) * (1 + len(self.specs) * (1 + self.num_rounds)) + len(self.specs)

    def num_requests(self, spec: SystemSpec, workload: Workload) -> int:
        return num_scaled(len(workload.requests), self.slow_scale if spec.is_slow else 1.0)


def run_offline(plan: OfflinePlan, announce: Announce, keep: Keep) -> None:
    """Measure workload after workload; `keep` gets each one's result, with the rounds that were finished.

    Also when it is interrupted, or a system fails (SystemFailed). Raises SetupError before anything is timed.
    """
    workloads, expected = _workloads_and_answers(plan, announce)
    with ExitStack() as stack:
        workers = [stack.enter_context(_announced_worker(spec, announce)) for spec in plan.specs]
        for workload, tokens in zip(workloads, expected):
            num_requests = {spec.name: plan.num_requests(spec, workload) for spec in plan.specs}
            with _kept_in_any_case(plan, workload, workers, keep) as finished:
                for figures in Contest(workload, workers, num_requests, tokens, announce).rounds(plan.num_rounds):
                    finished.append(figures)


@contextmanager
def _kept_in_any_case(plan: OfflinePlan, workload: Workload, workers: Seq[Worker], keep: Keep) -> Iterator[list[Round]]:
    finished: list[Round] = []
    try:
        yield finished
    finally:
        if finished:
            keep(_result(plan, workload, workers, finished))


def _announced_worker(spec: SystemSpec, announce: Announce) -> Worker:
    announce(f"building {spec.name}")
    return Worker(spec)


def _workloads_and_answers(plan: OfflinePlan, announce: Announce) -> tuple[list[Workload], list[list[list[int]]]]:
    """The workloads for this model, and for each the tokens of its requests; the reference's memory is free again."""
    with Worker(reference_spec(plan.specs[0].model)) as reference:
        workloads = [_workload(plan, key, reference.info) for key in plan.workload_keys]
        expected = []
        for workload in workloads:
            announce(f"{workload.label}: what HF answers")
            expected.append([answer.token_ids for answer in reference.serve(workload.requests)[0].answers])
    return workloads, expected


def _workload(plan: OfflinePlan, key: str, info: SystemInfo) -> Workload:
    workload = make_workload(
        key, vocab_size=info.vocab_size, special_ids=info.special_ids, seed=plan.seed, scale=plan.scale
    )
    if workload.longest > info.max_model_len:
        raise SetupError(
            f"workload {key} has {workload.longest} tokens in a sequence; the model takes {info.max_model_len}"
        )
    return workload


def _result(plan: OfflinePlan, workload: Workload, workers: Seq[Worker], finished: Seq[Round]) -> Result:
    choice, info = plan.specs[0].model, workers[0].info
    return Result(
        kind="offline",
        provenance=plan.provenance,
        systems=[_system_result(plan, workload, worker, finished) for worker in workers],
        planned_repeats=plan.num_rounds,
        base=plan.base,
        model=ModelRecord(info.model_name, choice.dtype, info.device, info.num_threads),
        workload=WorkloadRecord(
            key=workload.shape.key,
            name=workload.shape.name,
            seed=workload.seed,
            scale=workload.scale,
            num_requests=len(workload.requests),
            sha256=workload.sha256,
        ),
    )


def _system_result(plan: OfflinePlan, workload: Workload, worker: Worker, finished: Seq[Round]) -> SystemResult:
    return SystemResult(
        name=worker.spec.name,
        label=worker.spec.label,
        repeats=[figures[worker.spec.name] for figures in finished],
        num_requests=plan.num_requests(worker.spec, workload),
        settings=dict(worker.info.settings),
        implementation=dict(worker.info.implementation),
        code=[worker.spec.code],
    )
