"""`python -m shared.bench who-waits`: four requests at one moment, on one clock. Who waits, and how long?"""

import random
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from pathlib import Path

from shared.bench.host import Provenance
from shared.bench.latency import Answer, latencies
from shared.bench.one_workload import num_announcements, run_one_workload
from shared.bench.recorded_round import check_recordable, num_recorded
from shared.bench.recording import Announce, Keep, Stamp, expected_tokens
from shared.bench.systems import BENCH_CONFIG, ModelChoice, SystemSpec, phase_spec
from shared.bench.worker import Worker
from shared.bench.workloads import Shape, Workload, forced_request, plain_ids
from shared.errors import SetupError
from shared.registry import Phase

PROMPT = 32  # tokens


@dataclass(frozen=True, slots=True)
class WhoWaitsPlan:
    """num_tokens: of each output."""

    phases: Seq[Phase]
    num_requests: int
    num_tokens: int
    model: ModelChoice
    seed: int
    num_rounds: int
    provenance: Provenance
    record: Path | None = None  # folder for recordings of an untimed round

    def __post_init__(self) -> None:
        if not self.phases:
            raise SetupError("there is nothing to run: name --phases")
        check_recordable(self.record, self.specs)

    @property
    def specs(self) -> list[SystemSpec]:
        config = replace(BENCH_CONFIG, enable_prefix_caching=False)
        return [phase_spec(self.model, phase, config) for phase in self.phases]

    @property
    def num_announcements(self) -> int:
        return num_announcements(len(self.phases), self.num_rounds) + num_recorded(self.record, self.specs)


def run_who_waits(plan: WhoWaitsPlan, announce: Announce, keep: Keep) -> None:
    """Measure; `keep` gets the result with the rounds that were finished."""

    def prepare(reference: Worker) -> tuple[Workload, list[list[int]]]:
        workload = _workload(plan, plain_ids(reference.info.vocab_size, reference.info.special_ids))
        return workload, expected_tokens(reference, workload, announce)

    stamp = Stamp("who-waits", plan.specs[0].name, plan.num_rounds, plan.provenance, plan.record)
    run_one_workload(plan.specs, prepare, moments, stamp, announce, keep)


def moments(answers: Seq[Answer]) -> dict[str, float | None]:
    """When each request had its first token, and its last, in seconds from the moment that all were handed over."""
    figures: dict[str, float | None] = dict(latencies(answers))
    for number, answer in enumerate(answers, 1):
        figures[f"request{number}_first_s"] = answer.token_times[0] if answer.token_times else None
        figures[f"request{number}_last_s"] = answer.token_times[-1] if answer.token_times else None
    return figures


def _workload(plan: WhoWaitsPlan, ids: list[int]) -> Workload:
    rng = random.Random(plan.seed)
    requests = tuple(forced_request(rng.choices(ids, k=PROMPT), plan.num_tokens) for _ in range(plan.num_requests))
    shape = Shape(
        key=f"{plan.num_requests}x{plan.num_tokens}",
        name="who_waits",
        stresses="who waits for whom",
        num_requests=plan.num_requests,
        prompt=(PROMPT, PROMPT),
        output=(plan.num_tokens, plan.num_tokens),
    )
    return Workload(shape, plan.seed, 1.0, requests)
