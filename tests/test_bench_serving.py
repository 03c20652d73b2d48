"""The serving sweep: real servers as processes, in turn, and none of them left behind."""

import signal
import time
from pathlib import Path

import psutil
import pytest

from shared.bench.__main__ import main
from shared.bench.code_files import REPOSITORY
from shared.bench.load.server_process import ServerProcess
from shared.bench.results import read_result
from shared.bench.worker import SystemFailed

TINY = ["--tiny", "--threads", "1", "--requests", "3", "--prompt-len", "4-8", "--output-len", "3-5", "--warm-up", "1"]


def child_servers() -> list[int]:
    return [process.pid for process in psutil.Process().children(recursive=True) if "serve" in process.cmdline()]


def test_each_phases_server_is_swept_and_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["serving", *TINY, "--phases", "1,12", "--rates", "50,inf", "--repeats", "1", "--slow-scale", "0.7"]
    assert main([*command, "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*.json")
    systems = {system.name: system for system in read_result(path).systems}
    assert list(systems) == ["phase01@50", "phase01@inf", "phase12@50", "phase12@inf"]
    for name, system in systems.items():
        (repeat,) = system.repeats
        assert repeat["num_ok"] == system.num_requests == (2 if "phase01" in name else 3)
        assert repeat["offered_rps"] == (None if "inf" in name else 50)
        assert all(repeat[figure] is not None for figure in ("ttft_p50_s", "tpot_p50_s", "itl_p99_s", "output_tokens"))
        assert system.notes == []
    assert child_servers() == []
    assert "(2 of 3" in capsys.readouterr().out


def test_a_server_that_cannot_start_is_told_with_its_last_words() -> None:
    with pytest.raises(SystemFailed, match=r"no such"):
        ServerProcess("phase 12", "phase12_prefix_and_spec", ["--model", "./no/such/model"], REPOSITORY, {})
    assert child_servers() == []


def test_a_server_that_will_not_end_is_killed(tmp_path: Path) -> None:
    (tmp_path / "stubborn.py").write_text(
        "import signal, sys\n"
        "from http.server import BaseHTTPRequestHandler, HTTPServer\n"
        "class Handler(BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200)\n"
        "        self.end_headers()\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "server = HTTPServer(('127.0.0.1', 0), Handler)\n"
        "print(f'http://127.0.0.1:{server.server_port}', file=sys.stderr, flush=True)\n"
        "server.serve_forever()\n"
    )
    server = ServerProcess("stubborn", "stubborn", [], tmp_path, {})
    started = time.monotonic()
    server.close(patience_s=0.2)
    assert time.monotonic() - started < 5
    assert not psutil.pid_exists(server.pid)
    assert server._process.returncode == -signal.SIGKILL
