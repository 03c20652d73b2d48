"""An engine's figures: how full it is now, and what it has done since it started. Torch-free."""

from collections import Counter
from dataclasses import dataclass, field, fields


@dataclass
class SchedulerTotals:
    """What a scheduler counts; they only ever grow."""

    num_preemptions: int = 0  # phase 9 on
    num_recomputed_tokens: int = 0  # whose K/V was dropped by a preemption (the prefix cache may find some again)
    num_prefix_queried_tokens: int = 0  # prompt tokens looked up in the prefix cache, once per sequence (phase 12)
    num_prefix_hit_tokens: int = 0  # and found
    num_drafted_tokens: int = 0  # guesses that were verified (phase 12)
    num_accepted_tokens: int = 0  # and were right


@dataclass
class SchedulerStats(SchedulerTotals):
    """Sequences by status, and blocks where the phase has any (None before phase 6)."""

    num_waiting: int = 0
    num_running: int = 0
    num_swapped: int = 0
    kv_blocks_total: int | None = None
    kv_blocks_used: int | None = None  # referenced by a sequence
    kv_blocks_free: int | None = None  # not referenced; cached ones count as free too
    kv_blocks_cached: int | None = None  # unreferenced, contents kept (phase 12)
    swap_blocks_total: int | None = None
    swap_blocks_used: int | None = None


@dataclass
class EngineTotals:
    """Counters: they only ever grow."""

    num_steps: int = 0
    prompt_tokens: int = 0  # of requests that were scheduled, counted once each
    generated_tokens: int = 0  # handed to clients
    requests_finished: Counter[str] = field(default_factory=Counter)  # finish reason -> requests


@dataclass
class EngineStats(SchedulerStats, EngineTotals):
    """What `engine.stats()` returns: one moment's `SchedulerStats` beside the totals."""

    num_requests: int = 0  # known to the engine: queued, waiting, running or swapped

    @classmethod
    def of(cls, now: SchedulerStats, totals: EngineTotals, num_requests: int) -> "EngineStats":
        figures = {f.name: getattr(part, f.name) for part in (now, totals) for f in fields(part)}
        return cls(num_requests=num_requests, **figures | {"requests_finished": totals.requests_finished.copy()})
