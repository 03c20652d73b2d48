"""The engine's own figures for Prometheus, read when somebody asks: nothing is counted twice."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.engine import Engine

GAUGES = {  # field of EngineStats -> help; left out where a phase has no such thing
    "num_requests": "requests the engine knows: waiting, running or swapped",
    "num_waiting": "sequences that wait for their first step",
    "num_running": "sequences in the running batch",
    "num_swapped": "sequences whose K/V is in host memory",
    "kv_blocks_total": "K/V blocks in the pool",
    "kv_blocks_used": "K/V blocks that a sequence holds",
    "kv_blocks_free": "K/V blocks that nobody holds, cached ones included",
    "kv_blocks_cached": "K/V blocks that nobody holds and that keep their contents",
    "swap_blocks_total": "blocks of host memory for swapping",
    "swap_blocks_used": "blocks of host memory in use",
}
COUNTERS = {
    "num_steps": "steps run",
    "prompt_tokens": "prompt tokens of requests that were scheduled, once each",
    "generated_tokens": "tokens handed to clients",
    "num_preemptions": "times that a sequence had to give its memory back",
    "num_recomputed_tokens": "tokens computed again after that",
    "num_prefix_queried_tokens": "prompt tokens looked up in the prefix cache",
    "num_prefix_hit_tokens": "prompt tokens found there",
    "num_drafted_tokens": "guessed tokens that were verified",
    "num_accepted_tokens": "guessed tokens that were right",
}


class EngineCollector(Collector):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats()
        for name, text in GAUGES.items():
            if (value := getattr(stats, name)) is not None:
                yield GaugeMetricFamily(f"pageserve_{name}", text, value=value)
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"pageserve_{name}", text, value=getattr(stats, name))
        finished = CounterMetricFamily("pageserve_requests_finished", "requests by how they ended", labels=["reason"])
        for reason, count in stats.requests_finished.items():
            finished.add_metric([reason], count)
        yield finished

    def describe(self) -> Iterator[Metric]:
        """Nothing, so that registering it does not read the engine."""
        return iter(())
