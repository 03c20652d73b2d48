"""`python -m shared.bench load`: a server under the loads that are asked for, round after round, as a result."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from shared.bench.host import Provenance
from shared.bench.load.asks import sha256
from shared.bench.load.live_line import LiveLine
from shared.bench.load.sweep import Case, Traffic, run_case, watch_text
from shared.bench.load.target import Target
from shared.bench.results import Figures, Result, SystemResult, WorkloadRecord

CODE = ["shared/bench/load/loops.py", "shared/bench/load/report.py"]


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """kind: of the result, which says what its table shows."""

    target: Target
    traffic: Traffic
    cases: Seq[Case]
    num_rounds: int
    provenance: Provenance
    kind: str = "load"


@dataclass(slots=True)
class Measured:
    """What has come of one case so far."""

    repeats: list[Figures] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, figures: Figures, notes: Seq[str]) -> None:
        self.repeats.append(figures)
        self.notes += [note for note in notes if note not in self.notes]


def run_load(plan: LoadPlan, line: LiveLine, keep: Callable[[Result], object]) -> bool:
    """Measure; `keep` gets the finished rounds, also when something ends them early. False if a case had no success."""
    measured = {case.name: Measured() for case in plan.cases}
    try:
        for number in range(1, plan.num_rounds + 1):
            _run_round(
                plan, measured, number, f"round {number} of {plan.num_rounds}, " if plan.num_rounds > 1 else "", line
            )
    finally:
        num_whole = min(len(one.repeats) for one in measured.values())
        if num_whole:
            keep(_result(plan, measured, num_whole))
    return all(has_success(one.repeats) for one in measured.values())


def has_success(repeats: Seq[Figures]) -> bool:
    """Also of a run that asked for nothing: nothing went wrong."""
    return any(repeat["num_ok"] for repeat in repeats) or all(repeat["num_requests"] == 0 for repeat in repeats)


def workload_record(traffic: Traffic) -> WorkloadRecord:
    asks = traffic.asks()
    return WorkloadRecord(traffic.kind, traffic.kind, traffic.seed, 1.0, len(asks), sha256(asks))


def slo_settings(traffic: Traffic) -> dict[str, int]:
    """As they are stored beside the figures, in milliseconds."""
    return {"slo_ttft_ms": round(1000 * traffic.slo.ttft_s), "slo_tpot_ms": round(1000 * traffic.slo.tpot_s)}


def summary_line(figures: Figures) -> str:
    ttft = figures["ttft_p50_s"]
    reasons = [name.partition("failed: ")[2] for name in figures if name.startswith("failed: ")]
    failed = f", {figures['num_failed']} failed ({'; '.join(reasons)})" if figures["num_failed"] else ""
    seen = "n/a" if ttft is None else f"{1000 * ttft:,.0f} ms"
    return f"{figures['num_ok']}/{figures['num_requests']} answered{failed}, TTFT p50 {seen}"


def _run_round(plan: LoadPlan, measured: dict[str, Measured], number: int, which: str, line: LiveLine) -> None:
    """Every case has prompts of its own: a server may have cached the last one's."""
    for place, case in enumerate(plan.cases):
        label = f"{which}{case.label}"
        draw = number * len(plan.cases) + place
        figures, notes = run_case(plan.target, plan.traffic, case, watch_text(line.show, label), draw)
        measured[case.name].add(figures, notes)
        line.keep(f"{label}: {summary_line(figures)}")


def _result(plan: LoadPlan, measured: dict[str, Measured], num_rounds: int) -> Result:
    return Result(
        kind=plan.kind,
        provenance=plan.provenance,
        systems=[
            SystemResult(
                name=case.name,
                label=case.label,
                repeats=measured[case.name].repeats[:num_rounds],
                num_requests=plan.traffic.num_requests,
                settings=slo_settings(plan.traffic),
                implementation={"model": plan.target.model, "api": plan.target.api},
                code=CODE,
                notes=measured[case.name].notes,
            )
            for case in plan.cases
        ],
        planned_repeats=plan.num_rounds,
        workload=workload_record(plan.traffic),
    )
