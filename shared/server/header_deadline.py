"""A limit on how long a connection may take to say what it wants; uvicorn itself has none."""

import asyncio

import h11

from shared.server.http_connection import HttpConnection

HEADER_TIMEOUT_S = 10.0


class HeaderDeadline(HttpConnection):
    """Closes a connection whose first request, or whose begun next one, has no complete headers in time."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop()
        elif self._deadline is None:
            self._start()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _start(self) -> None:
        self._deadline = self.loop.call_later(HEADER_TIMEOUT_S, self.transport.close)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
