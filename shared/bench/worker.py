"""One system in a process of its own: its memory is its own, and it costs nothing while others run.

    parent --requests--> child: system.serve --Served--> parent
           watches the child's resident memory meanwhile

The child ignores Ctrl-C; the parent ends it. Torch-free in the parent.
"""

import multiprocessing
import signal
from collections.abc import Sequence as Seq
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from shared.bench.latency import Served
from shared.bench.systems import SystemInfo, SystemSpec
from shared.errors import SetupError
from shared.request import Request

MEMORY_POLL_S = 0.05
PRELOADED = ["shared.bench.build", "transformers.models.llama.modeling_llama"]  # most of what every child needs


class SystemFailed(RuntimeError):
    """A system could not be built, or did not serve a workload; the message names it."""


@dataclass(frozen=True, slots=True)
class _Failure:
    message: str
    is_setup: bool


@dataclass(frozen=True, slots=True)
class _Recorded:
    """To be served while the engine is recorded; of a phase alone. about: what the recording's first line says."""

    requests: tuple[Request, ...]
    path: Path
    about: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Texts:
    """To be encoded by the reference."""

    texts: list[str]


class Worker:
    """Builds its system on creation and waits for it. Raises SetupError, or SystemFailed."""

    def __init__(self, spec: SystemSpec) -> None:
        self.spec = spec
        self._connection, theirs = multiprocessing.Pipe()
        self._process = _context().Process(target=_work, args=(spec, theirs), daemon=True)
        self._process.start()
        theirs.close()
        try:
            self.info: SystemInfo = self._receive()
        except BaseException:
            self.close()
            raise
        self._memory = psutil.Process(self._process.pid)

    def serve(self, requests: Seq[Request]) -> tuple[Served, int]:
        """What came of the requests, and the most memory the child had resident meanwhile, in bytes."""
        with suppress(OSError):  # a child that has died is noticed below
            self._connection.send(tuple(requests))
        peak = 0
        while not self._connection.poll(MEMORY_POLL_S):
            with suppress(psutil.NoSuchProcess):
                peak = max(peak, self._memory.memory_info().rss)
        return self._receive(), peak or self._memory.memory_info().rss

    def record(self, requests: Seq[Request], path: Path, title: str) -> None:
        """Serve them once more, and write down what the engine does; a phase alone can."""
        phase = self.spec.phase.number if self.spec.phase else None
        about = {"phase": phase, "title": title, "model": self.info.model_name}
        self._connection.send(_Recorded(tuple(requests), path.resolve(), about))
        self._receive()

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The token ids of texts as prompts; the reference alone can."""
        self._connection.send(_Texts(texts))
        return self._receive()

    def close(self) -> None:
        """End the child, whatever it is doing. Closing twice is closing once."""
        self._process.terminate()
        self._process.join()
        self._connection.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _receive(self) -> Any:
        try:
            message = self._connection.recv()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            raise SystemFailed(f"{self.spec.name}: its process died (exit code {code}); out of memory?") from None
        if isinstance(message, _Failure):
            raise (SetupError if message.is_setup else SystemFailed)(f"{self.spec.name}: {message.message}")
        return message


def _context() -> Any:
    """Children that fork from a process that has imported torch once and done nothing else, where there is fork."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _work(spec: SystemSpec, connection: Connection) -> None:
    """The child: build the system, say what it is, then serve until the parent ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        from shared.bench.build import build_system, with_device_peak

        system, info = build_system(spec)
        connection.send(info)
        while True:
            asked = connection.recv()
            if isinstance(asked, _Texts):
                connection.send(getattr(system, "encode")(asked.texts))  # noqa: B009 - the reference alone has it
            elif isinstance(asked, _Recorded):
                connection.send(getattr(system, "record")(asked.requests, asked.path, asked.about))  # noqa: B009
            else:
                connection.send(with_device_peak(system.serve, asked))
    except EOFError:
        pass  # the parent is gone
    except Exception as error:
        is_setup = isinstance(error, SetupError)
        connection.send(_Failure(str(error) if is_setup else f"{type(error).__name__}: {error}", is_setup))
