"""Who runs in the next step, when some of it is known already and some of it can be guessed.

    budget  [ d+3 d d+1 | chunk of A ....... | chunk of B .. ]     d+3: a decode with three drafts to verify
                                 A begins after what the prefix cache has of it
    waiting [ C D E ]            C and D begin like A: they wait until A has computed that. E need not.

As in phase 9 the newest gives way and swapped work resumes first. Torch-free.
"""

from bisect import insort
from collections import deque
from dataclasses import replace

from phase09_preemption.cpu_swap_manager import CPUSwapManager
from phase12_prefix_and_spec.prefix_cache import Allocator
from shared.completion import accept_tokens
from shared.config import EngineConfig
from shared.events import EventLog
from shared.output import StepOutput
from shared.sequence import Sequence, Status
from shared.stats import SchedulerStats, SchedulerTotals
from shared.step import SampledToken, ScheduledSequence, StepPlan

HEADROOM = 0.05  # of the pool, left free when somebody joins: else they would soon preempt, or be preempted


class Scheduler:
    """Phase 9's scheduler with a prefix cache and speculation (vLLM: `Scheduler`, one flat class as well)."""

    def __init__(self, config: EngineConfig, allocator: Allocator, swap: CPUSwapManager, events: EventLog) -> None:
        self.max_batch_size = int(config.max_batch_size)
        self.prefill_budget_tokens = int(config.prefill_budget_tokens)
        self.prefill_chunk_size = int(config.prefill_chunk_size)
        self.may_swap = config.preemption_mode == "swap"
        self.allocator = allocator
        self.swap = swap
        self.events = events
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.swapped: list[Sequence] = []
        self.num_arrivals = 0
        self.headroom_blocks = max(1, int(HEADROOM * allocator.num_blocks))
        self.totals = SchedulerTotals()
        self.has_preempted = False  # in the plan that is being made

    def add(self, seq: Sequence) -> None:
        self.num_arrivals += 1
        seq.arrival = self.num_arrivals
        seq.num_known_tokens = self.allocator.num_known_tokens(seq)
        self.waiting.append(seq)

    def num_free_slots(self) -> int:
        """How many more sequences it could use; who finds no slot stays in the intake."""
        return max(0, self.max_batch_size - len(self.running) - len(self.swapped) - len(self.waiting))

    def plan(self) -> StepPlan:
        """Decodes run, if need be at the newest's cost; prompts share what is left, then guesses do."""
        self.has_preempted = False
        self._resume_swapped()
        plan = StepPlan()
        for decoding in [seq for seq in self.running if seq.is_decoding]:
            if self._make_room(decoding, 1):
                plan.items.append(self._schedule(decoding, 1))
        budget = self.prefill_budget_tokens - len(plan.items)
        prefilling = [seq for seq in self.running if not seq.is_decoding]
        while budget > 0 and (seq := self._next_to_prefill(prefilling)):
            if num_tokens := self._chunk_that_fits(seq, budget, is_first=not plan.items):
                plan.items.append(self._schedule(seq, num_tokens))
                budget -= num_tokens
        for row, item in enumerate(plan.items):
            plan.items[row] = self._with_draft(item, budget)
            budget -= len(plan.items[row].draft)
        return plan

    def apply(self, plan: StepPlan, sampled: list[list[SampledToken]]) -> list[StepOutput]:
        """Move the progress on, take the new tokens in, and let the finished leave."""
        outputs = []
        for item, tokens in zip(plan.items, sampled):
            item.seq.num_computed_tokens += item.num_tokens
            if tokens:
                outputs.append(self._take(item, tokens))
            self.allocator.register_computed_blocks(item.seq)
            if item.seq.is_finished:
                self.allocator.free(item.seq.name)
        self.running = [seq for seq in self.running if not seq.is_finished]
        return outputs

    def abort(self, seq: Sequence) -> None:
        """Take a sequence out, wherever it is, and its blocks back, here and in host memory."""
        for place in (self.waiting, self.running, self.swapped):
            if seq in place:
                place.remove(seq)
        self.allocator.free(seq.name)
        self.swap.drop(seq.name)

    def stats(self) -> SchedulerStats:
        blocks = self.allocator.counts() | self.swap.counts()
        lines = {"num_waiting": self.waiting, "num_running": self.running, "num_swapped": self.swapped}
        return SchedulerStats(**vars(self.totals), **blocks, **{name: len(line) for name, line in lines.items()})

    # -- speculation --------------------------------------------------------------------------------

    def _with_draft(self, item: ScheduledSequence, spare: int) -> ScheduledSequence:
        """As many drafts as budget, memory and the sequence's limit leave room for, once all else has a slot."""
        seq = item.seq
        num_left = seq.max_num_tokens - len(seq.token_ids) - 1  # with a draft accepted, one more token comes out
        num_drafts = max(0, min(len(seq.draft), spare, num_left))
        while num_drafts and not self.allocator.can_hold(seq.name, seq.num_computed_tokens + 1 + num_drafts):
            num_drafts -= 1  # nobody is preempted for a guess
        self.allocator.ensure_capacity(seq.name, seq.num_computed_tokens + 1 + num_drafts)
        return replace(item, draft=tuple(seq.draft[:num_drafts]))

    def _take(self, item: ScheduledSequence, tokens: list[SampledToken]) -> StepOutput:
        """Accepted drafts have their K/V already, so progress moves past them; what follows an end is not taken."""
        output = accept_tokens(item.seq, tokens)
        num_accepted = max(0, len(output.token_ids) - 1)  # no token at all where the sequence failed
        item.seq.num_computed_tokens += num_accepted
        item.seq.draft = list(tokens[-1].draft)
        self.totals.num_drafted_tokens += len(item.draft)
        self.totals.num_accepted_tokens += num_accepted
        if item.draft:
            self.allocator.shrink(item.seq.name, item.seq.num_computed_tokens)
            self.events.emit("drafts_accepted", item.seq.request_id, item.seq.index, num_tokens=num_accepted)
        return output

    # -- giving way ---------------------------------------------------------------------------------

    def _make_room(self, seq: Sequence, num_tokens: int) -> bool:
        """Preempt the newest until `seq` can grow; False if it was itself the newest, or had to go before."""
        while seq.status is Status.RUNNING:
            if self.allocator.can_hold(seq.name, seq.num_computed_tokens + num_tokens):
                return True
            self._preempt(self.running[-1])
        return False

    def _preempt(self, victim: Sequence) -> None:
        """A decode's K/V is kept where the host has room; a prefill's is dropped, and computed again later."""
        self.running.remove(victim)
        num_blocks = self.allocator.num_blocks_for(victim.num_computed_tokens)
        blocks = self.allocator.block_tables.get(victim.name, [])[:num_blocks]
        if self.may_swap and victim.is_decoding and self.swap.can_hold(len(blocks)):
            self.swap.swap_out(victim.name, blocks)
            self._move(victim, Status.SWAPPED, "swap")
        else:
            self.totals.num_recomputed_tokens += victim.num_computed_tokens
            victim.num_computed_tokens = 0
            victim.draft = []
            self._move(victim, Status.WAITING, "recompute")
        self.allocator.free(victim.name)

    def _move(self, victim: Sequence, status: Status, how: str) -> None:
        """It keeps its place: whoever arrived later stays behind it."""
        victim.status = status
        insort(self.swapped if status is Status.SWAPPED else self.waiting, victim, key=lambda seq: seq.arrival)
        self.totals.num_preemptions += 1
        self.has_preempted = True
        self.events.emit("preempted", victim.request_id, victim.index, detail=how)

    def _resume_swapped(self) -> None:
        """The oldest first, as far as memory goes; what the cache still has of it is not copied."""
        while self.swapped and self._fits(self.swapped[0], self.swapped[0].num_computed_tokens + 1):
            seq = self.swapped.pop(0)
            num_there = self.allocator.match_prefix(seq) // self.allocator.block_size
            self.allocator.ensure_capacity(seq.name, seq.num_computed_tokens + 1)
            self.swap.swap_in(seq.name, self.allocator.block_tables[seq.name], num_there)
            self.allocator.register_computed_blocks(seq)
            self._run(seq)
            self.events.emit("swapped_in", seq.request_id, seq.index)

    # -- joining ------------------------------------------------------------------------------------

    def _schedule(self, seq: Sequence, num_tokens: int) -> ScheduledSequence:
        """A row of the plan, with a slot for the K/V of each of its tokens."""
        self.allocator.ensure_capacity(seq.name, seq.num_computed_tokens + num_tokens)
        return ScheduledSequence.next_tokens(seq, num_tokens)

    def _chunk_that_fits(self, seq: Sequence, budget: int, *, is_first: bool) -> int:
        """Tokens of the next chunk. A prefill preempts nobody, unless nothing else would run at all."""
        if is_first and not self._make_room(seq, 1):
            return 0
        table = self.allocator.block_tables.get(seq.name, ())
        num_slots = (len(table) + self.allocator.num_free_blocks) * self.allocator.block_size
        num_free = num_slots - seq.num_computed_tokens
        return min(seq.num_uncomputed_tokens, self.prefill_chunk_size, budget, num_free)

    def _next_to_prefill(self, prefilling: list[Sequence]) -> Sequence | None:
        """Prompts that have begun come first. Who does not fit holds up the line; who waits for a prefix, which takes
        one prefill at most, lets others by."""
        while prefilling:
            if (running := prefilling.pop(0)).status is Status.RUNNING:
                return running
        if self.swapped or self.has_preempted or len(self.running) >= self.max_batch_size:
            return None
        seq = next((seq for seq in self.waiting if not self.allocator.is_prefix_coming(seq)), None)
        if seq is None or not self._can_admit(seq):
            return None
        self.waiting.remove(seq)
        self._admit(seq)
        return seq

    def _can_admit(self, seq: Sequence) -> bool:
        """Whether all known tokens fit now, beside what the prefills that run are still short of."""
        promised = sum(
            self._num_missing(other, len(other.token_ids)) for other in self.running if not other.is_decoding
        )
        return self._fits(seq, len(seq.token_ids), promised)

    def _fits(self, seq: Sequence, num_tokens: int, promised: int = 0) -> bool:
        """With headroom, unless it would run alone. Known blocks that somebody holds cost nothing."""
        headroom = self.headroom_blocks if self.running else 0
        needed = self._num_missing(seq, num_tokens) - self.allocator.num_referenced_prefix_blocks(seq)
        return needed + promised + headroom <= self.allocator.num_free_blocks

    def _num_missing(self, seq: Sequence, num_tokens: int) -> int:
        return self.allocator.num_blocks_for(num_tokens) - len(self.allocator.block_tables.get(seq.name, ()))

    def _admit(self, seq: Sequence) -> None:
        """A hit is counted once per sequence, and what came while it waited is one; its own figure leaves that out."""
        seq.num_computed_tokens = self.allocator.match_prefix(seq)
        if seq.num_cached_tokens is None:
            seq.num_cached_tokens = min(seq.num_known_tokens, seq.num_computed_tokens)
            self.totals.num_prefix_queried_tokens += seq.num_prompt_tokens
            self.totals.num_prefix_hit_tokens += seq.num_computed_tokens
            self.events.emit("prefix_hit", seq.request_id, seq.index, num_tokens=seq.num_computed_tokens)
        self._run(seq)
        self.events.emit("admitted", seq.request_id, seq.index)

    def _run(self, seq: Sequence) -> None:
        seq.status = Status.RUNNING
        insort(self.running, seq, key=lambda seq: seq.arrival)
