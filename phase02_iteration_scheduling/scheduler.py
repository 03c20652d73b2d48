"""Who runs in the next step: everyone who is running, and as many more as there is room for.

    waiting --admit, oldest first--> running --finished--> gone

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
    """Iteration-level scheduling: the batch is rebuilt for every step (Orca, OSDI 2022; vLLM: `Scheduler`)."""

    def __init__(self, config: EngineConfig, events: EventLog) -> None:
        self.max_batch_size = int(config.max_batch_size)
        self.events = events
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in order of arrival

    def add(self, seq: Sequence) -> None:
        self.waiting.append(seq)

    def num_free_slots(self) -> int:
        """How many more sequences it could use; who finds no slot stays in the intake."""
        return max(0, self.max_batch_size - len(self.running) - len(self.waiting))

    def plan(self) -> StepPlan:
        """One step's work: whatever is uncomputed. That is a whole prompt at first, one token from then on."""
        # BEGIN SOLUTION 2.2
        while self.waiting and len(self.running) < self.max_batch_size:
            self._admit(self.waiting.popleft())
        return StepPlan([ScheduledSequence.next_tokens(seq, seq.num_uncomputed_tokens) for seq in self.running])
        # END SOLUTION

    def apply(self, plan: StepPlan, sampled: list[list[SampledToken]]) -> list[StepOutput]:
        """Move the progress on, take the new tokens in, and let the finished leave."""
        # BEGIN SOLUTION 2.3
        outputs = []
        for item, tokens in zip(plan.items, sampled):
            item.seq.num_computed_tokens += item.num_tokens
            if tokens:
                outputs.append(accept_tokens(item.seq, tokens))
        self.running = [seq for seq in self.running if not seq.is_finished]
        return outputs
        # END SOLUTION

    def abort(self, seq: Sequence) -> None:
        """Take a sequence out, wherever it is."""
        for place in (self.waiting, self.running):
            if seq in place:
                place.remove(seq)

    def stats(self) -> SchedulerStats:
        return SchedulerStats(num_waiting=len(self.waiting), num_running=len(self.running))

    def _admit(self, seq: Sequence) -> None:
        seq.status = Status.RUNNING
        self.running.append(seq)
        self.events.emit("admitted", seq.request_id, seq.index)
