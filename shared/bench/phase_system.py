"""An engine of a phase under the benchmark: all requests at once, and the time of every token.

The times are those that the engine stamps its step outputs with.
"""

import time
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

from shared.bench.latency import Answer, Served
from shared.config import Auto, EngineConfig
from shared.output import StepOutput
from shared.registry import Phase
from shared.request import Request


class PhaseSystem:
    """One engine, which owns `model` and is kept from run to run."""

    def __init__(self, phase: Phase, model: Any, max_batch_size: int | Auto) -> None:
        self.config = EngineConfig(max_batch_size=max_batch_size, queue_capacity=1024, queue_timeout_s=None)
        self.engine = phase.build_engine()(model, self.config)
        self._num_runs = 0

    def serve(self, requests: Seq[Request]) -> Served:
        """Each run has a cache salt of its own: prefixes are shared within it, and none is left from the last one."""
        self._num_runs += 1
        salted = [replace(request, cache_salt=f"run {self._num_runs}") for request in requests]
        serve = _serve_in_steps if hasattr(self.engine, "step") else _serve_as_streams
        started = time.perf_counter()
        outputs = serve(self.engine, salted)
        return Served(time.perf_counter() - started, [_answer(of_request, started) for of_request in outputs])


def _serve_in_steps(engine: Any, requests: Seq[Request]) -> list[list[StepOutput]]:
    """Every request is in before the first step; through `stream` the first would get a head start."""
    outputs: list[list[StepOutput]] = [[] for _ in requests]
    for request, received in zip(requests, outputs):
        engine.add_request(request, received.append)
    while engine.has_unfinished():
        engine.step()
    return outputs


def _serve_as_streams(engine: Any, requests: Seq[Request]) -> list[list[StepOutput]]:
    streams = [engine.stream(request) for request in requests]
    return [list(stream) for stream in streams]


def _answer(outputs: list[StepOutput], started: float) -> Answer:
    token_times = [(output.time - started, token_id) for output in outputs for token_id in output.token_ids]
    return Answer([token_id for _, token_id in token_times], [moment for moment, _ in token_times])
