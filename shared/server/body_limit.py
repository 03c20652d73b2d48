"""Reads a request's body before anything else is done with it: so much, and in so much time, or not at all."""

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.server.api_error import ApiError, ClientGone
from shared.server.settings import ServerSettings

MAX_LENGTH_DIGITS = 18


class BodyLimit:
    """ASGI middleware: 413 for a body over the limit, whatever its Content-Length says, 408 for one that stalls.

    A compressed one is a 415: nothing here unpacks what might be a thousand times larger.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._max_bytes = settings.max_body_bytes
        self._timeout_s = settings.body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        record = scope["state"]["record"]
        try:
            body = await self._read(scope, receive)
        except ApiError as error:
            record.reason = error.code
            return await error.response()(scope, receive, send)
        except ClientGone:
            record.reason, record.status = "disconnect", 499
            return None
        return await self._app(scope, _replay(body, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        headers = Headers(scope=scope)
        if (encoding := headers.get("content-encoding", "identity").lower()) != "identity":
            raise ApiError(415, f"bodies in {encoding!r} are not read; send it uncompressed", code="body_encoded")
        length = headers.get("content-length", "0")
        if len(length) > MAX_LENGTH_DIGITS or (length.isdecimal() and int(length) > self._max_bytes):
            raise self._too_large()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._read_all(receive)
        except TimeoutError:
            message = f"the body did not arrive within {self._timeout_s:g} s"
            raise ApiError(408, message, code="body_timeout", headers={"Connection": "close"}) from None

    async def _read_all(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        num_bytes = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            num_bytes += len(parts[-1])
            if num_bytes > self._max_bytes:
                raise self._too_large()
            if not message.get("more_body", False):
                return b"".join(parts)

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the body is over the limit of {self._max_bytes} bytes", code="body_too_large")


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that hands out the whole body, then whatever comes after it: the end of the connection."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return left.pop() if left else await receive()

    return replay
