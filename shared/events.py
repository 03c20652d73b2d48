"""What an engine did, as it did it: small records that timelines, notebooks, metrics and the live page read.

Nothing that a learner is shown is drawn from anything else. Torch-free; costs nothing while nobody listens.

An event is one thing that happened to one sequence. Who wants a step as a whole (its plan and what came of it)
listens to steps instead: one call per step, however many rows it has.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from shared.output import StepOutput
from shared.step import ScheduledSequence, StepPlan

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


OF_ROWS = frozenset({"chunk", "decode", "drafts_accepted"})  # kinds that every row of every step can have

Listener = Callable[[Event], None]
# plan, what came of it, started, ended (seconds). None: a token for every row that reaches its last known one.
StepListener = Callable[[StepPlan, list[StepOutput] | None, float, float], None]


class EventLog:
    """Hands each event, and each step, to whoever listens."""

    def __init__(self) -> None:
        self.step = 0
        self._listeners: tuple[Listener, ...] = ()
        self._row_listeners: tuple[Listener, ...] = ()  # those of them that want the events of rows, too
        self._step_listeners: tuple[StepListener, ...] = ()

    @property
    def has_listeners(self) -> bool:
        return bool(self._listeners or self._step_listeners)

    def subscribe(self, listener: Listener, *, with_rows: bool = True) -> Callable[[], None]:
        """Call `listener` with every event, on the thread where it happens; returns the way to stop that.

        with_rows: also with those of OF_ROWS, which are most of them; who listens to steps needs none.
        """
        self._listeners = (*self._listeners, listener)
        if with_rows:
            self._row_listeners = (*self._row_listeners, listener)
        return lambda: self._unsubscribe(listener)

    def subscribe_to_steps(self, listener: StepListener) -> Callable[[], None]:
        """Call `listener` after every step, on the stepping thread; returns the way to stop that.

        It may keep the plan, which nobody changes any more. Tokens are handed to clients after it returns.
        """
        self._step_listeners = (*self._step_listeners, listener)
        return lambda: self._unsubscribe(listener)

    def _unsubscribe(self, listener: Listener | StepListener) -> None:
        self._listeners = tuple(known for known in self._listeners if known != listener)
        self._row_listeners = tuple(known for known in self._row_listeners if known != listener)
        self._step_listeners = tuple(known for known in self._step_listeners if known != listener)

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
        listeners = self._row_listeners if kind in OF_ROWS else self._listeners
        if not listeners:
            return
        now = time.perf_counter() if at is None else at
        event = Event(kind, self.step, now, request_id, index, num_tokens, duration, detail)
        for listener in listeners:
            listener(event)

    def emit_step(self, plan: StepPlan, outputs: list[StepOutput] | None, started: float, ended: float) -> None:
        """A step ran this plan, and this came of it."""
        for listener in self._step_listeners:
            listener(plan, outputs, started, ended)
        if self._row_listeners:
            for item in plan.items:
                self._emit_row(item, started, ended)

    def emit_run(self, item: ScheduledSequence, started: float, ended: float) -> None:
        """A step of a single row, which has sampled a token (phase 1)."""
        if self.has_listeners:
            self.emit_step(StepPlan([item]), None, started, ended)

    def _emit_row(self, item: ScheduledSequence, started: float, ended: float) -> None:
        kind: EventKind = "decode" if item.is_decode else "chunk"
        duration = ended - started
        self.emit(kind, item.seq.request_id, item.seq.index, num_tokens=item.num_tokens, duration=duration, at=ended)

    @contextmanager
    def recording(self) -> Iterator[list[Event]]:
        """`with engine.events.recording() as events:` collects what happens inside."""
        events: list[Event] = []
        unsubscribe = self.subscribe(events.append)
        try:
            yield events
        finally:
            unsubscribe()
