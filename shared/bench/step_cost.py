"""`python -m shared.bench step-cost`: what a step costs beside the model, the sampler and the detokenizer.

A stand-in for the runner returns the same token at once; what is left is planning, bookkeeping and handing out.
"""

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from statistics import median
from typing import Any

from shared.bench.results import Figures, SystemResult
from shared.config import EngineConfig
from shared.registry import Phase
from shared.request import Request, SamplingParams
from shared.sequence import Sequence
from shared.step import SampledToken, StepPlan

TOKEN_ID = 7
NUM_PROMPT_TOKENS = 16
NUM_WARM_UP_STEPS = 50  # every prompt is done long before


class InstantRunner:
    """A runner without a model."""

    def execute(self, plan: StepPlan) -> list[list[SampledToken]]:
        return [[SampledToken(TOKEN_ID)] if item.is_sampled else [] for item in plan.items]

    def release(self, seq: Sequence) -> None:
        pass


@dataclass(frozen=True, slots=True)
class StepCostCase:
    """A phase with so many running sequences."""

    phase: Phase
    num_sequences: int

    @property
    def name(self) -> str:
        return f"phase{self.phase.number:02d}-{self.num_sequences}"

    @property
    def label(self) -> str:
        return f"{self.phase.label}, {self.num_sequences} running"


def run_step_cost(
    cases: Seq[StepCostCase], num_steps: int, num_rounds: int, announce: Callable[[str], None]
) -> list[SystemResult]:
    """Measure all cases, phases from 2 on, in each round."""
    return in_rounds(cases, num_rounds, announce, lambda case: {"step_s": median(step_times(case, num_steps))})


def in_rounds(
    cases: Seq[StepCostCase],
    num_rounds: int,
    announce: Callable[[str], None],
    measure: Callable[[StepCostCase], Figures],
    code: Seq[str] = (),
) -> list[SystemResult]:
    """code: files that are measured beside the phase's engine."""
    repeats: dict[str, list[Figures]] = {case.name: [] for case in cases}
    for number in range(1, num_rounds + 1):
        for case in cases:
            announce(f"round {number} of {num_rounds}: {case.label}")
            repeats[case.name].append(measure(case))
    return [
        SystemResult(case.name, case.label, repeats[case.name], code=[f"{case.phase.package}/engine.py", *code])
        for case in cases
    ]


def step_times(case: StepCostCase, num_steps: int) -> list[float]:
    """Seconds of each of so many decode steps, all sequences running."""
    with instant_decoding(case, num_steps) as engine:
        return [timed(engine.step) for _ in range(num_steps)]


@contextmanager
def instant_decoding(case: StepCostCase, num_steps: int) -> Iterator[Any]:
    """An engine without a model whose sequences all decode, and have room for so many steps."""
    engine = instant_engine(case, num_steps)
    try:
        for number in range(case.num_sequences):
            engine.add_request(endless(number), SimpleQueue[Any]().put)
        for _ in range(NUM_WARM_UP_STEPS):
            engine.step()
        if (num_running := engine.stats().num_running) != case.num_sequences:
            raise RuntimeError(f"{case.label}: {num_running} are")
        yield engine
    finally:
        engine.close()


def instant_engine(case: StepCostCase, num_steps: int) -> Any:
    """An engine without a model, with room for so many steps after the warm-up."""
    from shared.tiny_models import tiny_llama

    num_tokens = NUM_PROMPT_TOKENS + NUM_WARM_UP_STEPS + num_steps + 1
    blocks_each = num_tokens // EngineConfig().kv_block_size + 1
    model = tiny_llama(num_hidden_layers=1, max_position_embeddings=num_tokens)
    config = EngineConfig(max_batch_size=case.num_sequences, kv_num_blocks=blocks_each * case.num_sequences)
    engine = case.phase.build_engine()(model, config)
    engine.runner = InstantRunner()
    return engine


def endless(number: int) -> Request:
    """A request that outlives the measurement; no two share a prefix."""
    prompt = [number % 90 + 3] * NUM_PROMPT_TOKENS
    return Request(prompt, SamplingParams(max_tokens=1_000_000, ignore_eos=True))


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
