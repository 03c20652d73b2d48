"""The step loop of phases 2 to 12: plan -> execute -> apply. It never changes; its three parts do.

    clients --put--> Intake --drain--> Scheduler --plan--> Runner --tokens--> Scheduler.apply --> clients

This file knows neither tensors nor policy: the scheduler decides, the runner computes.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Protocol

from shared.engine_thread import EngineThread
from shared.errors import QueueFull
from shared.events import EventLog
from shared.input_processor import InputProcessor
from shared.output import RequestOutput, StepOutput
from shared.request import Request
from shared.request_state import Deliver, RequestState
from shared.request_stream import RequestStream, results
from shared.request_table import RequestTable
from shared.sequence import Sequence
from shared.stats import EngineStats, SchedulerStats
from shared.step import SampledToken, StepPlan


class Engine(Protocol):
    """What every phase offers, 1 to 12."""

    events: EventLog

    @property
    def longest_sequence(self) -> int: ...
    def generate(self, requests: Seq[Request]) -> list[RequestOutput]: ...
    def stream(self, request: Request) -> RequestStream: ...
    def streams(self, requests: Seq[Request], *, is_patient: bool = False) -> list[RequestStream]: ...
    def submit(self, request: Request, deliver: Deliver, *, is_patient: bool = False) -> str: ...
    def submit_all(self, requests: Seq[Request], delivers: Seq[Deliver]) -> list[str]: ...
    def abort(self, request_id: str) -> None: ...
    def stats(self) -> EngineStats: ...
    def close(self) -> None: ...


class Scheduler(Protocol):
    """Owns policy: who runs, how many tokens, and whose memory. Never touches a tensor."""

    def add(self, seq: Sequence) -> None: ...
    def plan(self) -> StepPlan: ...
    def apply(self, plan: StepPlan, sampled: list[list[SampledToken]]) -> list[StepOutput]: ...
    def abort(self, seq: Sequence) -> None: ...
    def num_free_slots(self) -> int: ...
    def stats(self) -> SchedulerStats: ...


class Runner(Protocol):
    """Owns tensors: the model, the K/V, the sampling. Never decides."""

    def execute(self, plan: StepPlan) -> list[list[SampledToken]]:
        """The tokens sampled for each row of the plan; none for a row that stops short of the last known token."""

    def release(self, seq: Sequence) -> None: ...


class Intake(Protocol):
    """Where requests wait until the step loop takes them in. Safe to use from any thread."""

    def put(self, states: Seq[RequestState], *, is_patient: bool = False) -> None:
        """All or none. Raises QueueFull where there is a limit; patient callers wait for as long as it takes."""

    def drain(self, num_sequences: int) -> list[RequestState]:
        """The oldest requests, up to this many sequences (the last request may bring more)."""

    def expired(self) -> list[RequestState]:
        """Requests that have waited too long and were never scheduled."""

    def cancel(self, state: RequestState) -> bool:
        """True if the request was still here; the scheduler never sees it then."""

    def __iter__(self) -> Iterator[RequestState]:
        """Who waits here at the moment, in order."""

    def __len__(self) -> int:
        """Sequences that wait here."""


class StepEngine:
    """Serves requests by running steps (vLLM: `EngineCore`).

    Step it by hand (`add_request`, `step`), or let `generate` and `stream` do it: a thread of the
    engine's own then runs the steps for as long as there is work. One thread changes the
    engine's state; every other hands its wishes over and is answered through `deliver`.
    """

    def step(self) -> list[StepOutput]:
        """Run one step and return what it added. Raises RuntimeError while another one runs, or the engine's thread."""
        self.thread.check_may_step()
        with self._one_step():
            self._take_in()
            started = time.perf_counter()
            # BEGIN SOLUTION 2.1
            plan = self.scheduler.plan()
            sampled = self.runner.execute(plan)
            outputs = self.scheduler.apply(plan, sampled)
            self._hand_out(plan, outputs, started)
            return outputs
            # END SOLUTION

    def __init__(
        self, *, inputs: InputProcessor, intake: Intake, scheduler: Scheduler, runner: Runner, events: EventLog
    ) -> None:
        self.intake = intake
        self.scheduler = scheduler
        self.runner = runner
        self.events = events
        self.requests = RequestTable(inputs, events)
        self.thread = EngineThread(self)
        self._aborted: deque[RequestState] = deque()  # by any thread, for the stepping one
        self._stepping = threading.RLock()
        self._is_in_step = False

    # -- what clients call, from any thread -----------------------------------------------------------

    def generate(self, requests: Seq[Request]) -> list[RequestOutput]:
        """Serve requests together, however many; the answers come in the order of the requests."""
        return results(self.streams(requests, is_patient=True))

    def stream(self, request: Request) -> RequestStream:
        """Serve one request and yield its tokens step by step; closing the stream aborts it."""
        return self.streams([request])[0]

    def streams(self, requests: Seq[Request], *, is_patient: bool = False) -> list[RequestStream]:
        """Serve requests together, each with a stream of its own. As for `add_request`; all are taken, or none."""
        queues: list[SimpleQueue[StepOutput]] = [SimpleQueue() for _ in requests]
        states = self._enqueue(requests, [queue.put for queue in queues], is_patient)
        self.thread.wake()
        return [RequestStream(state, queue, self._abort) for state, queue in zip(states, queues)]

    def add_request(self, request: Request, deliver: Deliver | None = None, *, is_patient: bool = False) -> str:
        """Queue a request for the steps to come and return its id.

        deliver: called on the stepping thread with each StepOutput; must not block.
        is_patient: the caller waits for as long as it takes, so neither a queue's capacity nor its deadline apply.
        Raises InvalidRequest for what cannot be served (an id that is still in use too), QueueFull from phase 3 on.
        """
        self.thread.settle()
        return self._enqueue([request], [deliver], is_patient)[0].request_id

    def submit(self, request: Request, deliver: Deliver, *, is_patient: bool = False) -> str:
        """`add_request`, and have the engine's thread run it."""
        return self.submit_all([request], [deliver], is_patient=is_patient)[0]

    def submit_all(self, requests: Seq[Request], delivers: Seq[Deliver], *, is_patient: bool = False) -> list[str]:
        """`submit` for requests that belong together: all are taken, or none."""
        self.thread.settle()
        states = self._enqueue(requests, delivers, is_patient)
        self.thread.wake()
        return [state.request_id for state in states]

    def abort(self, request_id: str) -> None:
        """Drop a request, wherever it is; its memory is back before the next step. Unknown ids are ignored."""
        if state := self.requests.get(request_id):
            self._abort(state)

    def has_unfinished(self) -> bool:
        return len(self.requests) > 0

    def stats(self) -> EngineStats:
        now = self.scheduler.stats()
        now.num_waiting += len(self.intake)
        return self.requests.stats(now)

    @property
    def longest_sequence(self) -> int:
        """Tokens, prompt and output together: the most that any request gets here."""
        return self.requests.longest_sequence

    @property
    def implementation(self) -> Mapping[str, str]:
        """What computes, where a runner has a choice: "forward", "attention_kernel"."""
        return getattr(self.runner, "implementation", {})

    def close(self) -> None:
        """Abort what still runs and stop the thread. The engine serves nothing afterwards."""
        self.requests.close()
        self.thread.stop()
        with self._stepping:
            for state in self.requests.states():
                self._drop(state, "abort")

    def _enqueue(self, requests: Seq[Request], delivers: Seq[Deliver | None], is_patient: bool) -> list[RequestState]:
        states = self.requests.register(requests, delivers)
        try:
            self.intake.put(states, is_patient=is_patient)
        except QueueFull:
            self.requests.unregister(states)
            raise
        return states

    def _abort(self, state: RequestState) -> None:
        """At once where nobody steps; else the stepping thread does it before its next step."""
        self._aborted.append(state)
        if not self.thread.wake_if_stepping():
            with self._stepping:
                if not self._is_in_step:  # this very thread may be: a `deliver` may abort, or a stream be collected
                    self._drop_aborted()

    # -- around the three calls of a step, on the stepping thread ---------------------------------------

    def _take_in(self) -> None:
        self._drop_aborted()
        self.events.step += 1
        for state in self.intake.expired():
            self._drop(state, "timeout")
        for state in self.intake.drain(self.scheduler.num_free_slots()):
            if not state.is_finished:  # else it was ended between its registration and its way into the intake
                for seq in state.sequences:
                    self.scheduler.add(seq)

    def _hand_out(self, plan: StepPlan, outputs: list[StepOutput], started: float) -> None:
        self.requests.totals.num_steps += 1
        now = time.perf_counter()
        for item in plan.items:
            self.requests.note_scheduled(item.seq, started)
        self.events.emit_step(plan, outputs, started, now)
        for output in outputs:
            if state := self.requests.get(output.request_id):  # else a client, told just now, has closed the engine
                if output.finish_reason is not None:
                    self._release(state.sequences[output.index])
                self.requests.hand_out(output)

    def _drop_aborted(self) -> None:
        while self._aborted:
            state = self._aborted.popleft()
            if not state.is_finished:
                self._drop(state, "abort")

    def _drop(self, state: RequestState, reason: str, error: str | None = None) -> None:
        """End a request from outside, wherever it is, and take back what it holds."""
        if not self.intake.cancel(state):
            for seq in state.open_sequences:  # also who finished in a step that broke before it could say so
                self.scheduler.abort(seq)
                self._release(seq)
        self.requests.end(state, reason, error)

    def _release(self, seq: Sequence) -> None:
        self.runner.release(seq)
        self.events.emit("freed", seq.request_id, seq.index)

    @contextmanager
    def _one_step(self) -> Iterator[None]:
        """Steps never overlap. If one raises, what the scheduler has is half done, and ends; the intake waits on."""
        with self._stepping:
            if self._is_in_step:
                raise RuntimeError("a step is running, and `deliver` is called by it; step again when it is over")
            self._is_in_step = True
            try:
                yield
            except BaseException as error:
                states, waiting = self.requests.states(), set(self.intake)
                for state in states:
                    if state not in waiting:
                        self._drop(state, "error", f"{type(error).__name__}: {error}")
                raise
            finally:
                self._is_in_step = False
