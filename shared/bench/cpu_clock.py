"""What else used the CPU while a run was timed."""

import time
from contextlib import suppress
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class CpuClock:
    """CPU seconds up to one moment, of all cores together: nobody's, and this benchmark's with its children."""

    time: float
    idle: float
    ours: float

    @classmethod
    def now(cls) -> "CpuClock":
        times = psutil.cpu_times()
        return cls(time.perf_counter(), times.idle + getattr(times, "iowait", 0.0), _our_cpu_s())

    def other_share_since(self, earlier: "CpuClock") -> float:
        """The share of all cores' time that went to other processes, or to the host's other guests."""
        capacity = (self.time - earlier.time) * (psutil.cpu_count() or 1)
        others = capacity - (self.idle - earlier.idle) - (self.ours - earlier.ours)
        return min(1.0, max(0.0, others / capacity))


def _our_cpu_s() -> float:
    me = psutil.Process()
    total = 0.0
    for process in [me, *me.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            times = process.cpu_times()
            total += times.user + times.system
    return total
