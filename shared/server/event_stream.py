"""A streamed answer that tells when it is over, however it ends."""

from collections.abc import AsyncIterator, Callable

from fastapi.sse import EventSourceResponse
from starlette.types import Receive, Scope, Send

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class EventStream(EventSourceResponse):
    """Starlette cancels it when the client hangs up; an iterator that was never begun has no `finally` to run."""

    def __init__(self, events: AsyncIterator[bytes], on_end: Callable[[], None]) -> None:
        super().__init__(events, headers=HEADERS)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()
