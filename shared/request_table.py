"""Every request an engine knows and has not finished, and what it has done in all. Torch-free.

Both kinds of engine keep one: the lock of phase 1 and the step loop of phases 2 to 12.
"""

import threading
from collections import ChainMap
from collections.abc import Sequence as Seq

from shared.errors import EngineError, InvalidRequest
from shared.events import EventLog
from shared.input_processor import InputProcessor
from shared.output import StepOutput
from shared.request import Request
from shared.request_state import Deliver, RequestState
from shared.sequence import Sequence
from shared.stats import EngineStats, EngineTotals, SchedulerStats


class RequestTable:
    """request id -> state, from arrival to last token."""

    def __init__(self, inputs: InputProcessor, events: EventLog) -> None:
        self.totals = EngineTotals()
        self.longest_sequence = inputs.longest_sequence  # tokens
        self._inputs = inputs
        self._events = events
        self._states: dict[str, RequestState] = {}
        self._lock = threading.RLock()  # again by the same thread: a stream may be collected, and so aborted, anywhere
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._states)

    def __getitem__(self, request_id: str) -> RequestState:
        return self._states[request_id]

    def get(self, request_id: str) -> RequestState | None:
        return self._states.get(request_id)

    def states(self) -> list[RequestState]:
        with self._lock:
            return list(self._states.values())

    def register(self, requests: Seq[Request], delivers: Seq[Deliver | None]) -> list[RequestState]:
        """Check requests and keep their state: all of them, or none and the caller gets the error.

        Raises InvalidRequest (also for an id that is still in use) and, after `close`, EngineError.
        """
        with self._lock:
            if self._is_closed:
                raise EngineError("the engine is closed; build a new one")
            new: dict[str, RequestState] = {}
            in_use = ChainMap(new, self._states)
            for request, deliver in zip(requests, delivers):
                state = self._inputs.process(request, in_use)
                if state.request_id in in_use:
                    raise InvalidRequest("request_id", f"{state.request_id!r} is in use by a request that is not over")
                state.deliver = deliver
                new[state.request_id] = state
            self._states |= new
        for state in new.values():
            self._events.emit("queued", state.request_id, at=state.metrics.arrival_time)
        return list(new.values())

    def unregister(self, states: Seq[RequestState]) -> None:
        """Take back a registration that could not be followed up; who was ended meanwhile is off the table."""
        states = [state for state in states if state.open_sequences]
        with self._lock:
            for state in states:
                del self._states[state.request_id]
        for state in states:
            self._events.emit("finished", state.request_id, detail="refused")

    def note_scheduled(self, seq: Sequence, at: float) -> None:
        """A step that began `at` runs tokens of this sequence; the first one ends its request's wait."""
        metrics = self._states[seq.request_id].metrics
        if metrics.first_scheduled_time is None:
            metrics.first_scheduled_time = at
            self.totals.prompt_tokens += seq.num_prompt_tokens

    def hand_out(self, output: StepOutput) -> None:
        """Pass a step's output to its client."""
        self.totals.generated_tokens += len(output.token_ids)
        self._pass_on(self._states[output.request_id], output)

    def end(self, state: RequestState, reason: str, error: str | None = None) -> None:
        """Finish a request from outside: "abort", "timeout" or "error"."""
        state.end(reason)
        while state.open_sequences:  # not `for`: a client that is told may close the engine, which ends the others
            index = state.open_sequences[0].index
            self._pass_on(state, StepOutput(state.request_id, index, [], "", reason, error=error))

    def close(self) -> None:
        """Take no more requests."""
        with self._lock:
            self._is_closed = True

    def stats(self, now: SchedulerStats) -> EngineStats:
        return EngineStats.of(now, self.totals, num_requests=len(self))

    def _pass_on(self, state: RequestState, output: StepOutput) -> None:
        """The last one takes the request off the table first: who is told that it is over finds it over."""
        state.note(output)
        if not state.open_sequences:
            self._forget(state)
        state.tell(output)

    def _forget(self, state: RequestState) -> None:
        reason = state.sequences[-1].finish_reason or "abort"
        with self._lock:
            del self._states[state.request_id]
            self.totals.requests_finished[reason] += 1
        self._events.emit("finished", state.request_id, num_tokens=state.metrics.num_output_tokens, detail=reason)
