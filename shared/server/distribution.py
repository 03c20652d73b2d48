"""One kind of duration: a Prometheus histogram, and the last values for percentiles."""

import threading
from collections import deque
from collections.abc import Sequence as Seq

import numpy as np
from prometheus_client import CollectorRegistry, Histogram

PERCENTILES = (50, 90, 95, 99)
NAMES = (*(f"p{percent}" for percent in PERCENTILES), "mean")

Summary = dict[str, float | None]  # each of NAMES -> milliseconds; null where nothing was measured


class Distribution:
    """name: with its unit, as Prometheus wants it (`pageserve_..._seconds`). window: values kept for percentiles."""

    def __init__(self, registry: CollectorRegistry, name: str, text: str, buckets: Seq[float], window: int) -> None:
        self._histogram = Histogram(name, text, buckets=buckets, registry=registry)
        self._last: deque[float] = deque(maxlen=window)
        self._lock = threading.Lock()  # steps are measured on the engine's thread

    def add(self, seconds: float | None) -> None:
        """None, a time that is undefined for this request, is not counted."""
        if seconds is not None:
            self._histogram.observe(seconds)
            with self._lock:
                self._last.append(seconds)

    def summary_ms(self) -> Summary:
        with self._lock:
            values = list(self._last)
        if not values:
            return dict.fromkeys(NAMES)
        found = [*np.percentile(values, PERCENTILES), np.mean(values)]
        return {name: round(float(seconds) * 1e3, 3) for name, seconds in zip(NAMES, found)}
