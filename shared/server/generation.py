"""The engine's work for one HTTP request: one or several prompts, `n` completions each, one unit of cancellation."""

import asyncio
from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import partial

from shared.engine import Engine
from shared.output import StepOutput
from shared.request import Request
from shared.server.api_error import ApiError, failed
from shared.server.mailbox import Mailbox


class Generation:
    """An async iterator over (which prompt, its step output) until everything has its finish reason.

    Raises ApiError where a request ends in an error. Closing it drops what still runs, wherever that is.
    observe: called on the event loop with every output, also with those that nobody waits for any more.
    """

    def __init__(self, engine: Engine, mailbox: Mailbox, observe: Callable[[StepOutput], None]) -> None:
        self._engine = engine
        self._mailbox = mailbox
        self._observe = observe
        self._arrived: asyncio.Queue[tuple[int, StepOutput] | ApiError] = asyncio.Queue()
        self._request_ids: list[str] = []  # handed to the engine
        self._first: tuple[int, StepOutput] | None = None  # waited for, not iterated over yet
        self._num_open = 0  # sequences without a finish reason
        self._is_closed = False

    def submit(self, requests: Seq[Request]) -> None:
        """Hand everything to the engine, or nothing: a part of an answer would be work for nobody.

        May run on another thread than the rest. Raises what the engine raises.
        """
        if self._is_closed:
            return
        self._num_open = sum(request.params.n for request in requests)
        delivers = [partial(self._mailbox.post, partial(self._take, number)) for number in range(len(requests))]
        self._request_ids = self._engine.submit_all(requests, delivers)
        if self._is_closed:  # closed while this ran: `close` may have come before the ids were known
            self._abort()

    async def wait_for_first(self) -> None:
        """Until the first output, which the iteration then begins with. Raises as the iteration does."""
        self._first = await anext(self)

    def fail(self, error: ApiError) -> None:
        """Drop everything and have whoever waits get `error`."""
        self.close()
        self._arrived.put_nowait(error)

    def close(self) -> None:
        """Idempotent; costs nothing after the last output."""
        self._is_closed = True
        self._abort()

    def __aiter__(self) -> "Generation":
        return self

    async def __anext__(self) -> tuple[int, StepOutput]:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if self._num_open == 0:
            raise StopAsyncIteration
        arrived = await self._arrived.get()
        if isinstance(arrived, ApiError):
            raise arrived
        output = arrived[1]
        if error := failed(output):
            raise error
        self._num_open -= output.finish_reason is not None
        return arrived

    def _take(self, number: int, output: StepOutput) -> None:
        self._observe(output)
        self._arrived.put_nowait((number, output))

    def _abort(self) -> None:
        if self._num_open:
            for request_id in self._request_ids:
                self._engine.abort(request_id)
