"""Who runs how many tokens in the next step: decodes first, then chunks of prompts in what the budget has left.

    budget  [ d d d d | chunk of A ....... | chunk of B .. ]
              decodes   in order of arrival, at most prefill_chunk_size each

Torch-free.
"""

from collections import deque

from shared.completion import accept_tokens
from shared.config import EngineConfig
from shared.events import EventLog
from shared.output import StepOutput
from shared.sequence import Sequence, Status
from shared.stats import SchedulerStats
from shared.step import SampledToken, ScheduledSequence, StepPlan


class Scheduler:
    """Phase 2's scheduler with chunked prefill (Sarathi-Serve, OSDI 2024; vLLM: `enable_chunked_prefill`)."""

    def __init__(self, config: EngineConfig, events: EventLog) -> None:
        self.max_batch_size = int(config.max_batch_size)
        self.prefill_budget_tokens = int(config.prefill_budget_tokens)
        self.prefill_chunk_size = int(config.prefill_chunk_size)
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
        # BEGIN SOLUTION 4.1
        decoding = [seq for seq in self.running if seq.is_decoding]
        prefilling = [seq for seq in self.running if not seq.is_decoding]
        plan = StepPlan([ScheduledSequence.next_tokens(seq, 1) for seq in decoding])
        budget = self.prefill_budget_tokens - len(decoding)
        while budget > 0 and (seq := self._next_to_prefill(prefilling)):
            num_tokens = min(seq.num_uncomputed_tokens, self.prefill_chunk_size, budget)
            plan.items.append(ScheduledSequence.next_tokens(seq, num_tokens))
            budget -= num_tokens
        return plan
        # END SOLUTION

    def apply(self, plan: StepPlan, sampled: list[list[SampledToken]]) -> list[StepOutput]:
        """Move the progress on, take the new tokens in, and let the finished leave."""
        outputs = []
        for item, tokens in zip(plan.items, sampled):
            item.seq.num_computed_tokens += item.num_tokens
            if tokens:
                outputs.append(accept_tokens(item.seq, tokens))
        self.running = [seq for seq in self.running if not seq.is_finished]
        return outputs

    def abort(self, seq: Sequence) -> None:
        """Take a sequence out, wherever it is."""
        for place in (self.waiting, self.running):
            if seq in place:
                place.remove(seq)

    def stats(self) -> SchedulerStats:
        return SchedulerStats(num_waiting=len(self.waiting), num_running=len(self.running))

    def _next_to_prefill(self, prefilling: list[Sequence]) -> Sequence | None:
        """Prompts that have begun come before those that have not."""
        # BEGIN SOLUTION 4.2
        if prefilling:
            return prefilling.pop(0)
        if self.waiting and len(self.running) < self.max_batch_size:
            self._admit(self.waiting.popleft())
            return self.running[-1]
        return None
        # END SOLUTION

    def _admit(self, seq: Sequence) -> None:
        seq.status = Status.RUNNING
        self.running.append(seq)
        self.events.emit("admitted", seq.request_id, seq.index)
