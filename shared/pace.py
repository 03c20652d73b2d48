"""How fast an engine's thread may step: freely, one step at a time, or slowly enough to watch. Torch-free.

Knows no thread and takes no lock: whoever owns the thread asks it under a lock of its own.
"""

import time
from collections.abc import Callable


class Pace:
    """seconds_per_step: from the beginning of one step to the next, at least."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.is_paused = False
        self.seconds_per_step = 0.0
        self._num_allowed = 0  # steps that may run although it is paused
        self._next = 0.0  # when the next step may begin
        self._clock = clock

    def allow_one(self) -> None:
        """Let a single step run while it is paused; asking again before that one has begun is asking once."""
        self._num_allowed = 1

    def set(self, *, is_paused: bool, seconds_per_step: float) -> None:
        self.is_paused, self.seconds_per_step, self._num_allowed = is_paused, seconds_per_step, 0

    def delay_s(self) -> float | None:
        """Seconds until the next step may begin, 0 if it may now; None while it is paused."""
        if self.is_paused and not self._num_allowed:
            return None
        return max(0.0, self._next - self._clock()) if self.seconds_per_step else 0.0

    def note_step(self) -> None:
        """A step begins."""
        self._num_allowed = 0
        if self.seconds_per_step:
            self._next = self._clock() + self.seconds_per_step
