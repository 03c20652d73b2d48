"""One run of the capacity study: everything is asked for at once, and the pool is looked at in every step.

+-- max_tokens steps -------+--- until nobody waits ---+--- until all are done ---+
| who came first still runs | saturated: what counts   | running dry              |
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate

from shared.bench.capacity_load import END_ID, TOKEN_ID, Job
from shared.bench.capacity_systems import Kind, PoolSize, System
from shared.bench.results import Figures
from shared.sequence import Sequence
from shared.step import SampledToken, StepPlan


class ScriptedRunner:
    """A runner without a model: a token at once, and the end of each output where its job has it."""

    def __init__(self, jobs: Seq[Job]) -> None:
        self._num_output_tokens = {job.name: job.num_output_tokens for job in jobs}

    def execute(self, plan: StepPlan) -> list[list[SampledToken]]:
        return [[self._next(item.seq)] if item.is_sampled else [] for item in plan.items]

    def _next(self, seq: Sequence) -> SampledToken:
        is_last = seq.num_output_tokens + 1 == self._num_output_tokens[seq.name]
        return SampledToken(END_ID if is_last else TOKEN_ID)


@dataclass(frozen=True, slots=True)
class Moment:
    """The pool within a step: its K/V is written, and nobody has left yet.

    num_tokens: that the step ran. used, allocated, reserved: slots that hold K/V, that are in somebody's table or
    slab, and that nobody else may have.
    """

    num_running: int
    num_waiting: int
    num_tokens: int
    used: int
    allocated: int
    reserved: int


def steps(system: System, jobs: Seq[Job]) -> Iterator[Moment]:
    """Serve the jobs, all added by now, and yield after each step what it was like. Raises RuntimeError if stuck."""
    runner, scheduler = ScriptedRunner(jobs), system.scheduler
    num_finished = 0
    while plan := scheduler.plan():
        sampled = runner.execute(plan)
        moment = _observe(system, plan)
        num_finished += sum(output.finish_reason is not None for output in scheduler.apply(plan, sampled))
        yield moment
    if num_finished < len(jobs):
        raise RuntimeError(f"{len(jobs) - num_finished} of {len(jobs)} jobs were never finished")


def add_all(system: System, jobs: Seq[Job]) -> list[Sequence]:
    sequences = [job.sequence() for job in jobs]
    for seq in sequences:
        system.scheduler.add(seq)
    return sequences


def measure(kind: Kind, size: PoolSize, jobs: Seq[Job]) -> Figures:
    """What is kept of a run; means are over the saturated steps, counts over all of them.

    num_at_full_length: how many of the jobs fit at once, in their order, if each is as long as it ever gets.
    """
    system = kind.build(size)
    add_all(system, jobs)
    with system.events.recording() as events:
        moments = list(steps(system, jobs))
    return {
        "num_jobs": len(jobs),
        "pool_slots": size.num_slots,
        "steps": len(moments),
        **_means(saturated(moments, jobs[0].max_tokens)),
        "preemptions": sum(event.kind == "preempted" for event in events),
        "computed_tokens": sum(moment.num_tokens for moment in moments),
        "needed_tokens": sum(job.full_slots for job in jobs),
        "output_tokens": sum(job.num_output_tokens for job in jobs),
        "num_at_full_length": _num_at_full_length(kind, size, jobs),
    }


def saturated(moments: Seq[Moment], num_warm_up_steps: int) -> list[Moment]:
    """The steps after the warm-up in which somebody waited: none of those who all came at once is left."""
    return [moment for moment in moments[num_warm_up_steps:] if moment.num_waiting]


def _observe(system: System, plan: StepPlan) -> Moment:
    scheduler = system.scheduler
    use = system.pool.fragmentation({item.seq.name: item.num_computed_tokens + item.num_tokens for item in plan.items})
    return Moment(
        num_running=len(scheduler.running),
        num_waiting=len(scheduler.waiting),
        num_tokens=plan.num_tokens,
        used=use.num_used_slots,
        allocated=use.num_allocated_slots,
        reserved=sum(map(system.reserved_slots, scheduler.running)),
    )


def _means(moments: Seq[Moment]) -> Figures:
    """A step is the unit of time."""
    num_steps = len(moments)
    return {
        "saturated_steps": num_steps,
        "running_mean": sum(m.num_running for m in moments) / num_steps,
        "running_peak": max(m.num_running for m in moments),
        "used_slots_mean": sum(m.used for m in moments) / num_steps,
        "allocated_slots_mean": sum(m.allocated for m in moments) / num_steps,
        "reserved_slots_mean": sum(m.reserved for m in moments) / num_steps,
    }


def _num_at_full_length(kind: Kind, size: PoolSize, jobs: Seq[Job]) -> int:
    return sum(total <= size.num_slots for total in accumulate(kind.full_slots(job, size) for job in jobs))
