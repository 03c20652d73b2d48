"""What /metrics and /metrics/summary show. Times are those of the engine, from arrival, the queue included."""

from collections import deque
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, generate_latest

from shared.engine import Engine
from shared.output import RequestMetrics, StepOutput
from shared.server.distribution import Distribution
from shared.server.engine_collector import EngineCollector
from shared.server.settings import ServerSettings
from shared.server.step_meter import StepMeter
from shared.stats import EngineStats

REQUEST_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)  # seconds
TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.4, 0.8, 1.6)  # seconds
MISSES = ("timeout", "error")  # a request that ended so has met no objective; one that its client left is not judged


class ServerMetrics:
    """A registry of its own, so that several servers can live in one process."""

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(engine))
        self.http_requests = Counter(
            "pageserve_http_requests", "answers by route and status", ["route", "status"], registry=self.registry
        )
        self.queue = self._distribution("queue", "from arrival to the first step", REQUEST_BUCKETS, settings.window)
        self.ttft = self._distribution("ttft", "from arrival to the first token", REQUEST_BUCKETS, settings.window)
        self.tpot = self._distribution("tpot", "per token after the first", TOKEN_BUCKETS, settings.window)
        self.itl = self._distribution("itl", "between two outputs of a sequence", TOKEN_BUCKETS, settings.window)
        self.e2e = self._distribution("e2e", "from arrival to the last token", REQUEST_BUCKETS, settings.window)
        step = self._distribution("step", "of one step of the engine", TOKEN_BUCKETS, settings.window)
        self.steps = step
        self.step_meter = StepMeter(step)
        self._engine = engine
        self._settings = settings
        self._verdicts: deque[bool] = deque(maxlen=settings.window)  # of finished requests: met their objectives
        self._last_times: dict[tuple[str, int], float] = {}  # (request id, index) -> seconds, of its last tokens
        self._unsubscribe: Callable[[], None] | None = None

    def open(self) -> None:
        """Listen to the engine's steps."""
        self._unsubscribe = self._engine.events.subscribe_to_steps(self.step_meter.saw)

    def close(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()

    def saw(self, output: StepOutput) -> None:
        """Every output of every request that the server has handed to the engine."""
        key = (output.request_id, output.index)
        if output.token_ids:
            if (last := self._last_times.get(key)) is not None:
                self.itl.add(output.time - last)
            self._last_times[key] = output.time
        if output.finish_reason is not None:
            self._last_times.pop(key, None)
        if output.metrics is not None:
            self._finished(output.metrics, output.finish_reason or "")

    def text(self) -> bytes:
        """Prometheus' exposition format."""
        return generate_latest(self.registry)

    def summary(self) -> dict[str, Any]:
        """Percentiles over the last values, and totals since the start; null where nothing has been measured."""
        stats, meter = self._engine.stats(), self.step_meter
        return {
            "ttft_ms": self.ttft.summary_ms(),
            "tpot_ms": self.tpot.summary_ms(),
            "itl_ms": self.itl.summary_ms(),
            "e2e_ms": self.e2e.summary_ms(),
            "queue_ms": self.queue.summary_ms(),
            "steps": {
                "count": stats.num_steps,
                "duration_ms": self.steps.summary_ms(),
                "sequences_per_step": ratio(meter.num_rows, meter.num_steps),
                "tokens_per_step": ratio(meter.num_tokens, meter.num_steps),
            },
            "requests": {
                "waiting": stats.num_waiting,
                "running": stats.num_running,
                "swapped": stats.num_swapped,
                "finished": dict(stats.requests_finished),
            },
            "tokens": {"prompt": stats.prompt_tokens, "generated": stats.generated_tokens},
            "kv": _kv_use(stats),
            "preemptions": stats.num_preemptions,
            "prefix_hit_rate": ratio(stats.num_prefix_hit_tokens, stats.num_prefix_queried_tokens),
            "draft_acceptance_rate": ratio(stats.num_accepted_tokens, stats.num_drafted_tokens),
            "slo": self._slo(),
        }

    def _distribution(self, name: str, text: str, buckets: tuple[float, ...], window: int) -> Distribution:
        return Distribution(self.registry, f"pageserve_{name}_seconds", f"seconds {text}", buckets, window)

    def _finished(self, metrics: RequestMetrics, reason: str) -> None:
        self.queue.add(metrics.queue_s)
        self.ttft.add(metrics.ttft_s)
        self.tpot.add(metrics.tpot_s)
        if reason in MISSES:
            self._verdicts.append(False)
        elif metrics.ttft_s is not None and reason != "abort":
            self.e2e.add(metrics.e2e_s)
            in_time = metrics.ttft_s <= self._settings.slo_ttft_s
            self._verdicts.append(in_time and (metrics.tpot_s or 0.0) <= self._settings.slo_tpot_s)

    def _slo(self) -> dict[str, float | int | None]:
        verdicts = list(self._verdicts)
        return {
            "ttft_ms": self._settings.slo_ttft_s * 1e3,
            "tpot_ms": self._settings.slo_tpot_s * 1e3,
            "num_requests": len(verdicts),
            "compliance": ratio(sum(verdicts), len(verdicts)),
        }


def ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


def _kv_use(stats: EngineStats) -> dict[str, float | int | None]:
    used, total = stats.kv_blocks_used, stats.kv_blocks_total
    return {
        "blocks_total": total,
        "blocks_used": used,
        "blocks_cached": stats.kv_blocks_cached,
        "use": None if used is None or total is None else ratio(used, total),
        "swap_blocks_used": stats.swap_blocks_used,
    }
