"""Servers that answer as they are told: on time, late, in pieces, or not at all."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class StubServer(ThreadingHTTPServer):
    """Each request is answered by `answer(handler, body)`; `bodies` keeps what was asked."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, answer: Any) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: StubServer

    def do_GET(self) -> None:
        self.reply(200, json.dumps({"data": [{"id": "stub"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        self.server.keys.append(self.headers.get("Authorization"))
        self.server.answer(self, body)

    def reply(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def begin(self) -> None:
        """A stream: HTTP/1.0 ends it by closing the connection."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()

    def event(self, data: Any) -> None:
        self.wfile.write(f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *_arguments: Any) -> None:
        pass


@contextmanager
def stub(answer: Any) -> Iterator[StubServer]:
    server = StubServer(answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def closed_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def piece(text: str, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": None, **fields}]}


def usage(num_tokens: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": num_tokens}}


def say(*events: Any, gap_s: float = 0.0) -> Any:
    """These events, so far apart, then [DONE]."""

    def answer(handler: Any, _body: Any) -> None:
        handler.begin()
        started = time.perf_counter()
        for number, event in enumerate(events):
            time.sleep(max(0.0, started + number * gap_s - time.perf_counter()))
            handler.event(event)
        handler.event("[DONE]")

    return answer


def one_at_a_time(seconds: float) -> Any:
    """A token and the end after so long, for one request at a time."""
    lock = threading.Lock()

    def answer(handler: Any, _body: Any) -> None:
        with lock:
            time.sleep(seconds)
            handler.begin()
            handler.event(piece("a", token_ids=[7], finish_reason="length"))
            handler.event("[DONE]")

    return answer
