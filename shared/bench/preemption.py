"""`python -m shared.bench preemption`: a pool too small for everybody. Promise the worst case, or give back and go on?

The requests are questions, and every answer may have `MOST` tokens. Where the model ends it nobody knows beforehand.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from pathlib import Path

from shared.bench.host import Provenance
from shared.bench.latency import latencies
from shared.bench.one_workload import num_announcements, run_one_workload
from shared.bench.recorded_round import check_recordable, num_recorded
from shared.bench.recording import Announce, Keep, Stamp, expected_tokens
from shared.bench.systems import BENCH_CONFIG, ModelChoice, SystemSpec, phase_spec
from shared.bench.worker import Worker
from shared.bench.workloads import Workload, make_workload
from shared.errors import SetupError
from shared.registry import phase_by_number
from shared.request import SamplingParams

MOST = 256  # output tokens that every request asks for
BASE = "phase08"
SHAPE = "chat"
PARAMS = SamplingParams(max_tokens=MOST)


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """pool_slots: sizes of the pool, in tokens. scale: share of the workload's requests."""

    pool_slots: Seq[int]
    model: ModelChoice
    scale: float
    seed: int
    num_rounds: int
    provenance: Provenance
    record: Path | None = None  # folder for recordings of an untimed round

    def __post_init__(self) -> None:
        self.check_pools(MOST)
        check_recordable(self.record, self.specs)

    def check_pools(self, least: int) -> None:
        """Raises SetupError where a pool is no number of blocks, or the longest request can never run in phase 8."""
        for num_slots in self.pool_slots:
            if num_slots < least or num_slots % BENCH_CONFIG.kv_block_size:
                raise SetupError(
                    f"--pool-slots {num_slots}: give a multiple of {BENCH_CONFIG.kv_block_size} of at least {least}, "
                    "or the longest request can never run in phase 8"
                )

    @property
    def specs(self) -> list[SystemSpec]:
        return [spec for num_slots in self.pool_slots for spec in _specs(self.model, num_slots)]

    @property
    def num_announcements(self) -> int:
        return num_announcements(len(self.specs), self.num_rounds) + num_recorded(self.record, self.specs)


def run_preemption(plan: PreemptionPlan, announce: Announce, keep: Keep) -> None:
    """Measure; `keep` gets the result with the rounds that were finished."""

    def prepare(reference: Worker) -> tuple[Workload, list[list[int]]]:
        vocab_size = reference.info.vocab_size
        drawn = make_workload(SHAPE, vocab_size=vocab_size, seed=plan.seed, scale=plan.scale, encode=reference.encode)
        workload = replace(drawn, requests=tuple(replace(r, params=PARAMS) for r in drawn.requests))
        plan.check_pools(workload.longest)
        return workload, expected_tokens(reference, workload, announce)

    stamp = Stamp("preemption", BASE, plan.num_rounds, plan.provenance, plan.record)
    run_one_workload(plan.specs, prepare, latencies, stamp, announce, keep)


def _specs(model: ModelChoice, num_slots: int) -> Iterator[SystemSpec]:
    """Of one pool size; the name's part before the slash is the pool."""
    pool = replace(BENCH_CONFIG, kv_num_blocks=num_slots // BENCH_CONFIG.kv_block_size, enable_prefix_caching=False)
    reserving = phase_spec(model, phase_by_number(8), pool)
    yield replace(reserving, name=f"{num_slots}/{BASE}", label=f"{num_slots:,} slots: worst case promised (phase 8)")
    for mode in ("swap", "recompute"):
        spec = phase_spec(model, phase_by_number(9), replace(pool, preemption_mode=mode))
        yield replace(
            spec, name=f"{num_slots}/phase09-{mode}", label=f"{num_slots:,} slots: preemption by {mode} (phase 9)"
        )
