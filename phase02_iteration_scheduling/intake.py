"""Where requests arrive: a deque between the clients' threads and the step loop. Torch-free.

It takes everybody, however many there are. Phase 3 puts a queue with limits in its place.
"""

from collections import deque

from shared.request_state import RequestState


class Intake:
    """First in, first out. A deque's own operations are safe between threads."""

    def __init__(self) -> None:
        self._arrived: deque[RequestState] = deque()

    def __len__(self) -> int:
        return sum(len(state.sequences) for state in list(self._arrived))

    def put(self, state: RequestState) -> None:
        self._arrived.append(state)

    def drain(self) -> list[RequestState]:
        """Everything that has arrived, in order."""
        return [self._arrived.popleft() for _ in range(len(self._arrived))]

    def cancel(self, state: RequestState) -> bool:
        """True if the request was still here; it never reaches the scheduler then."""
        try:
            self._arrived.remove(state)
        except ValueError:
            return False
        return True
