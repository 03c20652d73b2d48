"""Who may talk to the server, and what it writes down about it: key, Host, Origin, request lines."""

import json
import logging
import math
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.errors import InvalidConfig
from shared.registry import newest_phase
from shared.server import create_app
from shared.server.settings import ServerSettings
from tests.helpers import PA, letter_tokenizer, open_engine, wait_until
from tests.server_helpers import MODEL, Served, assert_error, open_server

KEY = "sesame \N{LATIN SMALL LETTER E WITH ACUTE}"


@pytest.fixture(scope="module")
def open_to_all() -> Iterator[Served]:
    with open_server(newest_phase(), limits={"allowed_hosts": ["models.example.org"]}) as served:
        yield served


@pytest.fixture(scope="module")
def locked() -> Iterator[Served]:
    with open_server(newest_phase(), limits={"api_key": KEY, "live_page": False}) as served:
        yield served


@pytest.mark.parametrize("path", ["/", "/v1/models", "/metrics", "/metrics/summary", "/docs", "/openapi.json", "/x"])
def test_every_route_but_health_wants_the_key(locked: Served, path: str) -> None:
    response = locked.http.get(path)
    assert_error(response, 401, code="invalid_api_key")
    assert response.headers["www-authenticate"] == "Bearer"
    right = locked.http.get(path, headers={"Authorization": f"Bearer {KEY}".encode()})
    assert right.status_code == (404 if path == "/x" else 200)


def test_health_needs_no_key(locked: Served) -> None:
    assert locked.http.get("/health").status_code == 200
    assert_error(locked.http.get("/health/"), 401)


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", f"Basic {KEY}", KEY, f"Bearer {KEY}x", "Bearer \xff"])
def test_a_wrong_key_generates_nothing(locked: Served, header: str) -> None:
    headers = {"Authorization": header.encode("latin-1" if "\xff" in header else "utf-8")}
    assert_error(locked.post("/generate", {"prompt": PA}, headers=headers), 401)
    assert locked.engine.stats().prompt_tokens == 0


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:8001", "[::1]:8001", "MODELS.example.org:80"])
def test_a_known_name_or_an_address_is_answered(open_to_all: Served, host: str) -> None:
    assert open_to_all.http.get("/v1/models", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:8001", "127.0.0.1.evil.example", "[evil]"])
def test_a_name_that_was_rebound_to_this_machine_is_refused(open_to_all: Served, host: str) -> None:
    message = assert_error(open_to_all.http.get("/v1/models", headers={"Host": host}), 403, code="host_not_allowed")
    assert "--allowed-host" in message


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost", "x", "//"]
)
def test_a_page_from_elsewhere_cannot_post(open_to_all: Served, origin: str) -> None:
    response = open_to_all.post("/generate", {"prompt": PA}, headers={"Origin": origin})
    assert_error(response, 403, code="origin_not_allowed")
    assert open_to_all.engine.stats().prompt_tokens == 0


def test_a_form_on_a_page_from_elsewhere_is_refused_even_without_an_origin(open_to_all: Served) -> None:
    content = json.dumps({"prompt": PA})
    response = open_to_all.http.post("/generate", content=content, headers={"content-type": "text/plain"})
    assert_error(response, 400)


def test_the_servers_own_pages_may_post(open_to_all: Served) -> None:
    for origin in (open_to_all.url, "https://models.example.org"):
        response = open_to_all.post("/generate", {"prompt": PA, "max_tokens": 1}, headers={"Origin": origin})
        assert response.status_code == 200


def test_the_app_can_be_called_without_a_socket() -> None:
    with open_engine(newest_phase(), tokenizer=letter_tokenizer(vocab_size=97)) as engine:
        app = create_app(engine, letter_tokenizer(vocab_size=97), MODEL)
        assert TestClient(app).post("/generate", json={"prompt": PA, "max_tokens": 2}).status_code == 200
        with TestClient(app) as client:
            assert client.post("/generate", json={"prompt": PA, "max_tokens": 2}).status_code == 200
            assert client.get("/health").json() == {"status": "ok", "model": MODEL}


@pytest.mark.parametrize(
    "limit",
    [
        *[{"max_body_bytes": 0}, {"body_timeout_s": -1}, {"window": 0}, {"api_key": " "}, {"api_key": ""}],
        *[{"max_body_bytes": 1.5}, {"max_sequences": "5"}, {"default_chat_tokens": None}, {"window": math.inf}],
        *[{"window": True}, {"slo_ttft_s": -1}, {"slo_tpot_s": math.nan}, {"stuck_step_s": "1"}, {"api_key": 5}],
        *[{"live_page": "off"}, {"allowed_hosts": [5]}],
    ],
    ids=str,
)
def test_a_limit_that_makes_no_sense_is_refused_by_name(limit: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=next(iter(limit))):
        ServerSettings(**limit)


@pytest.mark.parametrize(
    "name",
    [
        "a.example:8001",
        "https://a.example",
        "a.example/",
        "*.a.example",
        "",
        " a.example",
        "[::1]:80",
        "b\u00fc.example",
    ],
)
def test_a_name_that_no_host_header_can_match_is_refused_at_the_start(name: str) -> None:
    for names in (["a.example", name], name):
        with pytest.raises(InvalidConfig, match="allowed_hosts: must be a list of bare names"):
            ServerSettings(allowed_hosts=names)


def test_names_without_ports_are_taken() -> None:
    ServerSettings(allowed_hosts=["models.example.org", "MODELS", "my_host-2.internal.", "10.0.0.1", "*"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_whose_name_is_no_utf_8_is_served_under_one_that_is(stream: bool) -> None:
    with open_engine(newest_phase(), tokenizer=letter_tokenizer(vocab_size=97)) as engine:
        client = TestClient(create_app(engine, letter_tokenizer(vocab_size=97), "caf\udce9"))
        (model,) = client.get("/v1/models").json()["data"]
        body = {"model": model["id"], "prompt": PA, "max_tokens": 2, "stream": stream}
        answer = client.post("/v1/completions", json=body)
        assert (answer.status_code, model["id"]) == (200, "caf?")
        assert '"finish_reason":"length"' in answer.text


def test_the_key_is_not_shown_by_accident() -> None:
    assert KEY not in repr(ServerSettings(api_key=KEY))


# -- request lines ------------------------------------------------------------------------------------


def lines(caplog: pytest.LogCaptureFixture, num_lines: int) -> list[dict[str, Any]]:
    """A line is written once the answer is out."""

    def written() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "pageserve.requests"]

    wait_until(lambda: len(written()) == num_lines)
    messages = written()
    assert not any("\n" in message for message in messages)
    return [json.loads(message) for message in messages]


def test_a_request_is_one_line(open_to_all: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pageserve.requests")
    answer = open_to_all.generate(PA, 3).json()
    open_to_all.events("/v1/completions", {"prompt": PA, "max_tokens": 2, "ignore_eos": True, "n": 2})
    plain, streamed = lines(caplog, 2)
    assert plain["answer_id"] == answer["id"]
    assert (plain["status"], plain["route"], plain["client"]) == (200, "/generate", "127.0.0.1")
    assert (plain["prompt_tokens"], plain["completion_tokens"], plain["reason"]) == (8, 3, "length")
    assert plain["total_ms"] > plain["ttft_ms"] > plain["queue_ms"] >= 0
    assert (streamed["completion_tokens"], streamed["reason"]) == (4, "length,length")


def test_a_refusal_is_one_line_and_nothing_a_client_sends_starts_another(
    open_to_all: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pageserve.requests")
    open_to_all.post("/v1/completions", {"prompt": "a", "model": 'x\n{"status": 200}\r\n'})
    open_to_all.post("/generate", {"prompt": PA, "temperature": "\n"}, headers={"X-Request-Id": "a b\u00e9".encode()})
    unknown_model, wrong_type = lines(caplog, 2)
    assert (unknown_model["status"], unknown_model["reason"]) == (404, "model_not_found")
    assert wrong_type["status"] == 400
    assert wrong_type["request_id"].startswith("req-"), "an id that fits no header is replaced"


def test_a_mistake_of_the_server_is_a_500_without_its_details(
    open_to_all: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise KeyError("secret")

    monkeypatch.setattr(open_to_all.app.state.service.metrics, "summary", fail)
    response = open_to_all.http.get("/metrics/summary")
    assert "secret" not in assert_error(response, 500)
    assert "x-request-id" in response.headers
    assert "secret" in caplog.text


def test_a_tokenizer_that_raises_is_a_500_and_harms_nobody_else(
    open_to_all: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("secret")

    monkeypatch.setattr(open_to_all.app.state.service.tokenizer, "tokenizer", fail)
    assert "secret" not in assert_error(open_to_all.generate("abc", 1), 500)
    monkeypatch.undo()
    assert open_to_all.http.get("/health").status_code == 200
    open_to_all.assert_alive()
