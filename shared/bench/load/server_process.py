"""A server as a process of its own: started on a free port, waited for, and surely stopped."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from types import TracebackType
from typing import IO

import httpx

from shared.bench.worker import SystemFailed

ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")
NUM_LAST_LINES = 5
POLL_S = 0.05


class ServerProcess:
    """`python -m MODULE serve --port 0 ...` up to `close`. `url` is where it answers.

    It prints its address once it listens. Raises SystemFailed, with its last lines, if it ends or is not healthy
    in time.
    """

    def __init__(
        self,
        name: str,
        module: str,
        options: Seq[str],
        folder: Path,
        environment: Mapping[str, str],
        start_s: float = 180,
    ) -> None:
        self.name = name
        self._lines: deque[str] = deque(maxlen=NUM_LAST_LINES)
        self._address = threading.Event()
        self.url = ""
        command = [sys.executable, "-m", module, "serve", "--host", "127.0.0.1", "--port", "0", *options]
        self._process = subprocess.Popen(
            command, cwd=folder, env=os.environ | dict(environment), stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        self._reader = threading.Thread(target=self._read, args=(self._process.stderr,), daemon=True)
        self._reader.start()
        try:
            self._wait_until_healthy(time.monotonic() + start_s)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self, patience_s: float = 5.0) -> None:
        """Ask it to end, and end it if it does not."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._reader.join()

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _read(self, stream: IO[bytes]) -> None:
        """Its log, so that it never waits for a reader; the last lines are kept for when it dies."""
        with stream:
            for raw in stream:
                line = raw.decode("utf-8", errors="replace").rstrip()
                self._lines.append(line)
                if not self.url and (found := ADDRESS.search(line)):
                    self.url = found[0]
                    self._address.set()

    def _wait_until_healthy(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                self._reader.join()
                raise SystemFailed(f"{self.name}: its server ended: {' / '.join(self._lines) or 'no word'}")
            if self._address.wait(POLL_S) and self._is_healthy():
                return
        raise SystemFailed(f"{self.name}: its server was not healthy in time: {' / '.join(self._lines) or 'no word'}")

    def _is_healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=2.0, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False
