"""A recording: JSON lines, the first of which says what was recorded. Written while an engine runs, read back whole.

    with recorded(engine, "run.jsonl", phase=12):
        engine.generate(...)
    timelines(read_recording("run.jsonl").events())

Torch-free.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from shared.errors import SetupError
from shared.events import Event, EventKind
from shared.trace.encode import VERSION, Encoder, Record, to_line
from shared.trace.tap import Tap

WRITE_EVERY_S = 0.1


@contextmanager
def recorded(engine: Any, path: str | Path | None, **about: Any) -> Iterator[None]:
    """Record `engine` into a file while the block runs; nothing at all happens where `path` is None.

    about: what the first line is to say beside the engine's sizes, such as phase, title, model.
    Raises SetupError where the file cannot be written.
    """
    if path is None:
        yield
        return
    with _opened(Path(path)) as file, written(engine, file, about):
        yield


def _opened(path: Path) -> TextIO:
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise SetupError(f"--record {path}: {error.strerror}; give a file that can be written") from None


@contextmanager
def written(engine: Any, file: TextIO, about: Record, every_s: float = WRITE_EVERY_S) -> Iterator[None]:
    """Write down what `engine` does while the block runs. every_s: seconds between two looks at what there is."""
    tap, encoder, is_over = Tap(engine), Encoder(time.perf_counter()), threading.Event()
    tap.open()
    file.write(to_line(encoder.start(engine, **about)) + "\n")

    def write() -> None:
        is_last = False
        while not is_last:
            is_last = is_over.wait(every_s)
            file.writelines(to_line(encoder.encode(raw)) + "\n" for raw in tap.take())

    thread = threading.Thread(target=write, name="pageserve-recorder", daemon=True)
    thread.start()
    try:
        yield
    finally:
        tap.close()
        is_over.set()
        thread.join()


@dataclass(frozen=True, slots=True)
class Recording:
    """start: its first record, which says what was recorded. records: the rest, in the order of the engine."""

    start: Record
    records: list[Record]

    @property
    def title(self) -> str:
        return str(self.start.get("title") or f"phase {self.start.get('phase', '?')}")

    def events(self) -> Iterator[Event]:
        """As the engine emitted them, rows of steps included; times in seconds since the recording began."""
        step = 0
        for record in self.records:
            if record["kind"] == "step":
                step = record["n"]
                yield from _row_events(record)
            elif record["kind"] != "lost":
                detail = record.get("reason") or record.get("how") or ""
                tokens = record.get("tokens", 0)
                yield Event(record["kind"], step, record["at"] / 1e6, record["id"], num_tokens=tokens, detail=detail)


def read_recording(path: str | Path) -> Recording:
    """Raises SetupError that says which line is wrong, and how."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SetupError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SetupError(f"{path}: is no text; recordings are made with --record FILE") from None
    records = [_parsed(path, number, line) for number, line in enumerate(lines, 1)]
    if not records or records[0]["kind"] != "start":
        raise SetupError(f"{path}: is no recording; one is made with --record FILE")
    if records[0].get("version") != VERSION:
        raise SetupError(f"{path}: has version {records[0].get('version')}, this reads {VERSION}; record it again")
    return Recording(records[0], records[1:])


def _parsed(path: str | Path, number: int, line: str) -> Record:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        raise SetupError(f"{path}, line {number}: is no record; was the recording cut off?")
    return record


def _row_events(step: Record) -> Iterator[Event]:
    ended, duration = (step["at"] + step["took"]) / 1e6, step["took"] / 1e6
    for name, kind, _, num_tokens, num_drafts, num_new in step["rows"]:
        row: EventKind = "decode" if kind == "d" else "chunk"
        yield Event(row, step["n"], ended, name, num_tokens=num_tokens, duration=duration)
        if num_drafts:
            yield Event("drafts_accepted", step["n"], ended, name, num_tokens=num_new - 1)
