"""`python -m shared.bench serving`: each phase's real server in turn, under the same arrivals at rising rates.

round 1: [ start phase 1 | rate 1, 2, ... | stop ] [ start phase 2 | ... ] ...      round 2: the same again
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from shared.bench.code_files import REPOSITORY
from shared.bench.cpu_clock import CpuClock
from shared.bench.host import Provenance
from shared.bench.load.arrivals import INFINITE, rate_text
from shared.bench.load.live_line import LiveLine
from shared.bench.load.server_process import ServerProcess
from shared.bench.load.sweep import Traffic, model_of, rate_case, run_case, watch_text
from shared.bench.load.target import Target
from shared.bench.load_run import Measured, slo_settings, summary_line, workload_record
from shared.bench.recorded_round import make_folder
from shared.bench.results import Figures, ModelRecord, Result, SystemResult
from shared.bench.systems import LAST_SLOW_PHASE, ModelChoice
from shared.bench.workloads import num_scaled
from shared.errors import SetupError
from shared.registry import Phase

PATIENT = ("--queue-capacity", "4096", "--queue-timeout-s", "none")  # the wait is measured, so nobody is sent away


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """rates: requests per second, inf for all at once. slow_scale: share of the requests for phases up to 6.

    options: more of the servers' command line.
    """

    phases: Seq[Phase]
    rates: Seq[float]
    traffic: Traffic
    slow_scale: float
    model: ModelChoice
    options: Seq[str]
    num_rounds: int
    provenance: Provenance
    record: Path | None = None  # folder for recordings of a sweep that does not count

    def __post_init__(self) -> None:
        if not self.phases:
            raise SetupError("there is nothing to serve: name --phases")
        make_folder(self.record)
        num_scaled(1, self.slow_scale)

    @property
    def rows(self) -> list[tuple[Phase, float]]:
        return [(phase, rate) for phase in self.phases for rate in self.rates]

    def traffic_of(self, phase: Phase) -> Traffic:
        share = self.slow_scale if phase.number <= LAST_SLOW_PHASE else 1.0
        return replace(self.traffic, num_requests=num_scaled(self.traffic.num_requests, share))


def row_name(phase: Phase, rate: float) -> str:
    return f"phase{phase.number:02d}@{rate:g}"


def run_serving(plan: ServingPlan, line: LiveLine, keep: Callable[[Result], object]) -> bool:
    """Measure; `keep` gets the finished rounds, also when something ends them early. False if a load had no success.

    Raises SystemFailed for a server that does not start or dies.
    """
    measured = {row_name(*row): Measured() for row in plan.rows}
    models: list[ModelRecord] = []
    with served_model(plan.model) as folder:
        try:
            for number in range(1, plan.num_rounds + 1):
                for phase in plan.phases:
                    models.append(_sweep(plan, phase, folder, f"round {number} of {plan.num_rounds}", measured, line))
        finally:
            num_whole = min(len(one.repeats) for one in measured.values())
            if num_whole:
                keep(_result(plan, measured, num_whole, models[0]))
        for phase in plan.phases if plan.record is not None else ():
            _record(plan, phase, folder, line)
    return all(any(repeat["num_ok"] for repeat in one.repeats) for one in measured.values())


@contextmanager
def served_model(choice: ModelChoice) -> Iterator[str | None]:
    """What the servers' --model gets; a tiny one is written to a folder that goes away afterwards."""
    if not choice.is_tiny:
        yield choice.name
        return
    from shared.bench.build import load

    with TemporaryDirectory() as folder:
        load(choice)[0].save_pretrained(Path(folder, "tiny"))
        yield str(Path(folder, "tiny"))


def start_server(phase: Phase, choice: ModelChoice, model: str | None, more: Seq[str] = ()) -> ServerProcess:
    """model: what `served_model` gave for the choice. more: options of its command line."""
    options = ["--dtype", choice.dtype, *PATIENT, *more]
    if model is not None:
        options += ["--model", model]
    threads = {"OMP_NUM_THREADS": str(choice.num_threads)} if choice.num_threads else {}
    return ServerProcess(phase.label, phase.package, options, REPOSITORY, threads)


@contextmanager
def own_server(phase: Phase, choice: ModelChoice) -> Iterator[str]:
    """A phase's server for a while; yields its URL."""
    with served_model(choice) as model, start_server(phase, choice, model) as server:
        yield server.url


def _sweep(
    plan: ServingPlan, phase: Phase, folder: str | None, which: str, measured: dict[str, Measured], line: LiveLine
) -> ModelRecord:
    line.show(f"{which}, {phase.label}: starting its server")
    with start_server(phase, plan.model, folder, plan.options) as server:
        target = Target(server.url, has_token_ids=True, ignore_eos=plan.traffic.kind == "tokens")
        target = replace(target, model=model_of(target) or "default")
        for draw, rate in enumerate(plan.rates):  # the same for every phase, and new to this server
            target = replace(target, extra={"cache_salt": f"rate {draw}"})
            label = f"{which}, {phase.label}, {rate_text(rate)}"
            before = CpuClock.now()
            watch = watch_text(line.show, label)
            figures, notes = run_case(target, plan.traffic_of(phase), rate_case(rate), watch, draw)
            own = _own_figures(server, rate) | {"other_cpu_share": CpuClock.now().other_share_since(before)}
            measured[row_name(phase, rate)].add(figures | own, notes)
            line.keep(f"{label}: {summary_line(figures)}")
    return _model_record(plan.model, target.model)


def _record(plan: ServingPlan, phase: Phase, folder: str | None, line: LiveLine) -> None:
    """The same sweep once more, by a server that is recorded; its figures are thrown away."""
    assert plan.record is not None
    path = plan.record.resolve() / f"serving-phase{phase.number:02d}.jsonl"
    recorded = replace(plan, options=[*plan.options, "--record", str(path)])
    _sweep(recorded, phase, folder, "recorded, not counted", defaultdict(Measured), line)


def _own_figures(server: ServerProcess, rate: float) -> Figures:
    rss = psutil.Process(server.pid).memory_info().rss
    return {"offered_rps": None if rate == INFINITE else rate, "rss_bytes": rss}


def _model_record(choice: ModelChoice, name: str) -> ModelRecord:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return ModelRecord(name, choice.dtype, device, choice.num_threads or torch.get_num_threads())


def _result(plan: ServingPlan, measured: dict[str, Measured], num_rounds: int, model: ModelRecord) -> Result:
    def system(phase: Phase, rate: float) -> SystemResult:
        one = measured[row_name(phase, rate)]
        return SystemResult(
            name=row_name(phase, rate),
            label=f"{phase.label}, {rate_text(rate)}",
            repeats=one.repeats[:num_rounds],
            num_requests=plan.traffic_of(phase).num_requests,
            settings=slo_settings(plan.traffic),
            code=[f"{phase.package}/engine.py"],
            notes=one.notes,
        )

    return Result(
        kind="serving",
        provenance=plan.provenance,
        systems=[system(*row) for row in plan.rows],
        planned_repeats=plan.num_rounds,
        model=model,
        workload=workload_record(plan.traffic),
    )
