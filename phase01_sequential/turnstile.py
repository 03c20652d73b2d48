"""A lock with a line in front of it: first come, first served, and whoever is cancelled leaves the line. Torch-free."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Turnstile:
    """`threading.Lock` promises no order; a server needs one, or a request could wait for ever."""

    def __init__(self) -> None:
        self._line: deque[object] = deque()  # the first one has the turn
        self._moved = threading.Condition()

    def join(self, ticket: object) -> None:
        with self._moved:
            self._line.append(ticket)

    @contextmanager
    def turn(self, ticket: object, is_cancelled: Callable[[], bool]) -> Iterator[None]:
        """Wait for the turn (or until cancelled), and give it back in any case."""
        # BEGIN SOLUTION 1.2
        try:
            with self._moved:
                self._moved.wait_for(lambda: self._line[0] is ticket or is_cancelled())
            yield
        finally:
            self.leave(ticket)
        # END SOLUTION

    def leave(self, ticket: object) -> None:
        """Step out of the line, from anywhere in it; leaving twice is leaving once."""
        with self._moved:
            if ticket in self._line:
                self._line.remove(ticket)
            self._moved.notify_all()

    def wake(self) -> None:
        """Let everyone in line look at whether they were cancelled."""
        with self._moved:
            self._moved.notify_all()

    def wait_until_empty(self) -> None:
        with self._moved:
            self._moved.wait_for(lambda: not self._line)
