"""A real uvicorn over a tiny model, in a thread or (`python -m tests.server_helpers PHASE GRACE_S`) as a process."""

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from shared.config import EngineConfig
from shared.registry import PHASES, Phase, phase_by_number
from shared.server import create_app
from shared.server.background import background_server
from shared.server.graceful_server import GracefulServer, bind
from shared.tiny_models import tiny_llama
from tests.helpers import PA, T0_OUTPUTS, assert_clean, letter_tokenizer, slow_down

MODEL = "tiny"
both_kinds = [PHASES[0], PHASES[-1]]  # of engines, where the phases between them would show nothing new
both_ids = [f"phase{phase.number:02d}" for phase in both_kinds]
CHAT_TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@dataclass
class Served:
    """A server that runs, and a client that talks to it."""

    engine: Any
    app: Any
    url: str
    http: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=self.url, timeout=30)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.http.post(path, json=body, **options)

    def generate(self, prompt: Any, max_tokens: int, **fields: Any) -> httpx.Response:
        body = {"prompt": prompt, "max_new_tokens": max_tokens, "ignore_eos": True, **fields}
        return self.post("/generate", body)

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of a stream, parsed strictly; the last one has to be [DONE]."""
        response = self.post(path, body | {"stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        events = parse_events(response.text)
        assert events.pop() == "[DONE]"
        return events

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", int(self.url.rpartition(":")[2])), timeout=10)

    def send_raw(self, path: str, body: dict[str, Any]) -> socket.socket:
        """A POST whose answer nobody reads: close the socket to hang up."""
        connection = self.connect()
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        return connection

    def assert_alive(self) -> None:
        """The cases' "alive", over HTTP."""
        assert self.http.get("/health").status_code == 200
        response = self.http.post("/generate", json={"prompt": PA, "max_new_tokens": 4, "ignore_eos": True}, timeout=5)
        assert response.json()["token_ids"] == T0_OUTPUTS["PA"][:4]


def read_to_end(connection: socket.socket) -> bytes:
    connection.settimeout(5)
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


@contextmanager
def watched_health(served: Served) -> Iterator[None]:
    """While it is open, /health is 200 and answers within 0.5 s, time after time."""
    is_over = threading.Event()
    slowest, statuses = 0.0, set()

    def watch() -> None:
        nonlocal slowest
        with httpx.Client(base_url=served.url) as client:
            while not is_over.wait(0.02):
                started = time.perf_counter()
                statuses.add(client.get("/health").status_code)
                slowest = max(slowest, time.perf_counter() - started)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    assert statuses == {200}
    assert slowest < 0.5


def strict_json(text: str) -> Any:
    """RFC 8259: no NaN, no Infinity."""

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def parse_events(text: str) -> list[Any]:
    blocks = [block for block in text.split("\n\n") if block]
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    data = [block.removeprefix("data: ") for block in blocks]
    return [line if line == "[DONE]" else strict_json(line) for line in data]


def assert_error(response: httpx.Response, status: int, param: str | None = None, code: str | None = None) -> str:
    """The cases' "error object"; returns its message."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = strict_json(response.text)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    if param is not None:
        assert error["param"] == param
    if code is not None:
        assert error["code"] == code
    return error["message"]


@contextmanager
def open_server(
    phase: Phase,
    model: Any = None,
    tokenizer: Any = "letters",
    limits: dict[str, Any] | None = None,
    **settings: Any,
) -> Iterator[Served]:
    """A server of a phase (T0 with a tokenizer of letters if nothing is given), checked and stopped in the end."""
    tokenizer = letter_tokenizer(vocab_size=97) if tokenizer == "letters" else tokenizer
    engine = phase.build_engine()(model or tiny_llama(), EngineConfig(**settings), tokenizer)
    app = create_app(engine, tokenizer, MODEL, **(limits or {}))
    try:
        with background_server(app) as url:
            served = Served(engine, app, url)
            with served.http:
                yield served
            assert_clean(engine)
    finally:
        engine.close()


def chatting(tokenizer: Any, template: str = CHAT_TEMPLATE) -> Any:
    tokenizer.chat_template = template
    return tokenizer


def main(phase: int, grace_s: float) -> None:
    """A slowed T0 that is told to stop by signals; prints its address on stderr."""
    engine = phase_by_number(phase).build_engine()(tiny_llama(), EngineConfig(), letter_tokenizer(vocab_size=97))
    slow_down(engine)
    app = create_app(engine, letter_tokenizer(vocab_size=97), MODEL)
    GracefulServer(app, bind("127.0.0.1", 0), grace_s, lambda url: print(url, file=sys.stderr, flush=True)).run()
    engine.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
