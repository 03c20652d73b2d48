"""An engine of a phase under the benchmark, and the plainest way to give it work: all requests at once.

The times are those that the engine stamps its step outputs with.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

from shared.bench.latency import Answer, Served
from shared.output import StepOutput
from shared.request import Request

Serve = Callable[[Any, Seq[Request]], Served]  # how an engine is given its requests


class PhaseSystem:
    """One engine, kept from run to run."""

    def __init__(self, engine: Any, serve: Serve) -> None:
        self.engine = engine
        self._serve = serve
        self._num_runs = 0

    def serve(self, requests: Seq[Request]) -> Served:
        """Each run has a cache salt of its own: prefixes are shared within it, and none is left from the last one."""
        self._num_runs += 1
        salted = [replace(request, cache_salt=f"run {self._num_runs}") for request in requests]
        return self._serve(self.engine, salted)


def serve_at_once(engine: Any, requests: Seq[Request]) -> Served:
    """Every request is handed over before the first token of any."""
    serve = _serve_in_steps if hasattr(engine, "step") else _serve_as_streams
    started = time.perf_counter()
    outputs = serve(engine, requests)
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
