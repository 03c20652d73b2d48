"""The three ways to promise memory that the capacity study compares, each with a scheduler that keeps the promise.

contiguous   a slab of prompt + max_tokens slots at admission            the study's own, in a few lines
worst_case   blocks as it grows; all it may ever need is promised        phase 6's allocator and scheduler
on_demand    blocks as it grows; the newest is preempted if need be      phase 6's allocator, phase 9's scheduler
"""

import importlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from shared.bench.capacity_load import Job
from shared.bench.slabs import SlabAllocator
from shared.completion import accept_tokens
from shared.config import EngineConfig
from shared.events import EventLog
from shared.output import StepOutput
from shared.registry import phase_by_number
from shared.sequence import Sequence
from shared.step import SampledToken, ScheduledSequence, StepPlan

PROMISING, PREEMPTING = 6, 9  # phases


class PoolUse(Protocol):
    @property
    def num_allocated_slots(self) -> int: ...
    @property
    def num_used_slots(self) -> int: ...


class Pool(Protocol):
    def fragmentation(self, num_tokens: Mapping[str, int]) -> PoolUse: ...
    def check_integrity(self) -> None: ...


class Scheduler(Protocol):
    """What the study needs of one; those of phases 6 and 9 have it."""

    running: list[Sequence]
    waiting: deque[Sequence]

    def add(self, seq: Sequence) -> None: ...
    def plan(self) -> StepPlan: ...
    def apply(self, plan: StepPlan, sampled: list[list[SampledToken]]) -> list[StepOutput]: ...


@dataclass(frozen=True, slots=True)
class PoolSize:
    """num_slots: tokens whose K/V there is room for."""

    num_slots: int
    block_size: int

    @property
    def num_blocks(self) -> int:
        return self.num_slots // self.block_size

    def in_blocks(self, num_tokens: int) -> int:
        """The slots of the blocks that so many tokens fill or begin."""
        return -(-num_tokens // self.block_size) * self.block_size


@dataclass(frozen=True, slots=True)
class System:
    """A scheduler with its memory. reserved_slots: of a running sequence, those that nobody else may have."""

    scheduler: Scheduler
    pool: Pool
    events: EventLog
    reserved_slots: Callable[[Sequence], int]


class SlabScheduler:
    """First come, first served, whole prompts, and a slab for as long as a sequence runs."""

    def __init__(self, allocator: SlabAllocator) -> None:
        self.allocator = allocator
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def add(self, seq: Sequence) -> None:
        self.waiting.append(seq)

    def plan(self) -> StepPlan:
        while self.waiting and self.allocator.take(self.waiting[0].name, self.waiting[0].max_num_tokens):
            self.running.append(self.waiting.popleft())
        return StepPlan([ScheduledSequence.next_tokens(seq, seq.num_uncomputed_tokens) for seq in self.running])

    def apply(self, plan: StepPlan, sampled: list[list[SampledToken]]) -> list[StepOutput]:
        outputs = []
        for item, tokens in zip(plan.items, sampled):
            item.seq.num_computed_tokens += item.num_tokens
            outputs.append(accept_tokens(item.seq, tokens))
            if item.seq.is_finished:
                self.allocator.free(item.seq.name)
        self.running = [seq for seq in self.running if not seq.is_finished]
        return outputs


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to promise memory. phase: whose scheduler it is, if it is one's.

    full_slots: what a job holds or has reserved when it is at its full length.
    """

    key: str
    label: str
    build: Callable[[PoolSize], System]
    full_slots: Callable[[Job, PoolSize], int]
    phase: int | None = None

    @property
    def has_blocks(self) -> bool:
        return self.phase is not None


def _contiguous(size: PoolSize) -> System:
    allocator = SlabAllocator(size.num_slots)
    return System(SlabScheduler(allocator), allocator, EventLog(), lambda seq: allocator.slabs[seq.name].num_slots)


def _worst_case(size: PoolSize) -> System:
    allocator, events = _block_allocator(size), EventLog()
    scheduler = part(PROMISING, "scheduler").Scheduler(_config(size), allocator, events)
    return System(scheduler, allocator, events, lambda seq: size.in_blocks(seq.max_num_tokens - 1))


def _on_demand(size: PoolSize) -> System:
    """Victims are recomputed: to swap them out would take memory that the others do not have."""
    allocator, events = _block_allocator(size), EventLog()
    no_swap = part(PREEMPTING, "cpu_swap_manager").CPUSwapManager(0, copier=None)
    scheduler = part(PREEMPTING, "scheduler").Scheduler(_config(size), allocator, no_swap, events)
    return System(scheduler, allocator, events, lambda seq: len(allocator.block_tables[seq.name]) * size.block_size)


def _config(size: PoolSize) -> EngineConfig:
    """No limit but memory: a batch and a step may be as large as the pool."""
    return EngineConfig(
        max_batch_size=size.num_slots,
        prefill_budget_tokens=size.num_slots,
        prefill_chunk_size=size.num_slots,
        preemption_mode="recompute",
    )


def _block_allocator(size: PoolSize) -> Any:
    return part(PROMISING, "block_allocator").BlockAllocator(size.num_blocks, size.block_size)


def part(phase: int, module: str) -> Any:
    """A module of a phase; `shared` imports a phase only when somebody asks for one."""
    return importlib.import_module(f"{phase_by_number(phase).package}.{module}")


CONTIGUOUS = Kind("contiguous", "contiguous slabs", _contiguous, lambda job, _size: job.slab_slots)
WORST_CASE = Kind(
    "worst_case",
    "paged, worst case promised",
    _worst_case,
    lambda job, size: size.in_blocks(job.slab_slots - 1),
    PROMISING,
)
ON_DEMAND = Kind(
    "on_demand", "paged, on demand", _on_demand, lambda job, size: size.in_blocks(job.full_slots), PREEMPTING
)
KINDS = (CONTIGUOUS, WORST_CASE, ON_DEMAND)
