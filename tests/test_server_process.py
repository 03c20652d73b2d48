"""The server as a process: signals, exit codes, ports, the `serve` command and the factory. HTTP-07."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.lesson_diff import ROOT
from shared.registry import newest_phase
from shared.server.background import background_server
from shared.server.factory import app_from_env
from shared.server.graceful_server import bind
from shared.tiny_models import tiny_llama
from tests.helpers import PA, T0_OUTPUTS, letter_tokenizer
from tests.server_helpers import parse_events

NEWEST = newest_phase()


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    tiny_llama().save_pretrained(folder)
    letter_tokenizer(vocab_size=97).save_pretrained(folder)
    return folder


@contextmanager
def process(*arguments: str, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", *arguments]
    started = subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def wait_for_address(started: "subprocess.Popen[str]") -> str:
    """Where it says that it serves; its other lines up to there are dropped."""
    assert started.stderr is not None
    for line in started.stderr:
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return found[0]
    raise AssertionError(f"ended with {started.wait()} before it served")


def wait_for_end(started: "subprocess.Popen[str]", seconds: float) -> int:
    try:
        return started.wait(seconds)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"still running after {seconds} s") from None


@contextmanager
def open_stream(url: str, num_events: int) -> Iterator[tuple[Iterator[str], str]]:
    """A stream of 100 tokens (about 2 s), of which the first `num_events` events have been read."""
    body = {"prompt": PA, "max_new_tokens": 100, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{url}/generate", json=body, timeout=10) as response:
        lines = response.iter_lines()
        yield lines, "\n".join(next(lines) for _ in range(2 * num_events)) + "\n"


def test_http_07_a_drain_lets_streams_end() -> None:
    with process("tests.server_helpers", str(NEWEST.number), "30") as started:
        url = wait_for_address(started)
        with open_stream(url, 10) as (lines, text):
            started.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            with pytest.raises(httpx.ConnectError):
                httpx.post(f"{url}/generate", json={"prompt": PA})
            *events, last, done = parse_events(text + "\n".join(lines) + "\n")
        assert len(events) == 100
        assert [event["token_ids"][0] for event in events[:24]] == T0_OUTPUTS["PA"]
        assert (last["finish_reason"], done) == ("length", "[DONE]")
        assert wait_for_end(started, 3) == 0
        port = int(url.rpartition(":")[2])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_http_07_a_drain_ends_with_the_grace_period() -> None:
    with process("tests.server_helpers", str(NEWEST.number), "1") as started:
        url = wait_for_address(started)
        with open_stream(url, 5) as (lines, _):
            told = time.perf_counter()
            started.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "shutting_down"
        assert wait_for_end(started, 3) == 0
        assert time.perf_counter() - told < 3


def test_http_07_a_second_signal_ends_at_once() -> None:
    with process("tests.server_helpers", str(NEWEST.number), "30") as started:
        url = wait_for_address(started)
        with open_stream(url, 1):
            started.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            started.send_signal(signal.SIGTERM)
            assert wait_for_end(started, 1) == 128 + signal.SIGTERM


def test_serve_serves_a_model_folder(model_folder: Path) -> None:
    arguments = ["serve", "--model", str(model_folder), "--port", "0", "--dtype", "float64", "--show-config"]
    with process(NEWEST.package, *arguments, PAGESERVE_API_KEY="k") as started:
        url = wait_for_address(started)
        with httpx.Client(base_url=url, headers={"Authorization": "Bearer k"}) as http:
            assert http.get("/v1/models").json()["data"][0]["id"] == "tiny-llama"
            answer = http.post("/generate", json={"prompt": PA, "max_new_tokens": 4, "ignore_eos": True})
            assert answer.json()["token_ids"] == T0_OUTPUTS["PA"][:4]
            assert httpx.get(f"{url}/v1/models").status_code == 401
        started.send_signal(signal.SIGINT)
        assert wait_for_end(started, 5) == 0
        assert started.stderr is not None
        line = next(json.loads(line) for line in started.stderr if line.startswith("{"))
        assert (line["route"], line["completion_tokens"], line["reason"]) == ("/generate", 4, "length")


def run(*arguments: str, **environment: str) -> Any:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
        check=False,
    )


def test_a_taken_port_is_one_line_before_any_model_is_loaded() -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = str(taken.getsockname()[1])
        result = run(NEWEST.package, "serve", "--port", port, "--model", "no-such-folder/x/y")
    assert result.returncode == 2
    assert result.stderr == f"error: cannot serve on 127.0.0.1, port {port}: the port is taken; " + (
        "choose another with --port, or stop who has it\n"
    )


def test_an_open_address_is_warned_about_and_a_foreign_one_refused() -> None:
    result = run(NEWEST.package, "serve", "--host", "0.0.0.0", "--port", "0", "--model", "no-such-folder/x/y")
    assert result.returncode == 2
    warning, error = result.stderr.splitlines()
    assert warning.startswith("warning: 0.0.0.0 can be reached from other machines")
    assert error.startswith("error: model 'no-such-folder/x/y'")
    result = run(NEWEST.package, "serve", "--host", "192.0.2.1", "--port", "0")
    assert "error: cannot serve on 192.0.2.1" in result.stderr


def test_the_factory_reads_the_environment(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `uvicorn shared.server.factory:app_from_env --factory` calls."""
    settings = {"PHASE": "2", "MODEL_NAME": str(model_folder), "MAX_MODEL_LEN": "20", "PAGESERVE_API_KEY": "k"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    app = app_from_env()
    with background_server(app) as url:
        assert httpx.get(f"{url}/health").json() == {"status": "ok", "model": "tiny-llama"}
        body = {"prompt": PA, "max_tokens": 99, "ignore_eos": True}
        answer = httpx.post(f"{url}/v1/completions", json=body, headers={"Authorization": "Bearer k"})
    assert answer.json()["usage"]["completion_tokens"] == 12
    app.state.service.engine.close()


def test_an_empty_key_in_the_environment_is_no_open_door(monkeypatch: pytest.MonkeyPatch) -> None:
    """As little as `--api-key ""` is: more likely a secret that was not filled in. No model is loaded for it."""
    monkeypatch.setenv("MODEL_NAME", "no-such-folder/x/y")
    monkeypatch.setenv("PAGESERVE_API_KEY", "")
    with pytest.raises(SystemExit, match="error: api_key: is empty"):
        app_from_env()
    for options in ((), ("--api-key", ""), ("--allowed-host", "a.example:80", "--api-key", "k")):
        result = run(NEWEST.package, "serve", "--port", "0", *options)
        name = "allowed_hosts" if "k" in options else "api_key"
        assert (result.returncode, result.stderr.count("\n")) == (2, 1)
        assert result.stderr.startswith(f"error: {name}: ")


@pytest.mark.parametrize(("name", "value"), [("PHASE", "99"), ("PHASE", "x"), ("MAX_MODEL_LEN", "x")])
def test_the_factory_says_in_a_line_what_is_wrong(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=f"error: .*{value}"):
        app_from_env()
