"""What holds in the final engine between any two steps, and of every step: looked at from outside, nobody's word taken.

Each function raises AssertionError with what is no longer true. `Watcher` keeps what a single look cannot tell.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from shared.output import StepOutput
from shared.sequence import Sequence, Status
from shared.step import ScheduledSequence, StepPlan


def all_scheduled(scheduler: Any) -> list[Sequence]:
    return [*scheduler.running, *scheduler.swapped, *scheduler.waiting]


def check_blocks(scheduler: Any) -> None:
    """Every block is held, cached or free, and its count says by how many; who shares one shares all up to its end."""
    allocator, size = scheduler.allocator, scheduler.allocator.block_size
    allocator.check_integrity()
    tables = allocator.block_tables
    assert tables.keys() <= {seq.name for seq in scheduler.running}, "only who runs holds blocks"
    held = Counter(block for table in tables.values() for block in table)
    places = sorted([*held, *getattr(allocator, "cached", ()), *allocator.free_blocks])
    assert places == list(range(allocator.num_blocks)), "a block is lost, or in two places"
    assert {block: count for block, count in enumerate(allocator.ref_counts) if count} == held, "miscounted"
    owners: dict[int, tuple[str | None, list[int]]] = {}  # shared block -> salt and tokens up to its end
    for seq in scheduler.running:
        table = tables.get(seq.name, [])
        assert len(set(table)) == len(table)
        assert len(table) == allocator.num_blocks_for(seq.num_computed_tokens), (
            "K/V without a slot, or a block too many"
        )
        for place, block in enumerate(table):
            if held[block] > 1:
                end = (place + 1) * size
                past = (seq.request.cache_salt, seq.token_ids[:end])
                assert end <= seq.num_computed_tokens, "a block is shared before it is full"
                assert owners.setdefault(block, past) == past, "two sequences with different pasts share a block"


def check_swap(scheduler: Any) -> None:
    """Who is swapped, and nobody else, has host blocks: as many as its K/V fills."""
    swap = scheduler.swap
    swap.check_integrity()
    num_held = {name: len(table) for name, table in swap.tables.items()}
    assert num_held == {
        seq.name: scheduler.allocator.num_blocks_for(seq.num_computed_tokens) for seq in scheduler.swapped
    }
    assert sum(num_held.values()) + len(swap.free_blocks) == swap.num_blocks, "a host block is lost"


def check_lines(engine: Any) -> None:
    """Every sequence that is not over is in one place, in order of arrival, as its status says."""
    scheduler = engine.scheduler
    lines = {Status.WAITING: scheduler.waiting, Status.RUNNING: scheduler.running, Status.SWAPPED: scheduler.swapped}
    for status, line in lines.items():
        assert [seq.arrival for seq in line] == sorted({seq.arrival for seq in line}), f"{status} is out of order"
        assert all(seq.status is status for seq in line)
    scheduled = all_scheduled(scheduler)
    queued = [seq for state in engine.intake._waiting for seq in state.sequences]
    expected = [seq for state in engine.requests.states() for seq in state.sequences if not seq.is_finished]
    assert sorted(map(id, scheduled + queued)) == sorted(map(id, expected)), "a sequence is lost, or twice there"
    assert len(scheduler.running) <= scheduler.max_batch_size
    asked = {state.request_id: number for number, state in enumerate(engine.requests.states())}  # in order of arrival
    by_arrival = sorted(scheduled, key=lambda seq: seq.arrival)
    order = [asked[seq.request_id] for seq in [*by_arrival, *queued]]
    assert order == sorted(order), "somebody has overtaken in the queue"
    stats = engine.stats()
    assert (stats.num_running, stats.num_swapped) == (len(scheduler.running), len(scheduler.swapped))
    assert stats.num_waiting == len(scheduler.waiting) + len(queued)
    assert stats.kv_blocks_used == len(set().union(*scheduler.allocator.block_tables.values()))
    assert stats.swap_blocks_used == sum(map(len, scheduler.swap.tables.values()))


def check_progress(seq: Sequence) -> None:
    assert 0 <= seq.num_computed_tokens <= len(seq.token_ids) <= seq.max_num_tokens
    if seq.status is Status.WAITING:
        assert seq.num_computed_tokens == 0
    else:
        assert seq.num_uncomputed_tokens > 0, "it runs, and nothing is left to run"
    if seq.status is Status.SWAPPED:
        assert seq.is_decoding


def check_draft_pool(engine: Any) -> None:
    """The draft model's blocks belong to sequences that are still there."""
    if allocator := getattr(getattr(engine.runner, "proposer", None), "allocator", None):
        allocator.check_integrity()
        assert allocator.block_tables.keys() <= {seq.name for seq in all_scheduled(engine.scheduler)}


@dataclass
class Watcher:
    """Compares one step, and one look, with those before: what may not go back, and who may not be passed over."""

    engine: Any
    config: Any
    progress: dict[Sequence, int] = field(default_factory=dict)  # of who was running at the last look
    pasts: dict[bytes, tuple[str | None, list[int]]] = field(default_factory=dict)  # key of a block -> what it means
    preempted: set[tuple[str, int]] = field(default_factory=set)  # (request, index), since the last look

    def __post_init__(self) -> None:
        self.engine.events.subscribe(self.note_event, with_rows=False)
        self.engine.events.subscribe_to_steps(self.check_step)

    def note_event(self, event: Any) -> None:
        if event.kind == "preempted":
            self.preempted.add((event.request_id, event.index))

    def look(self) -> None:
        """Call between steps, and after whatever else was done to the engine."""
        scheduler = self.engine.scheduler
        check_blocks(scheduler)
        check_swap(scheduler)
        check_lines(self.engine)
        check_draft_pool(self.engine)
        for seq in all_scheduled(scheduler):
            check_progress(seq)
            assert len(seq.draft) <= self.config.num_speculative_tokens
            if (seq.request_id, seq.index) not in self.preempted:
                assert seq.num_computed_tokens >= self.progress.get(seq, 0), "progress went back"
        self.check_keys()
        self.progress = {seq: seq.num_computed_tokens for seq in scheduler.running}
        self.preempted.clear()

    def check_keys(self) -> None:
        """A published block is computed, and its key never means anything else."""
        allocator = self.engine.scheduler.allocator
        keys = getattr(allocator, "key_of", {})
        for seq in self.engine.scheduler.running:
            for place, block in enumerate(allocator.block_tables.get(seq.name, ())):
                if key := keys.get(block):
                    end = (place + 1) * allocator.block_size
                    assert end <= seq.num_computed_tokens, "a block is published before it is computed"
                    past = (seq.request.cache_salt, seq.token_ids[:end])
                    assert self.pasts.setdefault(key, past) == past, "one key for two pasts"

    def check_step(self, plan: StepPlan, outputs: list[StepOutput] | None, _started: float, _ended: float) -> None:
        """The plan kept the limits, left no decode out, and every row moved as far as what it ran and got."""
        config, scheduler = self.config, self.engine.scheduler
        num_decodes = sum(item.is_decode for item in plan.items)
        assert plan.num_tokens <= max(config.prefill_budget_tokens, num_decodes), "over the budget"
        assert len(plan.items) == len({item.seq.name for item in plan.items}) <= config.max_batch_size
        assert plan.items or not all_scheduled(scheduler), "a step in which nobody runs"
        in_plan = {item.seq for item in plan.items}
        for seq in self.progress:
            was_decoding = seq.num_output_tokens > 0 and self.progress[seq] == len(seq.token_ids) - 1
            if was_decoding and seq.status is Status.RUNNING and seq not in in_plan:
                raise AssertionError(f"{seq.name} was ready to decode and was left out")
        new = {(output.request_id, output.index): output.token_ids for output in outputs or []}
        for item in plan.items:
            self.check_row(item, new.get((item.seq.request_id, item.seq.index), []))

    def check_row(self, item: ScheduledSequence, new: list[int]) -> None:
        seq = item.seq
        assert item.is_decode or item.num_tokens <= self.config.prefill_chunk_size
        assert len(item.draft) <= self.config.num_speculative_tokens
        assert len(new) <= 1 + len(item.draft)
        num_accepted = max(0, len(new) - 1)
        assert tuple(new[:num_accepted]) == item.draft[:num_accepted], "accepted, and not what was guessed"
        moved = item.num_tokens + num_accepted
        assert seq.num_computed_tokens == item.num_computed_tokens + moved, "progress is not what was run and accepted"
        if new:
            assert seq.num_uncomputed_tokens == 1, "what was sampled last, and nothing else, is left to run"
