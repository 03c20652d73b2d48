"""A server on a thread of its own, for notebooks and tests: it needs no event loop and disturbs none."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import FastAPI

from shared.errors import SetupError
from shared.server.graceful_server import GracefulServer, bind


@contextmanager
def background_server(app: FastAPI, port: int = 0, grace_s: float = 5.0) -> Iterator[str]:
    """Serves `app` on 127.0.0.1 while the block runs; yields the address, `http://127.0.0.1:...`.

    port: 0 takes a free one. grace_s: seconds that requests get when the block ends.
    Raises SetupError where the port is taken or the application does not start.
    """
    is_ready = threading.Event()
    urls: list[str] = []

    def ready(url: str) -> None:
        urls.append(url)
        is_ready.set()

    server = GracefulServer(app, bind("127.0.0.1", port), grace_s, ready)
    thread = threading.Thread(target=server.run, name="pageserve-http", daemon=True)
    thread.start()
    try:
        while not is_ready.wait(timeout=0.1):
            if not thread.is_alive():
                raise SetupError("the server did not start; its log says why")
        yield urls[0]
    finally:
        server.should_exit = True
        thread.join()
