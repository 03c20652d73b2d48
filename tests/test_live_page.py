"""The live page's server side: who may watch, what is shown to whom, pausing, and that nobody stalls the engine."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from shared.cli import build_parser
from shared.cli_serve import server_limits
from shared.errors import InvalidConfig
from shared.pace import Pace
from shared.registry import newest_phase, phase_by_number
from shared.server.factory import limits_from_env
from shared.server.live_feed import MAX_WATCHERS, LiveFeed, Watcher
from shared.server.page_access import page_is_on
from shared.server.page_routes import FOLDER, page_files
from shared.server.settings import ServerSettings
from shared.trace.replay import replay_app
from tests.helpers import PA, T0_OUTPUTS, greedy, open_engine, wait_until
from tests.server_helpers import Served, assert_error, both_ids, both_kinds, open_server

KEY = "sesame"
EVENTS = {"Accept": "text/event-stream"}
HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@dataclass
class Watching:
    """A page's stream, read on a thread of its own."""

    served: Served
    records: list[dict[str, Any]] = field(default_factory=list)
    is_over: bool = False

    @property
    def watcher_id(self) -> str:
        return self.of_kind("start")[0]["watcher"]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in list(self.records) if record["kind"] == kind]

    def wait_for(self, kind: str, count: int = 1, seconds: float = 5.0) -> list[dict[str, Any]]:
        wait_until(lambda: len(self.of_kind(kind)) >= count, seconds)
        return self.of_kind(kind)

    def send(self, prompt: str, max_tokens: int = 8, **fields: Any) -> httpx.Response:
        body = {"watcher": self.watcher_id, "prompt": prompt, "max_tokens": max_tokens, **fields}
        return self.served.post("/live/send", body)

    def pace(self, **fields: Any) -> httpx.Response:
        return self.served.post("/live/pace", {"watcher": self.watcher_id, "action": "set", **fields})

    def step(self) -> None:
        assert self.pace(action="step").status_code == 200

    def read(self, lines: Iterator[str]) -> None:
        with suppress(httpx.HTTPError):
            for line in lines:
                if line.startswith("data: "):
                    self.records += json.loads(line.removeprefix("data: "))
        self.is_over = True


@contextmanager
def watching(served: Served) -> Iterator[Watching]:
    """Watches while the block runs; the connection is closed at its end, as a browser does."""
    client = httpx.Client(base_url=served.url, timeout=10)
    with client.stream("GET", "/events", headers=EVENTS) as response:
        assert response.status_code == 200, response.read()
        seen = Watching(served)
        thread = threading.Thread(target=seen.read, args=(response.iter_lines(),), daemon=True)
        thread.start()
        seen.wait_for("start")
        yield seen
        close_abruptly(response)
    client.close()
    thread.join(5)


def close_abruptly(response: httpx.Response) -> None:
    """From another thread than the one that reads: the socket itself is shut down."""
    response.extensions["network_stream"].get_extra_info("socket").shutdown(2)


@pytest.fixture
def served() -> Iterator[Served]:
    with open_server(newest_phase(), kv_block_size=4, kv_num_blocks=64) as served:
        yield served


@pytest.fixture(params=both_kinds, ids=both_ids)
def of_both_kinds(request: pytest.FixtureRequest) -> Iterator[Served]:
    with open_server(request.param) as served:
        yield served


def feed_of(served: Served) -> LiveFeed:
    return served.app.state.service.live


# -- the page -----------------------------------------------------------------------------------------


def test_a_browser_gets_the_page_and_everybody_else_where_to_go(of_both_kinds: Served) -> None:
    page = of_both_kinds.http.get("/", headers=HTML)
    assert page.headers["content-type"].startswith("text/html")
    assert of_both_kinds.http.get("/").json()["docs"] == "/docs"


def test_the_page_allows_no_script_but_its_own(served: Served) -> None:
    for path in ["/", *(f"/page/{name}" for name in page_files())]:
        response = served.http.get(path, headers=HTML)
        assert response.status_code == 200, path
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"


def test_the_pages_files_have_no_inline_script_nothing_from_outside_and_no_markup_from_text() -> None:
    for path in page_files().values():
        text = path.read_text(encoding="utf-8")
        outside = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text)) - {"http://www.w3.org"}
        assert not outside, path
        found = re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
        assert not found, path
    html = (FOLDER / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\ssrc=)|\sstyle=|\son\w+=|javascript:", html)


@pytest.mark.parametrize("name", ["../app.py", "%2e%2e/app.py", "recordings/../../app.py", "x.js", ""])
def test_only_the_pages_own_files_are_served(served: Served, name: str) -> None:
    assert_error(served.http.get(f"/page/{name}"), 404)


def test_the_replay_server_has_the_recording_and_no_engine(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"kind":"start","version":1}\n')
    client = TestClient(replay_app({"mine.jsonl": path}), base_url="http://127.0.0.1")
    assert client.get("/").headers["content-type"].startswith("text/html")
    assert client.get("/page/recordings/mine.jsonl").text == path.read_text()
    assert client.get("/live/about").status_code == 404
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 403


# -- who may watch ------------------------------------------------------------------------------------


def test_the_page_is_open_and_the_events_want_the_key() -> None:
    with open_server(newest_phase(), limits={"api_key": KEY}) as served:
        assert served.http.get("/", headers=HTML).status_code == 200
        assert served.http.get("/page/main.js").status_code == 200
        for path in ("/events", "/live/about"):
            assert_error(served.http.get(path, headers=EVENTS), 401)
        assert_error(served.post("/live/pace", {"watcher": "x", "action": "step"}), 401)
        key = {"Authorization": f"Bearer {KEY}"}
        assert served.http.get("/live/about", headers=key).json()["can_send"]
        with served.http.stream("GET", "/events", headers=EVENTS | key) as response:
            assert response.status_code == 200


def test_with_the_page_off_nothing_of_it_is_there_and_the_key_is_wanted_again() -> None:
    with open_server(newest_phase(), limits={"live_page": False, "api_key": KEY}) as served:
        assert_error(served.http.get("/", headers=HTML), 401)
        key = {"Authorization": f"Bearer {KEY}"}
        assert "docs" in served.http.get("/", headers=HTML | key).json()
        for path in ("/events", "/page/main.js", "/live/about"):
            assert_error(served.http.get(path, headers=EVENTS | key), 404, code="page_off")


@pytest.mark.parametrize(
    ("setting", "address", "headers", "is_on"),
    [
        (None, "127.0.0.1", [], True),
        (None, "::1", [], True),
        (None, "192.0.2.7", [], False),
        (None, "0.0.0.0", [], False),
        (None, "localhost.evil.example", [], False),
        *[
            (None, "127.0.0.1", [(name, b"x")], False)
            for name in (
                b"x-forwarded-for",
                b"x-forwarded-host",
                b"x-forwarded-proto",
                b"forwarded",
                b"via",
                b"x-real-ip",
            )
        ],
        (True, "192.0.2.7", [], True),
        (False, "127.0.0.1", [], False),
    ],
)
def test_the_page_is_for_this_machine_unless_somebody_asks(
    setting: bool | None, address: str, headers: list[Any], is_on: bool
) -> None:
    scope = {"type": "http", "server": (address, 8001), "headers": headers}
    assert page_is_on(ServerSettings(live_page=setting), scope) == is_on


@pytest.mark.parametrize(
    ("options", "live_page"),
    [
        ([], None),
        (["--host", "0.0.0.0"], False),
        (["--host", "::"], False),
        (["--host", "0.0.0.0", "--live-page"], True),
        (["--no-live-page"], False),
    ],
)
def test_serve_turns_the_page_off_beyond_loopback(options: list[str], live_page: bool | None) -> None:
    args = build_parser(newest_phase()).parse_args(["serve", *options])
    assert server_limits(args).get("live_page") == live_page


def test_the_environment_can_say_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGESERVE_LIVE_PAGE", "1")
    assert limits_from_env()["live_page"] is True
    monkeypatch.setenv("PAGESERVE_LIVE_PAGE", "maybe")
    with pytest.raises(InvalidConfig, match="PAGESERVE_LIVE_PAGE"):
        limits_from_env()


def test_a_page_of_another_site_can_neither_watch_nor_take_a_place(served: Served) -> None:
    evil = {"Origin": "https://evil.example"}
    assert_error(served.http.get("/events", headers=EVENTS | evil), 403)
    assert_error(served.http.get("/events", headers={"Accept": "image/avif,image/*,*/*;q=0.8"}), 406)
    assert not feed_of(served).is_watched


def test_so_many_may_watch_and_a_place_that_is_left_is_free_again(served: Served) -> None:
    with ExitStack() as stack:
        for _ in range(MAX_WATCHERS):
            stack.enter_context(watching(served))
        response = served.http.get("/events", headers=EVENTS)
        assert_error(response, 503, code="too_many_watchers")
        assert int(response.headers["retry-after"]) >= 1
    wait_until(lambda: not feed_of(served).is_watched, 5)
    with watching(served):
        pass


# -- what is shown ------------------------------------------------------------------------------------


def test_what_a_client_sends_is_seen_without_its_text(of_both_kinds: Served) -> None:
    with watching(of_both_kinds) as seen:
        answer = of_both_kinds.generate("abcabc", 6).json()
        finished = seen.wait_for("finished")
        assert [record["id"] for record in seen.of_kind("queued")] == [answer["id"]]
        assert finished[0]["tokens"] == 6
        assert sum(row[5] for step in seen.of_kind("step") for row in step["rows"]) == 6
        assert not seen.of_kind("text")
        assert answer["text"] not in json.dumps(seen.records)


def test_a_request_from_the_page_is_shown_to_its_sender_alone(of_both_kinds: Served) -> None:
    with watching(of_both_kinds) as sender, watching(of_both_kinds) as other:
        response = sender.send("abcabc", 6)
        assert response.status_code == 200
        sender.wait_for("finished")
        other.wait_for("finished")
        texts = sender.wait_for("text", 6)
        assert {record["id"] for record in texts} == {response.json()["id"]}
        assert sum(len(record["tokens"]) for record in texts) == 6
        assert not other.of_kind("text")


def test_who_names_no_watcher_can_send_and_pause_nothing(served: Served) -> None:
    body = {"watcher": "x" * 22, "prompt": "abc"}
    assert_error(served.post("/live/send", body), 409, code="no_watcher")
    assert_error(served.post("/live/pace", {"watcher": "x", "action": "set", "is_paused": True}), 409)
    assert_error(served.post("/live/pace", {"watcher": "x", "action": "dance"}), 400)
    assert served.generate(PA, 2).status_code == 200


@pytest.mark.parametrize("fields", [{"seconds_per_step": -1.0}, {"seconds_per_step": 99.0}, {"is_paused": "yes"}])
def test_a_pace_that_makes_no_sense_is_refused(served: Served, fields: dict[str, Any]) -> None:
    with watching(served) as seen:
        assert_error(seen.pace(**fields), 400)


def test_a_page_that_is_closed_takes_its_requests_along(served: Served) -> None:
    with watching(served) as seen:
        seen.pace(seconds_per_step=0.05)
        seen.send("abcabc", 200)
        seen.wait_for("text")
    wait_until(lambda: served.engine.stats().num_requests == 0, 5)
    assert served.engine.stats().requests_finished["abort"] == 1


def test_the_first_record_has_the_state_that_there_is(served: Served) -> None:
    with watching(served) as first:
        first.pace(is_paused=True)
        first.send("abcabc", 4)
        first.wait_for("queued")
        with watching(served) as second:
            start = second.of_kind("start")[0]
            assert start["pace"] == {"is_paused": True, "seconds_per_step": 0.0}
            assert [request["id"] for request in start["requests"]] == [first.of_kind("queued")[0]["id"]]
            assert start["engine"]["num_blocks"] == 64


# -- errors are seen as such ----------------------------------------------------------------------------


def test_a_full_queue_is_a_503() -> None:
    with open_server(newest_phase(), queue_capacity=1) as served, watching(served) as seen:
        seen.pace(is_paused=True)
        assert seen.send("abc").status_code == 200
        assert_error(seen.send("bcd"), 503, code="queue_full")
        refused = seen.wait_for("finished")[0]
        assert refused["reason"] == "refused"


def test_who_waits_too_long_gets_a_504() -> None:
    with open_server(newest_phase(), queue_timeout_s=0.05) as served, watching(served) as seen:
        seen.pace(is_paused=True)
        request_id = seen.send("abc").json()["id"]
        time.sleep(0.1)
        seen.pace(is_paused=False)
        error = seen.wait_for("error")[0]
        assert (error["id"], error["status"], error["code"]) == (request_id, 504, "queue_timeout")


def test_what_cannot_be_served_is_a_400(served: Served) -> None:
    with watching(served) as seen:
        assert_error(seen.send("abc", 0), 400, param="max_tokens")
        assert_error(seen.send("", 4), 400, param="prompt")


# -- pause, step, slow motion -------------------------------------------------------------------------


def test_a_paused_engine_runs_a_step_when_it_is_told_to_and_the_rest_when_it_is_let_go(served: Served) -> None:
    with watching(served) as seen:
        seen.pace(is_paused=True)
        seen.wait_for("pace")
        seen.send("abcabc", 4)
        time.sleep(0.15)
        assert served.engine.stats().num_steps == 0
        for number in (1, 2):
            seen.step()
            seen.wait_for("step", number)
            time.sleep(0.1)
            assert served.engine.stats().num_steps == number
        seen.pace(is_paused=False)
        assert seen.wait_for("finished")[0]["tokens"] == 4


def test_slow_motion_takes_its_time(served: Served) -> None:
    with watching(served) as seen:
        seen.pace(seconds_per_step=0.1)
        started = time.perf_counter()
        seen.send("abcabc", 5)
        seen.wait_for("finished")
        assert time.perf_counter() - started >= 0.4


def test_the_pause_ends_with_the_last_page_that_watches(served: Served) -> None:
    with watching(served) as seen:
        seen.pace(is_paused=True)
    assert served.generate(PA, 3).json()["token_ids"] == T0_OUTPUTS["PA"][:3]


def test_an_engine_without_steps_says_so() -> None:
    with open_server(phase_by_number(1)) as served, watching(served) as seen:
        assert seen.of_kind("start")[0]["can_pause"] is False
        assert_error(seen.pace(is_paused=True), 409, code="cannot_pause")


@pytest.mark.parametrize("number", [2, 12])
def test_an_engine_that_is_closed_while_paused_ends(number: int) -> None:
    with open_engine(phase_by_number(number)) as engine:
        stream = engine.stream(greedy(PA, 40))
        engine.thread.set_pace(is_paused=True)
        closing = threading.Thread(target=engine.close)
        closing.start()
        closing.join(3)
        assert not closing.is_alive()
        assert [output.finish_reason for output in stream][-1] == "abort"


def test_a_server_that_is_stopped_while_paused_lets_what_runs_finish() -> None:
    answers: list[httpx.Response] = []
    with open_server(newest_phase()) as served, watching(served) as seen:
        seen.pace(is_paused=True)
        thread = threading.Thread(target=lambda: answers.append(httpx.post(f"{served.url}/generate", **BODY)))
        thread.start()
        seen.wait_for("queued")
        started = time.perf_counter()
    thread.join(5)
    assert time.perf_counter() - started < 4, "an open page and a pause hold nothing up"
    assert answers[0].json()["token_ids"] == T0_OUTPUTS["PA"][:3]


BODY: dict[str, Any] = {"json": {"prompt": PA, "max_new_tokens": 3, "ignore_eos": True}, "timeout": 10}


class TestPace:
    """The arithmetic alone."""

    def test_steps_are_so_far_apart(self) -> None:
        now = [10.0]
        pace = Pace(clock=lambda: now[0])
        pace.set(is_paused=False, seconds_per_step=0.5)
        assert pace.delay_s() == 0
        pace.note_step()
        now[0] = 10.2
        assert pace.delay_s() == pytest.approx(0.3)
        now[0] = 11.0
        assert pace.delay_s() == 0

    def test_asking_twice_for_a_step_that_has_not_begun_is_asking_once(self) -> None:
        pace = Pace()
        pace.set(is_paused=True, seconds_per_step=0.0)
        assert pace.delay_s() is None
        pace.allow_one()
        pace.allow_one()
        assert pace.delay_s() == 0
        pace.note_step()
        assert pace.delay_s() is None


# -- a watcher that does not keep up ------------------------------------------------------------------


def test_a_watcher_that_is_behind_loses_records_and_is_told() -> None:
    async def run() -> tuple[str | None, int]:
        watcher = Watcher(max_pending_chars=100)
        for number in range(50):
            watcher.put([f'{{"kind":"x","n":{number}}}'])
        return await watcher.next(), watcher.num_lost

    text, num_lost = asyncio.run(run())
    assert text is not None
    assert len(text) <= 100
    assert num_lost + text.count("kind") == 50


def test_a_watcher_that_reads_nothing_stalls_nobody_and_gets_the_state_anew(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket is not read: the system's buffers fill, then the server's, then the watcher's, which is small here."""
    monkeypatch.setattr("shared.server.live_feed.Watcher", lambda: Watcher(max_pending_chars=50_000))
    filler = json.dumps({"kind": "filler", "text": "x" * 10_000})
    with served.connect() as connection:
        connection.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
        wait_until(lambda: feed_of(served).is_watched)
        (watcher,) = feed_of(served)._watchers.values()
        loop = feed_of(served)._pump.get_loop()  # type: ignore[union-attr]

        def is_behind() -> bool:
            loop.call_soon_threadsafe(watcher.put, [filler])
            return watcher.num_lost > 0

        wait_until(is_behind, 20)
        served.assert_alive()
        received = b""
        while b'"kind":"lost"' not in received:
            received = received[-100:] + connection.recv(1 << 16)
        while b'"kind":"start"' not in received:
            received += connection.recv(1 << 16)


def test_while_nobody_watches_nothing_is_written_down(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("somebody listens")

    with watching(served) as seen:
        assert feed_of(served).is_watched
        seen.send("abc", 2)
        seen.wait_for("finished")
    wait_until(lambda: not feed_of(served).is_watched, 5)
    monkeypatch.setattr("shared.trace.tap.Tap._saw_step", refuse)
    monkeypatch.setattr("shared.trace.tap.Tap._saw_event", refuse)
    assert served.generate(PA, 3).status_code == 200


def test_a_feed_that_breaks_sends_its_pages_away_and_serves_on(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("broken")

    with watching(served) as seen:
        monkeypatch.setattr("shared.trace.encode.Encoder.encode", fail)
        assert served.generate(PA, 3).status_code == 200
        wait_until(lambda: seen.is_over, 5)
    assert "feed broke" in caplog.text
    assert served.http.get("/health").status_code == 200


def test_tokens_are_the_same_with_somebody_watching(of_both_kinds: Served) -> None:
    with watching(of_both_kinds):
        assert of_both_kinds.generate(PA, 24).json()["token_ids"] == T0_OUTPUTS["PA"]
