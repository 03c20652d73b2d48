"""Phase 4: the budget, and whose prompt is next."""

from typing import Any

from tests.exercises.kit import add, config, decoding, expect, grades
from tests.fakes import make_sequence, rows


def scheduler_of(*, batch: int = 8, budget: int = 16, chunk: int = 8) -> Any:
    from phase04_chunked_prefill.scheduler import Scheduler
    from shared.events import EventLog

    settings = config(max_batch_size=batch, prefill_budget_tokens=budget, prefill_chunk_size=chunk)
    return Scheduler(settings, EventLog())


def planning(scheduler: Any, **prompts: int) -> Any:
    """Prompts that have joined already; the next one is simply the first, so that 4.2 is not needed."""
    for name, length in prompts.items():
        scheduler._admit(make_sequence(length, name=name))
    scheduler._next_to_prefill = lambda prefilling: prefilling.pop(0) if prefilling else None
    return scheduler


@grades("4.1")
def a_long_prompt_is_cut_into_chunks() -> None:
    scheduler = planning(scheduler_of(chunk=8), a=20)
    expect(
        rows(scheduler.plan()),
        [("a", 8)],
        when="chunks of at most 8, budget 16, one prompt of 20 tokens",
        because="A chunk is at most prefill_chunk_size, whatever the budget.",
    )


@grades("4.1")
def decodes_take_the_budget_first_and_a_chunk_gets_what_is_left() -> None:
    scheduler = scheduler_of(budget=5, chunk=8)
    decoding(scheduler, "a", "b")
    expect(
        rows(planning(scheduler, long=96).plan()),
        [("a", 1), ("b", 1), ("long", 3)],
        when="budget 5, chunks of at most 8; a and b decode, a prompt of 96 tokens is there",
        because="The step may run 5 tokens in all: 2 decodes leave 3.",
    )


@grades("4.1")
def no_stream_waits_for_a_prompt() -> None:
    scheduler = scheduler_of(budget=2, chunk=2)
    planning(scheduler, long=96)
    decoding(scheduler, "a", "b", "c")
    expect(
        rows(scheduler.plan()),
        [("a", 1), ("b", 1), ("c", 1)],
        when="budget 2; a long prompt came first, then a, b, c, which decode",
        because="Every decode runs, whatever the budget; a prompt gets nothing where nothing is left.",
    )


@grades("4.1")
def several_prompts_share_one_budget() -> None:
    scheduler = planning(scheduler_of(budget=16, chunk=8), a=5, b=8, c=20)
    expect(
        rows(scheduler.plan()),
        [("a", 5), ("b", 8), ("c", 3)],
        when="budget 16, chunks of at most 8; prompts of 5, 8 and 20 tokens",
        because="A prompt takes no more than it has; what is left goes to the next one, until nothing is left.",
    )


@grades("4.1")
def a_chunk_goes_on_where_the_last_one_stopped() -> None:
    scheduler = scheduler_of(chunk=8)
    planning(scheduler, a=20)
    scheduler.running[0].num_computed_tokens = 16
    plan = scheduler.plan()
    expect(
        [(item.num_computed_tokens, item.num_tokens, item.is_sampled) for item in plan.items],
        [(16, 4, True)],
        when="16 of 20 prompt tokens are computed: (start, tokens, samples)",
        because="ScheduledSequence.next_tokens(seq, n) starts at the progress number; the last chunk samples.",
    )


@grades("4.2")
def a_prompt_that_has_begun_goes_before_one_that_has_not() -> None:
    scheduler = scheduler_of()
    begun = [make_sequence(20, name=name) for name in ("a", "b")]
    for seq in begun:
        scheduler._admit(seq)
    add(scheduler, make_sequence(5, name="new"))
    prefilling = list(begun)
    seq = scheduler._next_to_prefill(prefilling)
    expect(
        (seq and seq.name, [other.name for other in prefilling], len(scheduler.waiting)),
        ("a", ["b"], 1),
        when="a and b have begun, new waits: (chosen, still to prefill, waiting)",
        because="The one chosen is taken off the list, or the loop in plan would choose it for ever.",
    )


@grades("4.2")
def then_the_first_in_line_is_admitted() -> None:
    scheduler = scheduler_of()
    add(scheduler, make_sequence(5, name="a"), make_sequence(5, name="b"))
    seq = scheduler._next_to_prefill([])
    expect(
        (seq and seq.name, [other.name for other in scheduler.running], len(scheduler.waiting)),
        ("a", ["a"], 1),
        when="nobody has begun, a and b wait: (chosen, running, waiting)",
        because="self._admit puts it into running; one at a time, since the budget may be gone after it.",
    )


@grades("4.2")
def nobody_is_admitted_beyond_max_batch_size() -> None:
    scheduler = scheduler_of(batch=2)
    decoding(scheduler, "a", "b")
    add(scheduler, make_sequence(5, name="c"))
    seq = scheduler._next_to_prefill([])
    expect(
        (seq and seq.name, len(scheduler.running)),
        (None, 2),
        when="max_batch_size 2, two run, c waits: (chosen, running)",
        because="None says that there is no prompt to run.",
    )


@grades("4.2")
def without_anybody_to_run_it_says_none() -> None:
    expect(
        scheduler_of()._next_to_prefill([]),
        None,
        when="nobody has begun and nobody waits",
        because="None ends the loop.",
    )
