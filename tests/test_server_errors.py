"""What clients do wrong, and what they get for it. HTTP-01 to 03, 08 and 09, CON-01."""

import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from shared.registry import newest_phase
from tests.helpers import PA, PB, T0_OUTPUTS, letter_tokenizer, wait_until
from tests.server_helpers import (
    Served,
    assert_error,
    both_ids,
    both_kinds,
    chatting,
    open_server,
    read_to_end,
    watched_health,
)

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module", params=both_kinds, ids=both_ids)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with open_server(request.param, tokenizer=chatting(letter_tokenizer(vocab_size=97))) as served:
        yield served


def stream_beside(served: Served, max_tokens: int = 60) -> "list[list[int]]":
    """A stream in the background; its tokens are the last element once it is over."""
    result: list[list[int]] = []

    def run() -> None:
        events = served.events("/generate", {"prompt": PA, "max_new_tokens": max_tokens, "ignore_eos": True})
        result.append([token for event in events[:-1] for token in event["token_ids"]])

    threading.Thread(target=run).start()
    wait_until(lambda: served.engine.stats().num_running == 1)
    return result


def test_http_01_an_empty_prompt_is_refused(served: Served) -> None:
    beside = stream_beside(served)
    for prompt in ("", [""], [], ["", "abc"], [[]]):
        assert_error(served.post(COMPLETIONS, {"prompt": prompt}), 400, "prompt")
    assert_error(served.generate("", 4), 400, "prompt")
    assert_error(served.post(CHAT, {"messages": []}), 400, "messages")
    assert_error(served.post(CHAT, {"messages": [{"role": "user", "content": ""}]}), 400, "messages")
    wait_until(lambda: bool(beside), 10)
    assert beside[0][:24] == T0_OUTPUTS["PA"]
    served.assert_alive()


def test_http_01_an_empty_message_is_served_where_the_template_gives_tokens() -> None:
    tokenizer = chatting(letter_tokenizer(vocab_size=97), "a{% for m in messages %}{{ m['content'] }}{% endfor %}")
    with open_server(newest_phase(), tokenizer=tokenizer) as served:
        answer = served.post(CHAT, {"messages": [{"role": "user", "content": ""}], "max_tokens": 1})
        assert answer.json()["usage"]["prompt_tokens"] == 1


@pytest.mark.parametrize("route", [COMPLETIONS, "/generate"])
def test_http_02_odd_max_tokens(served: Served, route: str) -> None:
    def answer(max_tokens: Any) -> Any:
        return served.post(route, {"prompt": PA, "ignore_eos": True, "max_tokens": max_tokens})

    assert answer(None).json()["usage"]["completion_tokens"] == 16
    assert served.post(route, {"prompt": PA, "ignore_eos": True}).json()["usage"]["completion_tokens"] == 16
    for wrong in (0, -1, 1.5, "10", True):
        assert_error(answer(wrong), 400, "max_tokens")
    served.assert_alive()


def test_http_02_a_huge_max_tokens_ends_at_the_models_length() -> None:
    with open_server(newest_phase(), max_model_len=40) as served:
        for huge in (1_000_000_000, 9_223_372_036_854_775_808):
            answer = served.post(COMPLETIONS, {"prompt": PA, "ignore_eos": True, "max_tokens": huge}).json()
            assert answer["usage"]["completion_tokens"] == 32
            assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(("route", "field"), [(COMPLETIONS, "prompt"), (CHAT, "messages")])
def test_http_03_every_error_has_openais_shape(served: Served, route: str, field: str) -> None:
    good: Any = "abc" if field == "prompt" else [{"role": "user", "content": "abc"}]
    too_long: Any = "a" * 600 if field == "prompt" else [{"role": "user", "content": "a" * 600}]
    assert_error(served.post(route, {field: good, "temperature": -1}), 400, "temperature")
    assert_error(served.post(route, {field: good, "temperature": "hot"}), 400, "temperature")
    assert_error(served.post(route, {}), 400, field)
    assert "600 tokens" in assert_error(served.post(route, {field: too_long}), 400, field)
    assert "JSON" in assert_error(served.http.post(route, content='{"prompt', headers=JSON), 400)
    assert_error(served.http.get("/v1/nothing"), 404, code="not_found")
    response = served.http.get(route)
    assert_error(response, 405)
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b'"a"', b"\xff\xfe", b"[" * 100_000, b'{"prompt": 1e999}', b'{"n": 1' + b"0" * 5000 + b"}"],
    ids=["nothing", "list", "null", "text", "no utf-8", "deep", "infinite", "long number"],
)
def test_a_body_that_is_no_object_is_refused(served: Served, body: bytes) -> None:
    for route in (COMPLETIONS, CHAT, "/generate"):
        assert_error(served.http.post(route, content=body, headers=JSON), 400)


def test_a_body_that_does_not_say_that_it_is_json_is_refused(served: Served) -> None:
    response = served.http.post(COMPLETIONS, content=b'{"prompt": "a"}', headers={"content-type": "text/plain"})
    assert "content-type" in assert_error(response, 400)


CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
BAD_CHUNK = CHUNKED + b"zz\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n{}",
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a\0b\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\n" + BAD_CHUNK,
        b"POST /generate HTTP/1.1\r\nHost: evil.example\r\n" + BAD_CHUNK,
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70_000,
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n" + CHUNKED + b"0\r\n\r\n",
    ],
    ids=[
        "TLS",
        "no host",
        "two hosts",
        "length",
        "NUL",
        "chunk",
        "a chunk that is refused anyway",
        "endless head",
        "two lengths",
    ],
)
def test_what_is_no_http_is_told_so_once_and_in_the_same_shape(
    served: Served, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    with served.connect() as connection:
        connection.sendall(sent)
        head, _, body = read_to_end(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert b"content-type: application/json" in head
    assert json.loads(body)["error"]["code"] == "invalid_http"
    served.assert_alive()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR], "no mistake of ours"


def test_what_a_client_sent_may_stand_in_the_message(served: Served) -> None:
    body = b'{"prompt": "a", "model": "\\ud800 \\u0000 ' + b"x" * 9000 + b'"}'
    assert len(assert_error(served.http.post(COMPLETIONS, content=body, headers=JSON), 404)) < 600


def test_http_08_ids_outside_the_vocabulary_do_not_reach_the_model(served: Served) -> None:
    beside = stream_beside(served)
    for prompt in ([97], [-1], [200_000], [5.5], [True], [[5, 17], [98]], [10**30], [[[5]]], [["5"]], {}, 5):
        assert_error(served.post(COMPLETIONS, {"prompt": prompt}), 400, "prompt")
    for prompt in (["a", 5], [5, "a"], [[5], "a", 7], ["a", [5]], [[5], "a"], [5, [5]], ["a", None]):
        assert "one kind" in assert_error(served.post(COMPLETIONS, {"prompt": prompt}), 400, "prompt")
    assert_error(served.post(COMPLETIONS, {"prompt": PA, "stop_token_ids": [97]}), 400, "stop_token_ids")
    assert_error(served.post(COMPLETIONS, {"prompt": PA, "logit_bias": {"97": 1}}), 400, "logit_bias")
    for name in ("x", "1_0", " 10", "10.0", "+10", "010", "1e1", "\u0661", "9" * 5000, ""):
        assert_error(served.post(COMPLETIONS, {"prompt": PA, "logit_bias": {name: 1}}), 400, "logit_bias")
    assert served.post(COMPLETIONS, {"prompt": [96], "max_tokens": 1}).status_code == 200
    wait_until(lambda: bool(beside), 10)
    assert beside[0][:24] == T0_OUTPUTS["PA"]
    served.assert_alive()


def test_kv_02_an_n_that_is_no_count_is_refused(served: Served) -> None:
    for n in (0, -1, 65):
        assert_error(served.post(COMPLETIONS, {"prompt": PA, "n": n}), 400, "n")


def test_con_01_two_requests_with_one_id_are_both_served(served: Served) -> None:
    def tokens(prompt: list[int]) -> tuple[list[int], str]:
        body = {"prompt": prompt, "max_new_tokens": 24, "ignore_eos": True}
        response = served.post("/generate", body, headers={"X-Request-Id": "x"})
        return response.json()["token_ids"], response.headers["x-request-id"]

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(tokens, (PA, PB)))
    assert answers == [(T0_OUTPUTS["PA"], "x"), (T0_OUTPUTS["PB"], "x")]
    assert tokens(PA) == (T0_OUTPUTS["PA"], "x")
    served.assert_alive()


# -- HTTP-09: huge bodies and lying lengths -----------------------------------------------------------


def test_http_09_a_huge_body_is_refused_whatever_its_length_says(served: Served) -> None:
    huge = b'{"prompt": "' + b"a" * (8 << 20) + b'"}'
    with watched_health(served):
        assert_error(served.http.post(COMPLETIONS, content=huge, headers=JSON), 413, code="body_too_large")
        parts = (huge[start : start + 65536] for start in range(0, len(huge), 65536))
        assert_error(served.http.post(COMPLETIONS, content=parts, headers=JSON), 413, code="body_too_large")
        valid = {"prompt": [1] * 300_000}
        assert "300000 tokens" in assert_error(served.post(COMPLETIONS, valid), 400, "prompt")
    served.assert_alive()


def test_http_09_a_body_that_stalls_is_dropped() -> None:
    with open_server(newest_phase(), limits={"body_timeout_s": 0.3}) as served, served.connect() as connection:
        connection.sendall(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n" + b'{"prompt":')
        assert served.http.get("/health").status_code == 200
        assert served.engine.stats().num_requests == 0
        answer = read_to_end(connection)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b'"code":"body_timeout"' in answer
