"""From an engine's events to one line per request on a shared clock: queued, prefill, decode. Torch-free.

req-1  ▒███████
req-2  ·······▒███████
"""

from collections.abc import Iterable
from dataclasses import dataclass

from shared.events import Event

QUEUED, PREFILL, DECODE = "·", "▒", "█"  # told apart without colour
LEGEND = f"{QUEUED} queued  {PREFILL} prefill  {DECODE} decode"


@dataclass(slots=True)
class RequestTimeline:
    """When a request changed from one state to the next; seconds of the events' clock, None if it never did."""

    request_id: str
    arrived: float
    prefill_started: float | None = None
    prefill_ended: float | None = None
    has_decoded: bool = False  # what is computed again after a preemption is no second prefill
    finished: float | None = None

    def state_at(self, time: float) -> str:
        """The character to draw for this moment; a space before arrival and after the end."""
        if time < self.arrived or (self.finished is not None and time >= self.finished):
            return " "
        if self.prefill_started is None or time < self.prefill_started:
            return QUEUED
        if self.prefill_ended is None or time < self.prefill_ended:
            return PREFILL
        return DECODE


def timelines(events: Iterable[Event]) -> list[RequestTimeline]:
    """One per request, in order of arrival."""
    known: dict[str, RequestTimeline] = {}  # request id -> timeline
    for event in events:
        if event.kind == "queued":
            known[event.request_id] = RequestTimeline(event.request_id, event.time)
        elif event.request_id in known:
            _note(known[event.request_id], event)
    return list(known.values())


def _note(line: RequestTimeline, event: Event) -> None:
    if event.kind == "decode":
        line.has_decoded = True
    elif event.kind == "chunk" and not line.has_decoded:
        if line.prefill_started is None:
            line.prefill_started = event.time - event.duration
        line.prefill_ended = event.time
    elif event.kind == "finished":
        line.finished = event.time


def draw(line: RequestTimeline, *, start: float, seconds_per_cell: float, width: int) -> str:
    """One character per cell of time; a prefill is shown even if it is shorter than a cell."""
    middles = [start + (cell + 0.5) * seconds_per_cell for cell in range(width)]
    cells = [line.state_at(time) for time in middles]
    if line.prefill_started is not None and PREFILL not in cells:
        cells[min(width - 1, int((line.prefill_started - start) / seconds_per_cell))] = PREFILL
    return "".join(cells).rstrip()
