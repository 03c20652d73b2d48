"""The line in front of the step loop, with a limit on its length and on the wait. Torch-free.

put -> | waiting, first in first out | -> drain -> scheduler
  full: QueueFull                deadline passed: expired
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq

from shared.errors import QueueFull
from shared.request_state import RequestState


class RequestQueue:
    """Safe to use from any thread (vLLM keeps this line in `Scheduler.waiting`, without a limit).

    capacity: requests that may wait. timeout_s: seconds one may wait before its first step, None for ever.
    """

    def __init__(self, capacity: int, timeout_s: float | None, clock: Callable[[], float] = time.perf_counter) -> None:
        self.capacity = capacity
        self.timeout_s = timeout_s
        self._clock = clock
        self._waiting: dict[RequestState, None] = {}  # an ordered set: to leave from the middle costs O(1)
        self._deadlines: deque[tuple[float, RequestState]] = deque()  # (when, who), soonest first
        self._lock = threading.RLock()  # reentrant: a stream may be collected, and so cancelled, anywhere

    def __len__(self) -> int:
        return sum(len(state.sequences) for state in self)

    def __iter__(self) -> Iterator[RequestState]:
        """Who waits here at the moment, in order."""
        with self._lock:
            return iter(list(self._waiting))

    def put(self, states: Seq[RequestState], *, is_patient: bool = False) -> None:
        """All or none. is_patient: the caller waits for as long as it takes, so no limit applies.

        Raises QueueFull at once when they would not fit.
        """
        with self._lock:
            # BEGIN SOLUTION 3.1
            if not is_patient and len(self._waiting) + len(states) > self.capacity:
                raise QueueFull(self.capacity)
            self._waiting |= dict.fromkeys(states)
            if not is_patient and self.timeout_s is not None:
                deadline = self._clock() + self.timeout_s
                self._deadlines.extend((deadline, state) for state in states)
            # END SOLUTION

    def drain(self, num_sequences: int) -> list[RequestState]:
        """The oldest requests, up to this many sequences (the last request may bring more)."""
        drained: list[RequestState] = []
        with self._lock:
            while num_sequences > 0 and self._waiting:
                state = next(iter(self._waiting))
                del self._waiting[state]
                drained.append(state)
                num_sequences -= len(state.sequences)
        return drained

    def expired(self) -> list[RequestState]:
        """Requests past their deadline that no step has run yet: here, or drained and still held up behind others."""
        late: list[RequestState] = []
        with self._lock:
            # BEGIN SOLUTION 3.2
            while self._deadlines:
                deadline, state = self._deadlines[0]
                has_begun = state.is_finished or state.metrics.first_scheduled_time is not None
                if not has_begun and deadline > self._clock():
                    break
                self._deadlines.popleft()
                if not has_begun:
                    late.append(state)
            # END SOLUTION
        return late

    def cancel(self, state: RequestState) -> bool:
        """True if the request was still here; the scheduler never sees it then."""
        with self._lock:
            is_here = state in self._waiting
            self._waiting.pop(state, None)
        return is_here
