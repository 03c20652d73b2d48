"""Who runs in the next step, now that memory is counted: a sequence is admitted if its whole future fits.

    pool    [ promised to the running: prompt + max_tokens - 1 each .... | room for the next? ]

Blocks are handed out as a sequence grows, but nobody can be asked to give any back before phase 9. So what
is admitted must be able to finish: the worst case is promised at admission. Torch-free.
"""

from collections import deque

from phase06_block_allocator.block_allocator import BlockAllocator
from shared.completion import accept_tokens
from shared.config import EngineConfig
from shared.events import EventLog
from shared.output import StepOutput
from shared.sequence import Sequence, Status
from shared.stats import SchedulerStats
from shared.step import SampledToken, ScheduledSequence, StepPlan


class Scheduler:
    """Phase 4's scheduler, with admission by blocks."""

    def __init__(self, config: EngineConfig, allocator: BlockAllocator, events: EventLog) -> None:
        self.max_batch_size = int(config.max_batch_size)
        self.prefill_budget_tokens = int(config.prefill_budget_tokens)
        self.prefill_chunk_size = int(config.prefill_chunk_size)
        self.allocator = allocator
        self.events = events
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in order of arrival

    def add(self, seq: Sequence) -> None:
        self.waiting.append(seq)

    def num_free_slots(self) -> int:
        """How many more sequences it could use; who finds no slot stays in the intake."""
        return max(0, self.max_batch_size - len(self.running) - len(self.waiting))

    def plan(self) -> StepPlan:
        """Every decode runs, whatever the budget; prompts share what the decodes leave of it."""
        decoding = [seq for seq in self.running if seq.is_decoding]
        prefilling = [seq for seq in self.running if not seq.is_decoding]
        plan = StepPlan([self._schedule(seq, 1) for seq in decoding])
        budget = self.prefill_budget_tokens - len(decoding)
        while budget > 0 and (seq := self._next_to_prefill(prefilling)):
            num_tokens = min(seq.num_uncomputed_tokens, self.prefill_chunk_size, budget)
            plan.items.append(self._schedule(seq, num_tokens))
            budget -= num_tokens
        return plan

    def apply(self, plan: StepPlan, sampled: list[list[SampledToken]]) -> list[StepOutput]:
        """Move the progress on, take the new tokens in, and let the finished leave."""
        outputs = []
        for item, tokens in zip(plan.items, sampled):
            item.seq.num_computed_tokens += item.num_tokens
            if tokens:
                outputs.append(accept_tokens(item.seq, tokens))
                if item.seq.is_finished:
                    self.allocator.free(item.seq.name)
        self.running = [seq for seq in self.running if not seq.is_finished]
        return outputs

    def abort(self, seq: Sequence) -> None:
        """Take a sequence out, wherever it is, and its blocks back."""
        for place in (self.waiting, self.running):
            if seq in place:
                place.remove(seq)
        self.allocator.free(seq.name)

    def stats(self) -> SchedulerStats:
        return SchedulerStats(num_waiting=len(self.waiting), num_running=len(self.running), **self.allocator.counts())

    def _schedule(self, seq: Sequence, num_tokens: int) -> ScheduledSequence:
        """A row of the plan, with a slot for the K/V of each of its tokens."""
        self.allocator.ensure_capacity(seq.name, seq.num_computed_tokens + num_tokens)
        return ScheduledSequence.next_tokens(seq, num_tokens)

    def _next_to_prefill(self, prefilling: list[Sequence]) -> Sequence | None:
        """Prompts that have begun come before those that have not; who does not fit holds up the line."""
        if prefilling:
            return prefilling.pop(0)
        if self.waiting and len(self.running) < self.max_batch_size and self._can_admit(self.waiting[0]):
            self._admit(self.waiting.popleft())
            return self.running[-1]
        return None

    def _can_admit(self, seq: Sequence) -> bool:
        """Whether everybody could still grow to their end with this one beside them."""
        # BEGIN SOLUTION 6.2
        return sum(map(self._worst_case, self.running)) + self._worst_case(seq) <= self.allocator.num_blocks
        # END SOLUTION

    def _worst_case(self, seq: Sequence) -> int:
        """Blocks for the longest this sequence can get; its very last token is never run, so it needs no slot."""
        # BEGIN SOLUTION 6.3
        return self.allocator.num_blocks_for(seq.max_num_tokens - 1)
        # END SOLUTION

    def _admit(self, seq: Sequence) -> None:
        seq.status = Status.RUNNING
        self.running.append(seq)
        self.events.emit("admitted", seq.request_id, seq.index)
