"""Phase 9: who gives way, and what becomes of its K/V."""

from typing import Any

from shared.sequence import Sequence, Status
from tests.exercises.kit import CountingAllocator, config, decoding_sequence, expect, grades
from tests.fakes import make_sequence


class Swap:
    """Host memory that writes down what it is asked."""

    def __init__(self, num_blocks: int, log: list[str]) -> None:
        self.free_blocks, self.log = num_blocks, log

    def can_hold(self, num_blocks: int) -> bool:
        return num_blocks <= self.free_blocks

    def swap_out(self, name: str, blocks: list[int]) -> None:
        self.log.append(f"copy {len(blocks)} blocks of {name}")

    def counts(self) -> dict[str, int]:
        return {}


def scheduler_of(num_blocks: int, swap_blocks: int = 100, mode: str = "swap") -> Any:
    from phase09_preemption.scheduler import Scheduler
    from shared.events import EventLog

    allocator = CountingAllocator(num_blocks)
    swap = Swap(swap_blocks, allocator.log)
    return Scheduler(config(preemption_mode=mode), allocator, swap, EventLog())  # type: ignore[arg-type]


def running(scheduler: Any, *names: str) -> list[Sequence]:
    """Decoding sequences of 8 computed tokens, two blocks of 4 each, all full."""
    seqs = [decoding_sequence(name, num_prompt=8) for name in names]
    for place, seq in enumerate(seqs):
        seq.arrival = place + 1
        scheduler.allocator.ensure_capacity(seq.name, 8)
        scheduler._run(seq)
    return seqs


def with_simple_victims(scheduler: Any) -> list[str]:
    """Preempting, reduced to what 9.1 can see, so that 9.2 is not needed; returns who went, in order."""
    went: list[str] = []

    def preempt(victim: Sequence) -> None:
        scheduler.running.remove(victim)
        scheduler.allocator.free(victim.name)
        victim.status = Status.SWAPPED
        went.append(victim.name)

    scheduler._preempt = preempt
    return went


@grades("9.1")
def nobody_goes_where_there_is_room() -> None:
    scheduler = scheduler_of(num_blocks=10)
    a, _ = running(scheduler, "a", "b")
    went = with_simple_victims(scheduler)
    expect(
        (scheduler._make_room(a, 1), went),
        (True, []),
        when="blocks are free, a needs one",
        because="First ask can_hold.",
    )


@grades("9.1")
def the_newest_gives_way_to_the_oldest() -> None:
    scheduler = scheduler_of(num_blocks=6)
    a, *_ = running(scheduler, "a", "b", "c")
    went = with_simple_victims(scheduler)
    expect(
        (scheduler._make_room(a, 1), went),
        (True, ["c"]),
        when="no block is free; a (the oldest) needs one; b and c run: (result, victims)",
        because="Last come, first preempted, and no more victims than needed.",
    )


@grades("9.1")
def as_many_go_as_it_takes() -> None:
    scheduler = scheduler_of(num_blocks=6)
    a, *_ = running(scheduler, "a", "b", "c")
    went = with_simple_victims(scheduler)
    expect(
        (scheduler._make_room(a, 12), went),
        (True, ["c", "b"]),
        when="no block is free; a needs three; b and c hold two each: (result, victims)",
        because="After a victim look again: it may not have been enough.",
    )


@grades("9.1")
def the_one_that_asks_may_be_the_victim() -> None:
    scheduler = scheduler_of(num_blocks=4)
    _, b = running(scheduler, "a", "b")
    went = with_simple_victims(scheduler)
    expect(
        (scheduler._make_room(b, 1), went),
        (False, ["b"]),
        when="no block is free; b, the newest, needs one: (result, victims)",
        because="It gives way itself: False says that it does not run in this step. a must not pay for b.",
    )


@grades("9.1")
def who_was_preempted_before_is_not_run_again_in_this_plan() -> None:
    scheduler = scheduler_of(num_blocks=4)
    a, b = running(scheduler, "a", "b")
    went = with_simple_victims(scheduler)
    scheduler._make_room(a, 1)
    expect(
        (scheduler._make_room(b, 1), went),
        (False, ["b"]),
        when="b was preempted for a, then the plan's loop comes to b: (result, victims)",
        because="Its blocks are gone. Ask for its status before anything else: room alone is not enough.",
    )


def preempted(scheduler: Any, seq: Sequence) -> tuple[str, int, list[str]]:
    scheduler._preempt(seq)
    return seq.status.value, seq.num_computed_tokens, scheduler.allocator.log


@grades("9.2")
def a_decode_is_copied_to_host_memory_before_its_blocks_go() -> None:
    scheduler = scheduler_of(num_blocks=4)
    _, b = running(scheduler, "a", "b")
    expect(
        preempted(scheduler, b),
        ("swapped", 8, ["copy 2 blocks of b", "free b"]),
        when="b, decoding with 8 computed tokens, is preempted: (status, progress, what was done)",
        because="A freed block may be somebody else's at once, so the copy comes first. Progress is kept.",
    )


@grades("9.2")
def without_host_memory_it_is_computed_again() -> None:
    scheduler = scheduler_of(num_blocks=4, swap_blocks=1)
    _, b = running(scheduler, "a", "b")
    expect(
        preempted(scheduler, b),
        ("waiting", 0, ["free b"]),
        when="the host has 1 block, b needs 2: (status, progress, what was done)",
        because="Recomputing is setting the progress number to 0.",
    )
    expect(
        (len(b.token_ids), scheduler.totals.num_recomputed_tokens),
        (9, 8),
        when="b had 8 prompt tokens and 1 generated: (tokens it keeps, num_recomputed_tokens)",
        because="Nothing of the answer is lost: prompt plus generated tokens are run again.",
    )


@grades("9.2")
def the_mode_recompute_never_copies() -> None:
    scheduler = scheduler_of(num_blocks=4, mode="recompute")
    _, b = running(scheduler, "a", "b")
    expect(
        preempted(scheduler, b),
        ("waiting", 0, ["free b"]),
        when="preemption_mode is recompute: (status, progress, what was done)",
        because="self.may_swap says whether swapping is on.",
    )


@grades("9.2")
def a_prefill_is_dropped_and_not_copied() -> None:
    scheduler = scheduler_of(num_blocks=4)
    seq = make_sequence(20, name="p")
    seq.num_computed_tokens = 8
    scheduler.allocator.ensure_capacity("p", 8)
    scheduler._run(seq)
    expect(
        preempted(scheduler, seq),
        ("waiting", 0, ["free p"]),
        when="p is in the middle of its prompt: (status, progress, what was done)",
        because="Only a decode's K/V is worth a copy.",
    )


@grades("9.2")
def only_blocks_that_hold_something_are_copied() -> None:
    scheduler = scheduler_of(num_blocks=8)
    _, b = running(scheduler, "a", "b")
    scheduler.allocator.ensure_capacity("b", 9)
    expect(
        preempted(scheduler, b),
        ("swapped", 8, ["copy 2 blocks of b", "free b"]),
        when="b has 3 blocks, of which 2 hold its 8 computed tokens",
        because="The third was for a token that has not been run.",
    )


@grades("9.2")
def the_victim_leaves_the_running_ones() -> None:
    scheduler = scheduler_of(num_blocks=4)
    _, b = running(scheduler, "a", "b")
    scheduler._preempt(b)
    expect(
        ([seq.name for seq in scheduler.running], [seq.name for seq in scheduler.swapped], scheduler.has_preempted),
        (["a"], ["b"], True),
        when="b is preempted: (running, swapped, has_preempted)",
        because="self._move puts it in line and says that nobody is admitted in this step.",
    )
