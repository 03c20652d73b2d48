"""`python -m shared.bench step-parts`: where the milliseconds of a decode step go.

Each part is timed where it is called: matmuls and the head by hooks on the model's linear layers, attention where
transformers looks it up, sampling at the sampler. What is left of the forward pass is norms, RoPE, activations and
dispatch; what is left of the step is planning, packing and handing out. The clocks cost a few microseconds a call.
"""

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from shared.bench.build import load
from shared.bench.results import Figures, ModelRecord, SystemResult
from shared.bench.systems import ModelChoice
from shared.config import EngineConfig
from shared.registry import Phase
from shared.request import Request, SamplingParams

FIRST_PACKED = 8  # before, a step is several forward passes
NUM_WARM_UP_STEPS = 5


@dataclass(frozen=True, slots=True)
class StepPartsCase:
    """A phase, so many running sequences, and the context of each when it is measured, in tokens."""

    phase: Phase
    num_sequences: int
    context: int

    @property
    def name(self) -> str:
        return f"phase{self.phase.number:02d}-{self.num_sequences}x{self.context}"

    @property
    def label(self) -> str:
        return f"phase {self.phase.number}, {self.num_sequences} running, context {self.context}"


@dataclass(slots=True)
class Clocks:
    """Seconds spent in each part since the last reading."""

    seconds: dict[str, float] = field(default_factory=dict)

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def with_clock(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - started

        return with_clock

    def read(self) -> dict[str, float]:
        reading, self.seconds = self.seconds, {}
        return reading


def run_step_parts(
    cases: Seq[StepPartsCase], choice: ModelChoice, num_steps: int, num_rounds: int, announce: Callable[[str], None]
) -> tuple[list[SystemResult], ModelRecord]:
    """Measure all cases in each round, a fresh engine for each."""
    if choice.num_threads is not None:
        torch.set_num_threads(choice.num_threads)
    repeats: dict[str, list[Figures]] = {case.name: [] for case in cases}
    for number in range(1, num_rounds + 1):
        for case in cases:
            announce(f"round {number} of {num_rounds}: {case.label}")
            model, _, name = load(choice)
            repeats[case.name].append(measure(case, model, num_steps))
    systems = [
        SystemResult(case.name, case.label, repeats[case.name], code=[f"{case.phase.package}/engine.py"])
        for case in cases
    ]
    return systems, ModelRecord(name, choice.dtype, str(model.device), torch.get_num_threads())


def measure(case: StepPartsCase, model: Any, num_steps: int) -> Figures:
    """Median seconds per decode step: the whole, each part, and the two rests."""
    engine = case.phase.build_engine()(model, _config(case, num_steps))
    try:
        for number in range(case.num_sequences):
            engine.add_request(_request(number, case.context, num_steps))
        while any(seq.num_output_tokens == 0 for seq in engine.scheduler.running) or engine.stats().num_waiting:
            engine.step()
        for _ in range(NUM_WARM_UP_STEPS):
            engine.step()
        with clocks_in(engine) as clocks:
            return _medians([_one_step(engine, clocks) for _ in range(num_steps)])
    finally:
        engine.close()


@contextmanager
def clocks_in(engine: Any) -> Iterator[Clocks]:
    """Put a clock on each part of the engine's step, and take them off again."""
    clocks, model, sampler = Clocks(), engine.runner.model, engine.runner.sampler
    attention = model.config._attn_implementation
    original = ALL_ATTENTION_FUNCTIONS[attention]
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            is_head = module is model.get_output_embeddings()
            vars(module)["forward"] = clocks.timed("head" if is_head else "linears", module.forward)
    ALL_ATTENTION_FUNCTIONS[attention] = clocks.timed("attention", original)
    sampler.sample = clocks.timed("sampling", sampler.sample)
    model.forward = clocks.timed("model", model.forward)
    try:
        yield clocks
    finally:
        ALL_ATTENTION_FUNCTIONS[attention] = original


def _one_step(engine: Any, clocks: Clocks) -> dict[str, float]:
    clocks.read()
    started = time.perf_counter()
    engine.step()
    seconds = {"whole_step": time.perf_counter() - started, **clocks.read()}
    in_model = seconds["linears"] + seconds["head"] + seconds["attention"]
    seconds["model_rest"] = seconds.pop("model") - in_model
    seconds["engine_rest"] = seconds["whole_step"] - in_model - seconds["model_rest"] - seconds["sampling"]
    return seconds


def _medians(steps: Seq[dict[str, float]]) -> Figures:
    return {f"{part}_s": median(step[part] for step in steps) for part in steps[0]}


def _config(case: StepPartsCase, num_steps: int) -> EngineConfig:
    num_tokens = case.context + num_steps + NUM_WARM_UP_STEPS + case.num_sequences + 8
    blocks_each = num_tokens // EngineConfig().kv_block_size + 1
    return EngineConfig(
        max_batch_size=case.num_sequences,
        kv_num_blocks=blocks_each * case.num_sequences,
        enable_prefix_caching=False,
        prefill_budget_tokens=max(512, 2 * case.num_sequences),
    )


def _request(number: int, context: int, num_steps: int) -> Request:
    """Long enough to decode to the end of the measurement, whichever is prefilled first."""
    prompt = [(7 * number + 3 * i) % 90 + 3 for i in range(context)]
    num_more = num_steps + NUM_WARM_UP_STEPS
    return Request(prompt, SamplingParams(max_tokens=num_more + 8 + number, ignore_eos=True))
