"""`python -m shared.bench capacity`: how many sequences run at once on the same slots, by how memory is promised.

No model: a token costs nothing and has no time. What is real is the bookkeeping, the block allocator's and the
scheduler's, so the figures are the same on every machine.
"""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from shared.bench.capacity_load import LOADS, Job, Load, sha256
from shared.bench.capacity_run import measure
from shared.bench.capacity_systems import CONTIGUOUS, KINDS, ON_DEMAND, Kind, PoolSize
from shared.bench.host import Provenance
from shared.bench.results import Figures, Result, SystemResult, WorkloadRecord
from shared.config import EngineConfig
from shared.errors import SetupError
from shared.registry import phase_by_number

BLOCK_SIZE = EngineConfig().kv_block_size  # tokens, where no sweep says otherwise


@dataclass(frozen=True, slots=True)
class Case:
    """One load on one system."""

    load: Load
    kind: Kind
    block_size: int

    @property
    def name(self) -> str:
        return f"{self.load.key}/{self.kind.key}"


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """What to run. pool_slots: tokens whose K/V there is room for, for every system the same.

    block_sizes: of the sweep. num_rounds: draws of the jobs, with the seeds `seed`, `seed + 1`, ...
    """

    pool_slots: int
    block_sizes: Seq[int]
    seed: int
    num_rounds: int
    provenance: Provenance

    def __post_init__(self) -> None:
        longest = max(load.longest for load in LOADS.values())
        for block_size in sorted({BLOCK_SIZE, *self.block_sizes}):
            if self.pool_slots % block_size:
                raise SetupError(
                    f"a pool of {self.pool_slots} slots is no whole number of blocks of {block_size}: everyone must "
                    f"have the same slots; give a --pool-slots that {block_size} divides"
                )
            if self.pool_slots < -(-longest // block_size) * block_size:
                raise SetupError(
                    f"--pool-slots {self.pool_slots}: the longest sequence, {longest} tokens, does not fit in blocks "
                    f"of {block_size}"
                )

    @property
    def cases(self) -> list[Case]:
        """Of the comparison: every load on every system."""
        return [Case(load, kind, BLOCK_SIZE) for load in LOADS.values() for kind in KINDS]

    @property
    def sweep(self) -> list[Case]:
        """Of each load the contiguous slabs that gains refer to, then every block size."""
        return [
            case
            for load in LOADS.values()
            for case in (
                Case(load, CONTIGUOUS, BLOCK_SIZE),
                *(Case(load, ON_DEMAND, block_size) for block_size in sorted(set(self.block_sizes))),
            )
        ]

    @property
    def num_announcements(self) -> int:
        return self.num_rounds * len({*self.cases, *self.sweep})


def run_capacity(plan: CapacityPlan, announce: Callable[[str], None]) -> list[Result]:
    """The comparison and the sweep over block sizes; what both need is run once."""
    rounds = [_run_round(plan, number, announce) for number in range(plan.num_rounds)]
    record = WorkloadRecord(
        key=str(plan.pool_slots),
        name="capacity",
        seed=plan.seed,
        scale=1.0,
        num_requests=len(list(_all_jobs(plan))),
        sha256=sha256(_all_jobs(plan)),
    )
    comparison = [_system(case, case.name, rounds) for case in plan.cases]
    sweep = [_system(case, _name_in_sweep(case), rounds) for case in plan.sweep]
    return [
        Result(kind, plan.provenance, systems, plan.num_rounds, base=CONTIGUOUS.key, workload=record)
        for kind, systems in (("capacity", comparison), ("capacity-sweep", sweep))
    ]


def _run_round(plan: CapacityPlan, number: int, announce: Callable[[str], None]) -> dict[Case, Figures]:
    figures: dict[Case, Figures] = {}
    seed = plan.seed + number
    for case in dict.fromkeys((*plan.cases, *plan.sweep)):
        announce(f"draw {number + 1} of {plan.num_rounds}: {case.load.label}, {_label(case)}")
        jobs = case.load.draw(plan.pool_slots, seed)
        figures[case] = {"seed": seed, **measure(case.kind, PoolSize(plan.pool_slots, case.block_size), jobs)}
    return figures


def _all_jobs(plan: CapacityPlan) -> Iterator[Job]:
    for number in range(plan.num_rounds):
        for load in LOADS.values():
            yield from load.draw(plan.pool_slots, plan.seed + number)


def _system(case: Case, name: str, rounds: Seq[dict[Case, Figures]]) -> SystemResult:
    block_size = {"block_size": case.block_size} if case.kind.has_blocks else {}
    of_phase = [f"{phase_by_number(case.kind.phase).package}/scheduler.py"] if case.kind.phase else []
    return SystemResult(
        name=name,
        label=case.kind.label,
        repeats=[figures[case] for figures in rounds],
        settings={"max_tokens": case.load.max_tokens} | block_size,
        code=["shared/bench/capacity_run.py", *of_phase],
        workload=case.load.label,
    )


def _name_in_sweep(case: Case) -> str:
    return case.name if not case.kind.has_blocks else f"{case.name}-{case.block_size}"


def _label(case: Case) -> str:
    return case.kind.label if not case.kind.has_blocks else f"{case.kind.label}, blocks of {case.block_size}"
