"""Clocks on the parts of an engine's step: each part is timed where it is called.

Matmuls and the head are timed at the layers of whichever forward runs, attention at its kernel (the preparation of a
step included), sampling at the sampler, batch building where a plan is packed. Of a forward of an unknown kind these
parts stay unknown. The clocks cost a few microseconds a call.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from shared.bench.results import Figures

Point = tuple[str, Any, str]  # part, who has the callable, under which name
IN_MODEL = ("linears", "head", "attention")
BESIDE = ("sampling", "batch_building")


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

    def timed_with_result(self, prepare: Callable[..., Callable[..., Any]]) -> Callable[..., Any]:
        """Of a kernel: the call, and every call of the function that it returns."""
        timed = self.timed("attention", prepare)
        return lambda *args: self.timed("attention", timed(*args))

    def read(self) -> dict[str, float]:
        reading, self.seconds = self.seconds, {}
        return reading


@contextmanager
def clocks_in(engine: Any) -> Iterator[Clocks]:
    """Put a clock on each part of the engine's step, and take them off again."""
    clocks, runner = Clocks(), engine.runner
    points: list[Point] = [("model", runner, "_forward"), ("sampling", runner.sampler, "sample")]
    points += [("batch_building", sys.modules[type(runner).execute.__module__], "pack")]
    points += _linear_points(runner.forward)
    with ExitStack() as stack:
        for part, owner, name in points:
            stack.enter_context(_replaced(owner, name, partial(clocks.timed, part)))
        if kernel := getattr(runner.forward, "kernel", None):
            stack.enter_context(_replaced(kernel, "prepare", clocks.timed_with_result))
        yield clocks


def one_step(engine: Any, clocks: Clocks) -> Figures:
    """Run a step. Returns seconds: the whole, each part, and what is left of the forward pass and of the step."""
    clocks.read()
    started = time.perf_counter()
    engine.step()
    whole = time.perf_counter() - started
    read = clocks.read()
    parts = {part: read.get(part) for part in IN_MODEL}
    model_rest = None if None in parts.values() else read["model"] - sum(value or 0 for value in parts.values())
    beside = {part: read.get(part, 0.0) for part in BESIDE}
    engine_rest = whole - read["model"] - sum(beside.values())
    seconds = {"whole_step": whole, **parts, "model_rest": model_rest, **beside, "engine_rest": engine_rest}
    return {f"{part}_s": value for part, value in seconds.items()}


def _linear_points(forward: Any) -> list[Point]:
    """Of the hand-written forward, or of Hugging Face's; none of another."""
    if hasattr(forward, "layers"):
        names = ("qkv", "output", "gate_up", "down")
        points: list[Point] = [("linears", layer, name) for layer in forward.layers for name in names]
        return [*points, ("head", forward, "head")]
    if hasattr(forward, "model"):
        head = forward.model.get_output_embeddings()
        linears = [module for module in forward.model.modules() if isinstance(module, torch.nn.Linear)]
        return [("head" if module is head else "linears", module, "forward") for module in linears]
    return []


@contextmanager
def _replaced(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Put wrap(what is there) in an attribute's place, on the object itself."""
    before = getattr(owner, name)
    is_own = name in getattr(owner, "__dict__", {name})  # an object with slots has nothing but its own
    setattr(owner, name, wrap(before))
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
