"""An engine of a phase under the benchmark, and the plainest way to give it work: all requests at once.

The times are those that the engine stamps its step outputs with.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import Any

from shared.bench.latency import Answer, Served
from shared.output import StepOutput
from shared.request import Request
from shared.stats import EngineStats
from shared.trace.recording import recorded

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
        before = self.engine.stats()
        served = self._serve(self.engine, salted)
        return replace(served, counters=served.counters | counters_since(before, self.engine.stats()))

    def record(self, requests: Seq[Request], path: Path, about: dict[str, Any]) -> None:
        """Serve them and write down what the engine does. Raises SetupError where the file cannot be written."""
        with recorded(self.engine, path, **about):
            self.serve(requests)


def counters_since(before: EngineStats, after: EngineStats) -> dict[str, float | int | None]:
    """What an engine counted of a run. A figure that a phase has no use for is left out."""
    counters: dict[str, float | int | None] = {}
    if after.kv_blocks_total is not None:
        counters["kv_blocks_total"] = after.kv_blocks_total
        counters["preemptions"] = after.num_preemptions - before.num_preemptions
        counters["recomputed_tokens"] = after.num_recomputed_tokens - before.num_recomputed_tokens
    if queried := after.num_prefix_queried_tokens - before.num_prefix_queried_tokens:
        counters["prefix_queried_tokens"] = queried
        counters["prefix_hit_tokens"] = after.num_prefix_hit_tokens - before.num_prefix_hit_tokens
    if drafted := after.num_drafted_tokens - before.num_drafted_tokens:
        counters["drafted_tokens"] = drafted
        counters["accepted_tokens"] = after.num_accepted_tokens - before.num_accepted_tokens
    return counters


def serve_at_once(engine: Any, requests: Seq[Request]) -> Served:
    """Every request is handed over before the first token of any."""
    started = time.perf_counter()
    if hasattr(engine, "step"):
        outputs, counters = _serve_in_steps(engine, requests)
    else:
        outputs, counters = _serve_as_streams(engine, requests), {}
    return Served(time.perf_counter() - started, [_answer(of_request, started) for of_request in outputs], counters)


def _serve_in_steps(
    engine: Any, requests: Seq[Request]
) -> tuple[list[list[StepOutput]], dict[str, float | int | None]]:
    """Every request is in before the first step; through `stream` the first would get a head start.

    The most blocks in use are looked for after each step, when those that it finished have given theirs back.
    """
    outputs: list[list[StepOutput]] = [[] for _ in requests]
    for request, received in zip(requests, outputs):
        engine.add_request(request, received.append)
    most_blocks = 0
    while engine.has_unfinished():
        engine.step()
        most_blocks = max(most_blocks, engine.scheduler.stats().kv_blocks_used or 0)
    return outputs, {"kv_blocks_peak": most_blocks} if most_blocks else {}


def _serve_as_streams(engine: Any, requests: Seq[Request]) -> list[list[StepOutput]]:
    streams = [engine.stream(request) for request in requests]
    return [list(stream) for stream in streams]


def _answer(outputs: list[StepOutput], started: float) -> Answer:
    token_times = [(output.time - started, token_id) for output in outputs for token_id in output.token_ids]
    return Answer([token_id for _, token_id in token_times], [moment for moment, _ in token_times])
