"""A peer in a process of its own, run by its own Python: what `Worker` is to the engines of this repository.

    parent --requests--> driver: JSON lines over pipes (drivers/loop.py)
           <--answers--
           watches its resident memory meanwhile, and stops it in between

Stopped (SIGSTOP) while others run, so that no thread pool of a peer can spin at their cost. It is its own process
group: Ctrl-C reaches the parent alone, which ends it. Torch-free.
"""

import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from shared.bench.code_files import REPOSITORY
from shared.bench.latency import Answer, Served
from shared.bench.systems import ModelChoice, SystemInfo
from shared.bench.worker import MEMORY_POLL_S, SystemFailed
from shared.request import Request


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """A row of a table that is a peer. python: of its environment. model_folder: what it reads.

    options: for the driver, beside what all of them get. environ: variables of its process.
    """

    name: str
    label: str
    model: ModelChoice
    driver: str
    python: Path
    model_folder: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, bool] = field(default_factory=dict)

    @property
    def is_slow(self) -> bool:
        return False

    @property
    def code(self) -> str:
        return self.driver.replace(".", "/") + ".py"

    @property
    def num_threads(self) -> int:
        return self.model.num_threads or default_num_threads()


def default_num_threads() -> int:
    """$OMP_NUM_THREADS, else a thread per core: what torch does, said openly so that everyone gets as many."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) else psutil.cpu_count(logical=False) or 1


class PeerWorker:
    """Loads its peer on creation and waits for it. Raises SystemFailed."""

    def __init__(self, spec: PeerSpec) -> None:
        self.spec = spec
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        options = {"model": str(spec.model_folder), "dtype": spec.model.dtype, "num_threads": spec.num_threads}
        self._process = subprocess.Popen(
            [spec.python, "-m", spec.driver, json.dumps(options | dict(spec.options))],
            cwd=REPOSITORY,
            env=_environ(spec),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            process_group=0,
        )
        try:
            self.info = self._info(self._receive()[0])
        except BaseException:
            self.close()
            raise
        self._process.send_signal(signal.SIGSTOP)

    def serve(self, requests: Seq[Request]) -> tuple[Served, int]:
        """What came of the requests, and the most memory the peer had resident meanwhile, in bytes."""
        jobs = [{"prompt_token_ids": list(r.prompt_token_ids), "max_tokens": r.params.max_tokens} for r in requests]
        self._process.send_signal(signal.SIGCONT)
        with suppress(OSError):  # a driver that has died is noticed below
            os.write(self._stdin(), (json.dumps({"requests": jobs}) + "\n").encode())
        message, peak = self._receive()
        self._process.send_signal(signal.SIGSTOP)
        answers = [Answer(answer["token_ids"], answer["token_times"]) for answer in message["answers"]]
        return Served(message["seconds"], answers), peak

    def close(self) -> None:
        """End the peer, whatever it is doing. Closing twice is closing once."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> "PeerWorker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _stdin(self) -> int:
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    def _receive(self) -> tuple[Any, int]:
        """The driver's next message, and the most memory that it had resident until then."""
        stdout = self._process.stdout
        assert stdout is not None
        peak, memory = 0, psutil.Process(self._process.pid)
        while not select.select([stdout], [], [], MEMORY_POLL_S)[0]:
            peak = max(peak, _resident_bytes(memory))
        peak = max(peak, _resident_bytes(memory))
        line = stdout.readline()
        if not line:
            raise SystemFailed(f"{self.spec.name}: its process died (exit code {self._process.wait()}){self._last()}")
        message = json.loads(line)
        if "failed" in message:
            raise SystemFailed(f"{self.spec.name}: {message['failed'].splitlines()[0]}")
        return message, peak

    def _last(self) -> str:
        """The last line that it wrote to standard error."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""

    def _info(self, ready: Mapping[str, Any]) -> SystemInfo:
        return SystemInfo(
            model_name=self.spec.model_folder.name,
            vocab_size=0,  # the reference's is asked for, and its limit
            max_model_len=0,
            num_threads=self.spec.num_threads,
            device="cpu",
            settings=ready["settings"],
            implementation=ready["implementation"] | ready["versions"],
        )


def _environ(spec: PeerSpec) -> dict[str, str]:
    """Ours without what would lead its Python to our packages; it is not to reach for the network."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return inherited | {"OMP_NUM_THREADS": str(spec.num_threads), "HF_HUB_OFFLINE": "1"} | dict(spec.environ)


def _resident_bytes(process: psutil.Process) -> int:
    """Of the process and its children."""
    total = 0
    with suppress(psutil.NoSuchProcess):
        for one in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                total += one.memory_info().rss
    return total
