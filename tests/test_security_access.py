"""Keys that are hard to compare, requests that a browser sends for somebody else, limits, and forged log lines.

What every route does with and without a key, Host and Origin are in test_server_access.py, the page's policy in
test_live_page.py, what a page shows of a request's text in test_browser.py, bodies that are too large or too late in
test_server_errors.py, a queue that is full in test_live_page.py and test_server_interruptions.py.
"""

import ast
import asyncio
import inspect
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from shared.errors import InvalidConfig
from shared.registry import newest_phase
from shared.request import MAX_LOGIT_BIAS, MAX_N, MAX_STOP_STRING_CHARS, MAX_STOP_STRINGS, MAX_STOP_TOKEN_IDS
from shared.server import guard
from shared.server.guard import Guard
from shared.server.log_lines import LineFormatter, log_to_stderr
from shared.server.request_log import RequestRecord
from shared.server.settings import ServerSettings
from tests.helpers import PA, wait_until
from tests.server_helpers import Served, assert_error, open_server, read_to_end

EVENTS = {"Accept": "text/event-stream"}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with open_server(newest_phase(), limits={"max_sequences": 2 * MAX_N}) as served:
        yield served


def status_for(settings: ServerSettings, headers: dict[str, str | bytes], path: str = "/v1/models") -> int:
    """What the guard alone makes of a request that arrived on 127.0.0.1:8001."""
    sent: list[Any] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    values = {"Host": "127.0.0.1:8001", **headers}
    raw = [(name.lower().encode(), v.encode() if isinstance(v, str) else v) for name, v in values.items()]
    scope = {"type": "http", "path": path, "headers": raw, "server": ("127.0.0.1", 8001), "method": "GET"}
    scope["state"] = {"record": RequestRecord("x", path, "127.0.0.1")}
    asyncio.run(Guard(app, settings)(scope, None, send))  # type: ignore[arg-type]
    return sent[0]["status"]


# -- the key --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["voil\u00e0", "na\u00efve \u0105", "\u043a\u043b\u044e\u0447", "\u2603", "a b", "x" * 4000]
)
def test_a_key_of_any_language_opens_and_nothing_near_it_does(key: str) -> None:
    """The last byte of the first two, taken for a character of its own, would be a space."""
    settings = ServerSettings(api_key=key)
    assert status_for(settings, {"Authorization": f"Bearer {key}"}) == 200
    assert status_for(settings, {"Authorization": f"bearer   {key} \t"}) == 200
    raw = key.encode()
    for wrong in (raw[:-1], raw + b"x", raw + b"\x00", raw.swapcase() + b" x", b"", key.encode("utf-16"), b"\xff"):
        assert status_for(settings, {"Authorization": b"Bearer " + wrong}) == 401


@pytest.mark.parametrize("key", ["", " ", " x", "x\n", "x\r\ny", "\u00a0x", "\udcff"])
def test_a_key_that_no_header_carries_is_refused_at_the_start(key: str) -> None:
    with pytest.raises(InvalidConfig, match="api_key"):
        ServerSettings(api_key=key)


def test_the_key_is_compared_in_constant_time_and_by_nothing_else() -> None:
    tree = ast.parse(inspect.getsource(guard))
    called = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert [call for call in called if ast.unparse(call) == "hmac.compare_digest(given, wanted)"]
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and not isinstance(node.ops[0], ast.Is | ast.IsNot):
            names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
            assert not names & {"given", "wanted", "key", "authorization"}, ast.unparse(node)


# -- requests that a page of another site makes a browser send ------------------------------------------


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize(
    ("mode", "destination"), [("no-cors", "empty"), ("no-cors", "script"), ("no-cors", "image"), ("navigate", "iframe")]
)
def test_what_a_page_from_elsewhere_loads_or_frames_is_refused_even_without_an_origin(
    site: str, mode: str, destination: str
) -> None:
    """Another port of this machine is the same site."""
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": destination}
    for path in ("/", "/metrics", "/docs", "/events", "/page/main.js", "/health"):
        assert status_for(ServerSettings(), headers, path) == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},
        {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Origin": "https://models.example.org"},
        {},
    ],
    ids=["its own page", "typed in", "a link that is followed", "a page that is allowed", "no browser"],
)
def test_whoever_means_to_come_is_let_in(headers: dict[str, str]) -> None:
    assert status_for(ServerSettings(allowed_hosts=["models.example.org"]), headers, "/") == 200


def test_a_script_of_another_site_cannot_take_a_watchers_place(served: Served) -> None:
    """It may ask for this type, and without reading the answer it needs nobody's leave."""
    headers = EVENTS | {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "empty"}
    assert_error(served.http.get("/events", headers=headers), 403, code="origin_not_allowed")
    assert not served.app.state.service.live.is_watched


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions", "/live/pace", "/health"])
def test_a_preflight_is_refused_and_nobody_is_given_leave(served: Served, path: str) -> None:
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    response = served.http.options(path, headers=asked | {"Access-Control-Request-Headers": "content-type"})
    assert_error(response, 403, code="origin_not_allowed")
    assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions", "/live/send", "/live/pace"])
def test_a_body_of_a_type_that_needs_no_preflight_is_never_taken_for_json(
    served: Served, path: str, kind: str | None
) -> None:
    content = b'{"prompt": "a", "messages": [{"role": "user", "content": "a"}], "watcher": "x", "action": "step"}'
    response = served.http.post(path, content=content, headers={} if kind is None else {"content-type": kind})
    assert "content-type: application/json" in assert_error(response, 400)


# -- limits ---------------------------------------------------------------------------------------------

AT_THE_LIMIT: dict[str, tuple[Any, Any]] = {  # field -> the most there may be, and one more
    "n": (MAX_N, MAX_N + 1),
    "stop": (["a" * MAX_STOP_STRING_CHARS] * MAX_STOP_STRINGS, ["a"] * (MAX_STOP_STRINGS + 1)),
    "stop_token_ids": ([5] * MAX_STOP_TOKEN_IDS, [5] * (MAX_STOP_TOKEN_IDS + 1)),
    "logprobs": (20, 21),
    "cache_salt": ("x" * 256, "x" * 257),
}


@pytest.mark.parametrize("field", AT_THE_LIMIT)
def test_the_most_that_a_field_may_hold_is_served_and_one_more_is_refused(served: Served, field: str) -> None:
    most, more = AT_THE_LIMIT[field]
    assert served.post("/generate", {"prompt": PA, "max_tokens": 2, field: most}).status_code == 200
    assert_error(served.post("/generate", {"prompt": PA, "max_tokens": 2, field: more}), 400, field)


def test_so_many_biases_and_no_more(served: Served) -> None:
    """Counted before they are looked at: no vocabulary is needed to see that they are too many."""
    body = {"prompt": PA, "max_tokens": 2, "logit_bias": {str(token_id): 1 for token_id in range(97)}}
    assert served.post("/generate", body).status_code == 200
    body["logit_bias"] = {str(token_id): 1 for token_id in range(MAX_LOGIT_BIAS + 1)}
    assert "at most 1024" in assert_error(served.post("/generate", body), 400, "logit_bias")


def test_a_stop_string_of_one_more_character_is_refused(served: Served) -> None:
    body = {"prompt": PA, "stop": "a" * (MAX_STOP_STRING_CHARS + 1)}
    assert_error(served.post("/generate", body), 400, "stop")


def test_several_prompts_count_times_their_choices(served: Served) -> None:
    body = {"prompt": [PA] * 3, "n": MAX_N, "max_tokens": 1}
    assert "192 completions; one request may ask for 128" in assert_error(
        served.post("/v1/completions", body), 400, "prompt"
    )


def test_a_field_that_a_client_made_up_comes_back_short(served: Served) -> None:
    response = served.post("/generate", {"prompt": PA, "x" * 500_000: 1})
    assert_error(response, 400)
    assert len(response.content) < 1000


def test_headers_that_never_end_are_cut_off(served: Served) -> None:
    """uvicorn's h11: 64 KiB for a request's head."""
    with served.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70_000)
        assert read_to_end(connection).startswith(b"HTTP/1.1 400")
    served.assert_alive()


def test_a_body_that_no_route_reads_is_not_waited_for(served: Served) -> None:
    for method in (b"PUT", b"DELETE", b"GET"):
        with served.connect() as connection:
            head = b" /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 999999999\r\n\r\n"
            connection.sendall(method + head)
            answer = connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200" if method == b"GET" else b"HTTP/1.1 405")
    served.assert_alive()


def test_connections_that_say_nothing_hold_up_neither_others_nor_the_servers_end() -> None:
    """Their number is not bounded here: SECURITY.md says what to put in front."""
    with open_server(newest_phase()) as served:
        idle = [served.connect() for _ in range(60)]
        for connection in idle[:40]:
            connection.sendall(b"POST /generate HTTP/1.1\r\nHost: local")
        assert served.engine.stats().num_requests == 0
        served.assert_alive()
    for connection in idle:
        connection.settimeout(5)
        assert connection.recv(1) == b"", "closed by the server"
        connection.close()


# -- the log --------------------------------------------------------------------------------------------


def test_no_header_and_no_path_writes_a_line_or_to_the_terminal(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pageserve.requests")
    forged = {
        "X-Request-Id": 'x"}{"status":200',
        "X-Forwarded-For": 'evil"}\u009b2J{' + "y" * 5000,
        "User-Agent": "\u202e",
    }
    headers = {name: value.encode() for name, value in forged.items()}
    served.http.post("/generate%0a%1b%5b2J%e2%80%ae" + "z" * 5000, json={}, headers=headers)
    wait_until(lambda: bool(caplog.records))
    (record,) = caplog.records
    line = record.getMessage()
    assert line.isascii()
    assert line.isprintable()
    assert len(line) < 1000
    entry = json.loads(line)
    assert entry["route"].startswith("/generate\n\x1b[2J\u202ez")
    assert entry["status"] == 404


def test_an_exceptions_text_cannot_pass_for_a_line_of_the_log() -> None:
    try:
        raise ValueError('no\n{"status": 200}\r\x1b[31mred\u202e')
    except ValueError as error:
        record = logging.LogRecord("x", logging.ERROR, "x", 1, "a\nb %s", ("\x1b",), (type(error), error, None))
    first, *more = LineFormatter("%(message)s").format(record).split("\n")
    assert first == "a"
    assert more == ["    b \\x1b", "    ValueError: no", '    {"status": 200}\\r\\x1b[31mred\\u202e']


def test_serve_logs_that_way(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    log_to_stderr()
    logging.getLogger("pageserve.requests").error("a\n\x1bb")
    assert capsys.readouterr().err == "a\n    \\x1bb\n"
