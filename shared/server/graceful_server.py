"""uvicorn, with an end that loses no work: the first signal drains, the second ends the process at once."""

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

from shared.errors import SetupError
from shared.server.header_deadline import HeaderDeadline

UNREAD_TIMEOUT_S = 60.0  # a client that takes nothing of its answer for so long has its connection cut (on Linux)
BACKSTOP_S = 1  # after the grace period the application gives up by itself; uvicorn cancels what is left then


class GracefulServer(uvicorn.Server):
    """Serves on a socket that is bound already, so that a taken port shows before a model is loaded.

    grace_s: how long requests may go on after SIGTERM or Ctrl-C, in seconds.
    on_ready: called with the server's address once it answers.
    """

    def __init__(self, app: FastAPI, listener: socket.socket, grace_s: float, on_ready: Callable[[str], None]) -> None:
        # h11 is what the tests run on; the request lines of the application replace uvicorn's access log.
        config = uvicorn.Config(
            app,
            http=HeaderDeadline,
            ws="none",
            access_log=False,
            log_config=None,
            log_level="warning",
            timeout_graceful_shutdown=int(grace_s) + BACKSTOP_S,
        )
        super().__init__(config)
        self._service = app.state.service
        self._listener = listener
        self._grace_s = grace_s
        self._on_ready = on_ready

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        super().run(sockets or [self._listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except OSError as error:  # somebody else bound the same port and began to listen first
            host, port = self._listener.getsockname()[:2]
            raise _cannot_serve(host, port, error) from error
        if self.started:
            self._on_ready(address(self._listener))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.drain(self._grace_s)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a signal handler's arguments
        if self.should_exit:
            os._exit(128 + sig)  # not even the step that is running is waited for
        self.should_exit = True


@contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    """What happens inside may wait for a step that never ends: then the process does, with exit code 1."""
    timer = threading.Timer(seconds, os._exit, [1])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def bind(host: str, port: int) -> socket.socket:
    """A socket for the server, not yet listening. Raises SetupError with what to do."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # With the protocol named, asyncio sets TCP_NODELAY; without, every first token would come 40 ms late.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # connections inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD_TIMEOUT_S * 1000))
        listener.bind((host, port))
    except (OSError, OverflowError, UnicodeError) as error:  # the last: a name that DNS does not take
        raise _cannot_serve(host, port, error) from error
    return listener


def _cannot_serve(host: str, port: int, error: Exception) -> SetupError:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        reason = "the port is taken; choose another with --port, or stop who has it"
    else:
        reason = f"{getattr(error, 'strerror', None) or error}; check --host and --port"
    return SetupError(f"cannot serve on {host}, port {port}: {reason}")


def address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
