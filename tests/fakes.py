"""Weightless stand-ins for unit tests of torch-free parts."""

from collections.abc import Sequence as Seq

from shared.output import RequestMetrics
from shared.request import Request, SamplingParams
from shared.request_state import RequestState
from shared.sequence import Sequence
from shared.step import SampledToken, StepPlan

TOKEN = 7  # what the fake model always says


def make_sequence(num_prompt_tokens: int, max_tokens: int = 100, name: str = "s", index: int = 0) -> Sequence:
    request = Request(list(range(10, 10 + num_prompt_tokens)), SamplingParams(max_tokens=max_tokens))
    return Sequence(
        request_id=name,
        index=index,
        request=request,
        token_ids=list(request.prompt_token_ids),
        seed=0,
        eos_token_ids=frozenset(),
        max_num_tokens=num_prompt_tokens + max_tokens,
    )


def make_state(name: str = "r", num_sequences: int = 1, arrival_time: float = 0.0) -> RequestState:
    sequences = [make_sequence(4, name=name, index=index) for index in range(num_sequences)]
    return RequestState(name, sequences[0].request, sequences, RequestMetrics(arrival_time))


def sample(plan: StepPlan) -> list[list[SampledToken]]:
    """What a runner would return: a token for each row that reaches its last known one."""
    return [[SampledToken(TOKEN)] if item.is_sampled else [] for item in plan.items]


def rows(plan: StepPlan) -> list[tuple[str, int]]:
    """(sequence, tokens) of each row, which is all that a scheduler decides."""
    return [(item.seq.name, item.num_tokens) for item in plan.items]


def run_to_end(scheduler: object, max_steps: int = 1000) -> list[list[tuple[str, int]]]:
    """Step until nothing is planned; returns the rows of every step."""
    history: list[list[tuple[str, int]]] = []
    while plan := scheduler.plan():  # type: ignore[attr-defined]
        history.append(rows(plan))
        scheduler.apply(plan, sample(plan))  # type: ignore[attr-defined]
        assert len(history) <= max_steps, "it never ends"
    return history


def total_tokens(history: Seq[Seq[tuple[str, int]]], name: str) -> int:
    return sum(num_tokens for step in history for row_name, num_tokens in step if row_name == name)
