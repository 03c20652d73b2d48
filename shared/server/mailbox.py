"""Step outputs on their way from the engine's thread to the event loop."""

import asyncio
from collections import deque
from collections.abc import Callable

from shared.output import StepOutput

Receiver = Callable[[StepOutput], None]


class Mailbox:
    """Wakes the loop once for all that a step hands out, not once for every sequence."""

    def __init__(self) -> None:
        self._arrived: deque[tuple[Receiver, StepOutput]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_loop_called = False

    def open(self) -> None:
        """Deliver on the running loop from now on; what was meant for another one has nobody to receive it."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._arrived.clear()
            self._loop, self._is_loop_called = loop, False

    def post(self, receiver: Receiver, output: StepOutput) -> None:
        """From any thread: have `receiver` called with `output` on the loop, in order of posting."""
        self._arrived.append((receiver, output))
        if self._is_loop_called or self._loop is None:
            return
        self._is_loop_called = True
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # the loop is closed: the server is gone, and so is whoever waited
            self._is_loop_called = False
            self._arrived.clear()

    def _deliver(self) -> None:
        self._is_loop_called = False  # before the first pop: what is posted from here on calls again
        while self._arrived:
            receiver, output = self._arrived.popleft()
            receiver(output)
