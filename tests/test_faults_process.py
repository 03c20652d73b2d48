"""The `serve` command under load: killed, told to stop, hung, started twice, started on a full disk.

One stream at a time: `test_server_process.py` (HTTP-07). Disks that fill up: `test_default_model.py`.
"""

import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.errors import SetupError
from shared.lesson_diff import ROOT
from shared.loading.default_model import DEFAULT_MODEL, default_model_folder
from shared.server import create_app
from shared.server.background import background_server
from tests.faults import HANG, NEWEST, open_newest, unharmed_neighbours
from tests.helpers import PA, PB, PC, T0_OUTPUTS, letter_tokenizer, wait_until
from tests.server_helpers import MODEL, assert_error, parse_events
from tests.test_server_process import model_folder, process, wait_for_address, wait_for_end  # noqa: F401 - a fixture
from tests.tiny_gguf import llama, write_gguf

PROMPTS = {"PA": PA, "PB": PB, "PC": PC}


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """`serve` with slowed steps, room for two, and a HANG; and its address."""
    arguments = ["serve", "--model", str(folder), "--dtype", "float64", "--max-batch-size", "2", *options]
    with process("tests.faults", *arguments) as started:
        yield started, wait_for_address(started)


def stream(url: str, name: str) -> str:
    """The text of a stream, as far as it comes."""
    body = {"prompt": PROMPTS[name], "max_new_tokens": 24, "ignore_eos": True, "stream": True}
    parts = []
    try:
        with httpx.stream("POST", f"{url}/generate", json=body, timeout=30) as response:
            for part in response.iter_text():
                parts.append(part)
    except httpx.TransportError as error:
        return f"{''.join(parts)}broken: {type(error).__name__}"
    return "".join(parts)


def start_load(pool: ThreadPoolExecutor, url: str) -> dict[str, Any]:
    """A stream of each prompt: two run, one waits."""
    jobs = {name: pool.submit(stream, url, name) for name in PROMPTS}
    wait_until(lambda: metric(url, "num_running") == 2 and metric(url, "num_waiting") == 1, 5)
    return jobs


def metric(url: str, name: str) -> float:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"pageserve_{name} "))


def assert_whole(jobs: dict[str, Any]) -> None:
    for name, job in jobs.items():
        *events, last, done = parse_events(job.result(timeout=20))
        assert [token for event in events for token in event["token_ids"]] == T0_OUTPUTS[name]
        assert (last["finish_reason"], done) == ("length", "[DONE]")


def test_after_a_kill_under_load_a_restart_serves_and_a_hung_step_does_not_keep_it_alive(
    model_folder: Path,  # noqa: F811
) -> None:
    with ThreadPoolExecutor(3) as pool:
        with serving(model_folder, "--port", "0") as (killed, url):
            jobs = start_load(pool, url)
            killed.send_signal(signal.SIGKILL)
            for job in jobs.values():
                text = job.result(timeout=5)
                assert "broken: " in text
                assert "[DONE]" not in text, "nobody may take it for a whole answer"
            assert wait_for_end(killed, 5) == -signal.SIGKILL
        port = url.rpartition(":")[2]
        options = ("--port", port, "--stuck-step-s", "0.3", "--grace-period", "0.5")
        with serving(model_folder, *options) as (hung, again):
            assert again == url, "the port is free at once"
            assert_whole(start_load(pool, url))
            job = pool.submit(httpx.post, f"{url}/generate", json={"prompt": [HANG], "max_new_tokens": 4}, timeout=20)
            wait_until(lambda: httpx.get(f"{url}/health").status_code == 503, 5)
            assert_error(httpx.get(f"{url}/health"), 503, code="engine_stuck")
            hung.send_signal(signal.SIGTERM)
            assert_error(job.result(timeout=5), 503, code="shutting_down")
            assert wait_for_end(hung, 20) == 1


def test_a_drain_under_load_loses_nothing_not_even_in_the_queue() -> None:
    with ThreadPoolExecutor(3) as pool:
        with open_newest(max_batch_size=2) as served:
            jobs = start_load(pool, served.url)
        assert_whole(jobs)


def test_a_second_server_on_the_port_is_refused_and_the_first_goes_on() -> None:
    with open_newest() as served, unharmed_neighbours(served):
        app = create_app(served.engine, letter_tokenizer(vocab_size=97), MODEL)
        port = int(served.url.rpartition(":")[2])
        with pytest.raises(SetupError, match=f"port {port}: the port is taken"), background_server(app, port):
            pass
        assert served.http.get("/health").status_code == 200


def test_a_disk_that_fills_up_during_a_conversion_is_told_in_a_line(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: a real write fails half-way."""
    checkpoint = write_gguf(tmp_path / "tiny.gguf", llama())
    environment = {"PYTHONDONTWRITEBYTECODE": "1", "PAGESERVE_CACHE": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-m", NEWEST.package, "serve", "--port", "0", "--model", str(checkpoint)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)),
        check=False,
    )
    assert result.returncode == 2
    *_, line = result.stderr.splitlines()
    assert line.startswith("error: the model cache cannot be written")
    assert "set PAGESERVE_CACHE" in line
    assert list((tmp_path / "cache").iterdir()) == [], "nothing is left of it"


def test_a_disk_that_fills_up_under_pip_is_told_apart_from_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGESERVE_CACHE", str(tmp_path / "cache"))
    said = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"
    failed: Any = subprocess.CompletedProcess([], 1, stderr=said)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(SetupError, match=r"the disk of .* is full; free some of it"):
        default_model_folder(model=replace(DEFAULT_MODEL, needed_bytes=1))
    assert list((tmp_path / "cache").iterdir()) == []
