"""A recording as a Chrome trace (the Trace Event Format): open it in https://ui.perfetto.dev or chrome://tracing.

One track has the steps, one each sequence: queued, chunks, decodes, and what happened in between; counters show
tokens per step, sequences running and waiting, and blocks held. Torch-free.
"""

from collections.abc import Iterator
from typing import Any

from shared.trace.encode import Record
from shared.trace.recording import Recording

PROCESS = 1
STEPS = 0  # the track of the steps; sequences have the numbers after it

TraceEvent = dict[str, Any]


def chrome_trace(recording: Recording) -> dict[str, Any]:
    """What `json.dump` writes to a file that Perfetto opens. Times in microseconds since the recording began."""
    about = {name: recording.start.get(name) for name in ("phase", "model", "engine")}
    events = list(_Tracks(recording).events())
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


class _Tracks:
    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._numbers: dict[str, int] = {}  # sequence -> its track
        self._queued: dict[str, int] = {}  # sequence that waits -> since when
        self._sequences: dict[str, list[str]] = {}  # request id -> its sequences
        self._tables: dict[str, int] = {}  # sequence -> blocks it holds

    def events(self) -> Iterator[TraceEvent]:
        yield _named("process_name", STEPS, self._recording.title)
        yield _named("thread_name", STEPS, "steps")
        for request in self._recording.start.get("requests", []):
            names = [row[0] for row in request["sequences"]]
            yield from self._arrive(request["id"], names, request["at"])
        for record in self._recording.records:
            yield from self._of(record)

    def _of(self, record: Record) -> Iterator[TraceEvent]:
        kind = record["kind"]
        for name, place, blocks in record.get("pool", []):
            self._tables[name] = place + len(blocks)
        for name, _ in record.get("pool_gone", []):
            if name not in {grown[0] for grown in record.get("pool", [])}:
                self._tables.pop(name, None)
        if kind == "step":
            yield from self._step(record)
        elif kind == "queued":
            yield from self._arrive(record["id"], record["sequences"], record["at"])
        elif kind == "finished":
            yield from self._finish(record)
        elif kind != "lost":
            yield from self._instant(record)

    def _arrive(self, request_id: str, names: list[str], at: int) -> Iterator[TraceEvent]:
        self._sequences[request_id] = names
        for name in names:
            self._queued[name] = at
            if name not in self._numbers:
                self._numbers[name] = len(self._numbers) + 1
                yield _named("thread_name", self._numbers[name], name)

    def _step(self, step: Record) -> Iterator[TraceEvent]:
        at, took = step["at"], step["took"]
        num_tokens = sum(row[3] + row[4] for row in step["rows"])
        if step["rows"]:
            about = {"sequences": len(step["rows"]), "tokens": num_tokens}
            yield _span(f"step {step['n']}", STEPS, at, took, about)
        for name, kind, start, num, num_drafts, num_new in step["rows"]:
            yield from self._waited(name, at)
            what = "verify" if num_drafts else "decode" if kind == "d" else "prefill"
            about = {"positions": f"[{start}, {start + num + num_drafts})", "drafts": num_drafts, "new": num_new}
            yield _span(what, self._numbers.get(name, STEPS), at, took, about)
        yield _counter("tokens in the step", at, {"tokens": num_tokens})
        yield _counter("sequences", at, {"run": len(step["rows"]), "waiting": len(self._queued)})
        if self._recording.start["engine"].get("num_blocks"):
            yield _counter("blocks in tables", at, {"blocks": sum(self._tables.values())})

    def _instant(self, record: Record) -> Iterator[TraceEvent]:
        name, at = record["id"], record["at"]
        if record["kind"] == "preempted":
            self._queued[name] = at
        about = {key: record[key] for key in ("tokens", "how") if key in record}
        track = self._numbers.get(name, STEPS)
        yield _event("i", record["kind"], track, at, s="t", args=about)

    def _finish(self, record: Record) -> Iterator[TraceEvent]:
        for name in self._sequences.pop(record["id"], []):
            yield from self._waited(name, record["at"])
            about = {"reason": record["reason"], "tokens": record["tokens"]}
            yield _event("i", "finished", self._numbers[name], record["at"], s="t", args=about)

    def _waited(self, name: str, until: int) -> Iterator[TraceEvent]:
        """Close the span of a wait that is over."""
        since = self._queued.pop(name, None)
        if since is not None and until > since:
            yield _span("waiting", self._numbers.get(name, STEPS), since, until - since, {})


def _event(phase: str, name: str, track: int, at: int, **more: Any) -> TraceEvent:
    return {"ph": phase, "name": name, "pid": PROCESS, "tid": track, "ts": at, **more}


def _span(name: str, track: int, at: int, took: int, about: dict[str, Any]) -> TraceEvent:
    return _event("X", name, track, at, dur=took, args=about)


def _counter(name: str, at: int, values: dict[str, int]) -> TraceEvent:
    return _event("C", name, STEPS, at, args=values)


def _named(what: str, track: int, name: str) -> TraceEvent:
    return _event("M", what, track, 0, args={"name": name})
