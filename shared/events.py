"""What an engine did, as it did it: small records that timelines, notebooks, metrics and the live page read.

Nothing that a learner is shown is drawn from anything else. Torch-free; costs nothing while nobody listens.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from shared.step import ScheduledSequence

EventKind = Literal[
    "queued",  # a request arrived
    "admitted",  # a sequence joined the running batch
    "chunk",  # a step ran prompt tokens (or recomputed ones)
    "decode",  # a step ran the last sampled token
    "preempted",  # a running sequence gave its memory back (phase 9)
    "swapped_in",  # and got it back from host memory (phase 9)
    "prefix_hit",  # prompt tokens found in the cache (phase 12)
    "drafts_accepted",  # guesses that were right (phase 12)
    "freed",  # its memory went back
    "finished",  # its last token is out
]


@dataclass(frozen=True, slots=True)
class Event:
    """`time` is when it was over, in seconds of time.perf_counter; `duration` in seconds, 0 for an instant."""

    kind: EventKind
    step: int  # the step it belongs to, counted from 1; 0 before the first
    time: float
    request_id: str
    index: int = 0
    num_tokens: int = 0
    duration: float = 0.0
    detail: str = ""


Listener = Callable[[Event], None]


class EventLog:
    """Hands each event to whoever listens."""

    def __init__(self) -> None:
        self.step = 0
        self._listeners: tuple[Listener, ...] = ()

    @property
    def has_listeners(self) -> bool:
        return bool(self._listeners)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every event, on the thread where it happens; returns the way to stop that."""
        self._listeners = (*self._listeners, listener)
        return lambda: self._unsubscribe(listener)

    def _unsubscribe(self, listener: Listener) -> None:
        self._listeners = tuple(known for known in self._listeners if known != listener)

    def emit(
        self,
        kind: EventKind,
        request_id: str,
        index: int = 0,
        *,
        num_tokens: int = 0,
        duration: float = 0.0,
        detail: str = "",
        at: float | None = None,
    ) -> None:
        if not self._listeners:
            return
        now = time.perf_counter() if at is None else at
        event = Event(kind, self.step, now, request_id, index, num_tokens, duration, detail)
        for listener in self._listeners:
            listener(event)

    def emit_run(self, item: ScheduledSequence, started: float, ended: float) -> None:
        """A step ran this row of its plan."""
        if self._listeners:
            kind: EventKind = "decode" if item.is_decode else "chunk"
            duration = ended - started
            self.emit(
                kind, item.seq.request_id, item.seq.index, num_tokens=item.num_tokens, duration=duration, at=ended
            )

    @contextmanager
    def recording(self) -> Iterator[list[Event]]:
        """`with engine.events.recording() as events:` collects what happens inside."""
        events: list[Event] = []
        unsubscribe = self.subscribe(events.append)
        try:
            yield events
        finally:
            unsubscribe()
