"""Phase 9's scheduler and swap manager, without weights: the newest gives way, nothing is lost, everybody finishes."""

import itertools
import random
from collections.abc import Sequence as Seq

import pytest

from phase06_block_allocator.block_allocator import BlockAllocator
from phase09_preemption.cpu_swap_manager import CPUSwapManager
from phase09_preemption.scheduler import Scheduler
from shared.config import EngineConfig
from shared.events import EventLog
from shared.sequence import Sequence, Status
from tests.fakes import make_sequence, rows, run_to_end, sample


class FakePool:
    """Blocks with one thing written in each; copying is all that there is to check."""

    def __init__(self) -> None:
        self.device: dict[int, str] = {}
        self.host: dict[int, str] = {}

    def to_host(self, device_blocks: Seq[int], host_blocks: Seq[int]) -> None:
        self.host |= {host: self.device[device] for device, host in zip(device_blocks, host_blocks)}

    def to_device(self, host_blocks: Seq[int], device_blocks: Seq[int]) -> None:
        self.device |= {device: self.host[host] for host, device in zip(host_blocks, device_blocks)}


def scheduler_of(
    num_blocks: int, *, swap_blocks: int = 100, mode: str = "swap", batch: int = 8, budget: int = 64, chunk: int = 32
) -> Scheduler:
    config = EngineConfig(
        max_batch_size=batch, prefill_budget_tokens=budget, prefill_chunk_size=chunk, preemption_mode=mode
    )
    return Scheduler(config, BlockAllocator(num_blocks, 4), CPUSwapManager(swap_blocks, FakePool()), EventLog())


def step(scheduler: Scheduler) -> list[tuple[str, int]]:
    """One step, in which the fake model writes the owner's name and place into every block it has K/V in."""
    plan = scheduler.plan()
    pool = scheduler.swap.copier
    for item in plan.items:
        table = scheduler.allocator.block_tables[item.seq.name]
        num_written = scheduler.allocator.num_blocks_for(item.num_computed_tokens)
        for place, block in enumerate(table[:num_written]):
            assert pool.device[block] == f"{item.seq.name}@{place}", "its K/V is not where its table says"
        for place, block in enumerate(table):
            pool.device[block] = f"{item.seq.name}@{place}"
    scheduler.apply(plan, sample(plan))
    scheduler.allocator.check_integrity()
    scheduler.swap.check_integrity()
    return rows(plan)


def start(scheduler: Scheduler, **max_tokens: int) -> dict[str, Sequence]:
    """Sequences of 8 prompt tokens (two blocks of 4), all prefilled in one step."""
    seqs = {name: make_sequence(8, max_tokens=n, name=name) for name, n in max_tokens.items()}
    for seq in seqs.values():
        scheduler.add(seq)
    return seqs


def test_admission_asks_for_what_is_needed_now_and_not_for_the_worst_case() -> None:
    scheduler = scheduler_of(num_blocks=6)
    start(scheduler, a=100, b=100)
    assert step(scheduler) == [("a", 8), ("b", 8)]


def test_admission_leaves_headroom_unless_nothing_runs() -> None:
    scheduler = scheduler_of(num_blocks=4)
    start(scheduler, a=2, b=2)
    assert step(scheduler) == [("a", 8)]
    exact = scheduler_of(num_blocks=2)
    start(exact, a=1)
    assert step(exact) == [("a", 8)]


def test_the_newest_gives_way_and_its_kv_waits_in_host_memory() -> None:
    scheduler = scheduler_of(num_blocks=5)
    seqs = start(scheduler, a=9, b=9)
    step(scheduler)
    assert step(scheduler) == [("a", 1)], "one block was free, a takes it; b is the newest and cannot grow"
    assert seqs["b"].status is Status.SWAPPED
    assert seqs["b"].num_computed_tokens == 8, "swapping loses no progress"
    assert (scheduler.stats().num_swapped, scheduler.stats().swap_blocks_used) == (1, 2)


def test_swapped_work_resumes_before_new_arrivals_and_goes_on_where_it_was() -> None:
    scheduler = scheduler_of(num_blocks=5)
    seqs = start(scheduler, a=4, b=9)
    step(scheduler)
    scheduler.add(make_sequence(4, max_tokens=2, name="late"))
    history = [step(scheduler) for _ in range(20)]
    assert seqs["b"].num_output_tokens == 9
    resumed = next(i for i, plan in enumerate(history) if "b" in dict(plan))
    late = next(i for i, plan in enumerate(history) if "late" in dict(plan))
    assert resumed <= late
    assert history[resumed][0] == ("b", 1)


@pytest.mark.parametrize(("mode", "swap_blocks"), [("recompute", 100), ("swap", 0), ("swap", 1)])
def test_without_room_in_host_memory_the_victim_is_recomputed_with_what_it_generated(
    mode: str, swap_blocks: int
) -> None:
    scheduler = scheduler_of(num_blocks=5, mode=mode, swap_blocks=swap_blocks)
    seqs = start(scheduler, a=4, b=9)
    step(scheduler)
    step(scheduler)
    assert (seqs["b"].status, seqs["b"].num_computed_tokens) == (Status.WAITING, 0)
    assert scheduler.waiting[0] is seqs["b"]
    history = [step(scheduler) for _ in range(20)]
    assert next(plan for plan in history if "b" in dict(plan)) == [("b", 9)], "prompt plus the generated token"
    assert seqs["b"].num_output_tokens == 9
    assert scheduler.stats().num_recomputed_tokens == 8


def test_a_prefill_that_gives_way_is_dropped_and_not_swapped() -> None:
    scheduler = scheduler_of(num_blocks=6, chunk=4, budget=5)
    scheduler.add(make_sequence(4, max_tokens=30, name="a"))
    step(scheduler)
    scheduler.add(make_sequence(15, max_tokens=2, name="b"))
    while scheduler.totals.num_preemptions == 0:
        step(scheduler)
    victim = [*scheduler.waiting, *scheduler.swapped][0]
    assert victim.name == "b"
    if victim.num_output_tokens == 0:
        assert victim.status is Status.WAITING


def test_nobody_is_admitted_in_a_step_that_preempted_nor_while_somebody_is_swapped() -> None:
    scheduler = scheduler_of(num_blocks=5)
    start(scheduler, a=9, b=9)
    step(scheduler)
    scheduler.add(make_sequence(1, max_tokens=1, name="tiny"))
    assert step(scheduler) == [("a", 1)]
    assert step(scheduler) == [("a", 1)]


def test_a_lone_sequence_is_never_preempted_and_fills_the_pool() -> None:
    scheduler = scheduler_of(num_blocks=5)
    seq = make_sequence(8, max_tokens=100, name="a")
    seq.max_num_tokens = 5 * 4 + 1  # what the engine caps it to
    scheduler.add(seq)
    run_to_end(scheduler)
    assert scheduler.totals.num_preemptions == 0
    assert len(seq.token_ids) == 21


@pytest.mark.parametrize("state", ["waiting", "running", "swapped"])
def test_abort_frees_everything_wherever_the_sequence_is(state: str) -> None:
    scheduler = scheduler_of(num_blocks=5)
    seqs = start(scheduler, a=20, b=20)
    if state != "waiting":
        step(scheduler)
    if state == "swapped":
        step(scheduler)
        assert seqs["b"].status is Status.SWAPPED
    scheduler.abort(seqs["b"])
    scheduler.abort(seqs["a"])
    stats = scheduler.stats()
    assert (stats.kv_blocks_used, stats.swap_blocks_used) == (0, 0)
    assert not scheduler.plan()


def test_a_victim_is_never_run_in_the_step_that_preempted_it() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        scheduler = scheduler_of(num_blocks=9, budget=6, chunk=5, mode=rng.choice(["swap", "recompute"]))
        for number in range(5):
            scheduler.add(make_sequence(rng.randint(1, 12), max_tokens=rng.randint(1, 15), name=f"s{number}"))
        scheduler.swap.copier.device = dict.fromkeys(range(9), "")
        for _ in range(100):
            plan = scheduler.plan()
            assert all(item.seq.status is Status.RUNNING for item in plan.items)
            assert len({item.seq.name for item in plan.items}) == len(plan.items)
            scheduler.apply(plan, sample(plan))


SIZES = list(itertools.product([8, 9, 13], [0, 1, 3, 50], ["swap", "recompute"], [1, 3, 8], [1, 5, 64]))


@pytest.mark.parametrize(("num_blocks", "swap_blocks", "mode", "batch", "chunk"), SIZES)
def test_everybody_finishes_whatever_the_sizes(
    num_blocks: int, swap_blocks: int, mode: str, batch: int, chunk: int
) -> None:
    scheduler = scheduler_of(num_blocks, swap_blocks=swap_blocks, mode=mode, batch=batch, chunk=chunk, budget=9)
    seqs = [make_sequence(n, max_tokens=14, name=f"s{n}") for n in (1, 13, 4, 18, 8, 16)]
    for seq in seqs:
        scheduler.add(seq)
    for _ in range(2000):
        if not (scheduler.running or scheduler.waiting or scheduler.swapped):
            break
        assert step(scheduler), "a step in which nobody runs"
        arrivals = [seq.arrival for seq in scheduler.running]
        assert arrivals == sorted(arrivals)
    assert all(seq.num_output_tokens == 14 for seq in seqs)
    stats = scheduler.stats()
    assert (stats.kv_blocks_used, stats.swap_blocks_used) == (0, 0)


def test_the_swap_manager_hands_out_host_blocks_from_the_first_to_the_last() -> None:
    swap = CPUSwapManager(3, FakePool())
    swap.copier.device = {7: "x", 8: "y", 9: "z"}
    assert swap.can_hold(3)
    assert not swap.can_hold(4)
    with pytest.raises(MemoryError, match="a: 4 host blocks needed, 3 free"):
        swap.swap_out("a", [6, 7, 8, 9])
    swap.swap_out("a", [7, 9, 8])
    assert swap.tables == {"a": [0, 1, 2]}
    assert swap.copier.host == {0: "x", 1: "z", 2: "y"}
