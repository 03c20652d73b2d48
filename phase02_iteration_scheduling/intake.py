"""Where requests arrive: a deque between the clients' threads and the step loop. Torch-free.

It takes everybody, however many there are. Phase 3 puts a queue with limits in its place.
"""

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Seq

from shared.request_state import RequestState


class Intake:
    """First in, first out. A deque's own operations are safe between threads."""

    def __init__(self) -> None:
        self._arrived: deque[RequestState] = deque()

    def __len__(self) -> int:
        return sum(len(state.sequences) for state in self)

    def __iter__(self) -> Iterator[RequestState]:
        """Who waits here at the moment, in order."""
        return iter(list(self._arrived))  # a copy, taken at once: others may put meanwhile

    def put(self, states: Seq[RequestState], *, is_patient: bool = False) -> None:  # noqa: ARG002 - all are
        self._arrived.extend(states)

    def drain(self, num_sequences: int) -> list[RequestState]:
        """The oldest requests, up to this many sequences (the last request may bring more)."""
        drained: list[RequestState] = []
        while num_sequences > 0 and self._arrived:
            drained.append(self._arrived.popleft())
            num_sequences -= len(drained[-1].sequences)
        return drained

    def expired(self) -> list[RequestState]:
        """Nobody: here everyone waits for as long as it takes."""
        return []

    def cancel(self, state: RequestState) -> bool:
        """True if the request was still here; the scheduler never sees it then."""
        try:
            self._arrived.remove(state)
        except ValueError:
            return False
        return True
