"""Clients that go away, or stop reading, at every stage of a request, while others are being served.

In the queue, during prefill, while decoding: `test_server_interruptions.py` (KV-01). A body that stalls:
`test_server_errors.py` (HTTP-09).
"""

import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shared.server import background, graceful_server, header_deadline
from shared.server.generate_format import GenerateFormat
from tests.faults import NEWEST, assert_recovered, open_newest, status_counts, unharmed_neighbours
from tests.helpers import PA, PB, PC, T0_OUTPUTS, wait_until
from tests.server_helpers import Served, open_server, read_to_end

HEAD = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
FOUR = {"prompt": PA, "max_new_tokens": 4, "ignore_eos": True}


# -- hanging up ---------------------------------------------------------------------------------------


WHOLE_HEAD = HEAD + b"Content-Length: 100\r\n\r\n"
BEGINNINGS = [b"", b"POST /gen", HEAD, WHOLE_HEAD, WHOLE_HEAD + b'{"prom']  # of a request


def test_a_hang_up_before_the_request_is_whole_is_no_request() -> None:
    with open_newest() as served, unharmed_neighbours(served):
        for sent, is_reset in itertools.product(BEGINNINGS, (False, True)):
            connection = served.connect()
            connection.sendall(sent)
            time.sleep(0.01)
            hang_up(connection, is_reset)
        wait_until(lambda: status_counts(served, 499) == 4, 5)  # those whose headers were there
        assert served.engine.stats().num_requests == 2
        assert served.http.get("/health").status_code == 200


def test_a_connection_that_never_says_what_it_wants_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header_deadline, "HEADER_TIMEOUT_S", 0.3)
    with open_newest() as served, unharmed_neighbours(served):
        silent = [served.connect() for _ in range(4)]
        for connection, sent in zip(silent, (b"", b"POST /gen", HEAD, b"GET /health HTTP/1.1\r\nHost: a\r\n")):
            connection.sendall(sent)
        kept = served.connect()
        kept.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = kept.recv(4096)
        while not answer.endswith(b"}"):
            answer += kept.recv(4096)
        kept.sendall(HEAD)
        assert [read_to_end(connection) for connection in (*silent, kept)] == [b""] * 5
        for connection in (*silent, kept):
            connection.close()


def hang_up(connection: socket.socket, is_reset: bool) -> None:
    if is_reset:  # what a killed client's machine sends, not what a client's close() does
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()


def test_a_hang_up_while_the_prompt_is_encoded_never_reaches_the_engine() -> None:
    with open_newest() as served, unharmed_neighbours(served):
        tokenizer_thread = served.app.state.service.tokenizer
        may_encode, encode = threading.Event(), tokenizer_thread.tokenizer.__call__

        class Slow:
            def __call__(self, text: str) -> Any:
                may_encode.wait(5)
                return encode(text)

        tokenizer_thread.tokenizer = Slow()
        connection = served.send_raw("/generate", FOUR | {"prompt": "abc"})
        time.sleep(0.1)
        connection.close()
        wait_until(lambda: status_counts(served, 499) == 1)
        may_encode.set()
        assert served.generate([5], 1).status_code == 200, "behind it on the tokenizer's thread"
        assert served.engine.stats().prompt_tokens == 2 * len(PA) + 1


def test_a_hang_up_between_the_last_token_and_the_end_is_nobodys_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    hang_up_now: list[Callable[[], None]] = []
    last_pieces = GenerateFormat.last_pieces

    def hang_up_first(self: GenerateFormat, answer: Any) -> Any:
        if hang_up_now:
            hang_up_now.pop()()
        return last_pieces(self, answer)

    monkeypatch.setattr(GenerateFormat, "last_pieces", hang_up_first)
    with open_newest() as served:
        with unharmed_neighbours(served):
            connection = served.connect()
            hang_up_now.append(lambda: hang_up(connection, is_reset=True))
            send(connection, FOUR | {"stream": True})
            wait_until(lambda: not hang_up_now)
        assert_recovered(served)
        assert status_counts(served, 500) == 0


def send(connection: socket.socket, body: dict[str, Any]) -> None:
    content = json.dumps(body).encode()
    connection.sendall(HEAD + f"Content-Length: {len(content)}\r\n\r\n".encode() + content)


# -- not reading --------------------------------------------------------------------------------------

NUM_TOKENS, N = 150, 4


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel keeps next to nothing of an answer, where it would keep megabytes."""

    def bind(host: str, port: int) -> socket.socket:
        listener = graceful_server.bind(host, port)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
        return listener

    monkeypatch.setattr(background, "bind", bind)


@contextmanager
def stalled_client(served: Served) -> Iterator[socket.socket]:
    """Asks for half a megabyte, has room for next to nothing, and reads nothing."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(("127.0.0.1", int(served.url.rpartition(":")[2])))
        many = {"max_new_tokens": NUM_TOKENS, "n": N, "temperature": 1.0, "logprobs": 20, "stream": True}
        send(connection, FOUR | many)
        wait_until(lambda: served.engine.stats().num_running == N)
        yield connection


def still_open(served: Served) -> list[Any]:
    return list(served.app.state.service._open)


@pytest.mark.usefixtures("small_buffers")
def test_a_client_that_stops_reading_holds_up_nobody_and_holds_no_blocks() -> None:
    with open_server(NEWEST, max_batch_size=16) as served:
        with stalled_client(served):
            for prompt, tokens in ((PB, T0_OUTPUTS["PB"]), (PC, T0_OUTPUTS["PC"])):
                assert served.generate(prompt, 24).json()["token_ids"] == tokens
            wait_until(lambda: served.engine.stats().num_requests == 0, 20)
            assert served.engine.stats().kv_blocks_used == 0, "the engine has done its part"
            (generation,) = still_open(served)
            assert 0 < generation._arrived.qsize() <= N * NUM_TOKENS, "what waits for it is what it asked for"
            served.assert_alive()
        wait_until(lambda: not still_open(served))
        assert_recovered(served)


@pytest.mark.usefixtures("small_buffers")
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such timeout")
def test_a_client_that_reads_nothing_for_too_long_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graceful_server, "UNREAD_TIMEOUT_S", 0.5)
    with open_server(NEWEST, max_batch_size=16) as served, stalled_client(served):
        wait_until(lambda: not still_open(served), 10)
        assert_recovered(served)
