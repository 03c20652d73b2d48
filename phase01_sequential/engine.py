"""Phase 1: prefill -> decode over the Hugging Face cache, one request at a time.

Whoever comes while another request runs waits for the whole of it. Time to first token counts that wait.
"""

import atexit
import threading
import time
import weakref
from collections.abc import Sequence as Seq
from queue import SimpleQueue
from typing import Any

import torch

from phase01_sequential.turnstile import Turnstile
from shared.completion import accept_tokens
from shared.config import EngineConfig
from shared.engine_setup import resolve_for_model
from shared.events import EventLog
from shared.hf_forward import forward_sequence, new_cache
from shared.input_processor import InputProcessor
from shared.output import RequestOutput, StepOutput
from shared.prompt_logprobs import prompt_scorer
from shared.request import Request
from shared.request_state import Deliver, RequestState
from shared.request_stream import RequestStream, results
from shared.request_table import RequestTable
from shared.sampler import Sampler
from shared.sequence import Sequence, Status
from shared.stats import EngineStats, SchedulerStats
from shared.step import ScheduledSequence


def build_engine(
    model: Any,
    config: EngineConfig,
    tokenizer: Any = None,
    draft_model: Any = None,  # noqa: ARG001 - for phase 12
) -> "SequentialEngine":
    """The whole of phase 1: a model, a sampler, and a lock around the two."""
    config = resolve_for_model(config, model)
    return SequentialEngine(model=model, sampler=Sampler(), inputs=InputProcessor(model, config, tokenizer))


class SequentialEngine:
    """A thread per request, and one lock that all of them need."""

    def _serve(self, state: RequestState) -> None:
        """The life of a request, on a thread of its own: wait for the lock, run to the end, give the lock back."""
        with self._turnstile.turn(state, is_cancelled=lambda: state.abort_requested):
            try:
                for seq in state.sequences:
                    self._generate(seq, state)
            except BaseException as error:  # SystemExit, too: whatever it was, somebody waits to be told
                self.requests.end(state, "error", f"{type(error).__name__}: {error}")
            if not state.is_finished:
                self.requests.end(state, "abort")

    def _generate(self, seq: Sequence, state: RequestState) -> None:
        """Prefill is the first turn of the loop: the whole prompt is uncomputed. Every later turn is a decode."""
        cache = new_cache()
        while not (seq.is_finished or state.abort_requested):
            started = time.perf_counter()
            item = ScheduledSequence.next_tokens(seq, seq.num_uncomputed_tokens)
            # BEGIN SOLUTION 1.1
            with torch.inference_mode():
                logits = forward_sequence(self.model, item.token_ids, cache, prompt_scorer(item))  # [V]
                token = self.sampler.sample(logits[None], [seq])[0]  # from [1, V]
            self._note_run(item, started)
            seq.num_computed_tokens += item.num_tokens
            self.requests.hand_out(accept_tokens(seq, [token]))
            # END SOLUTION

    def __init__(self, *, model: Any, sampler: Sampler, inputs: InputProcessor) -> None:
        self.model = model
        self.sampler = sampler
        self.events = EventLog()
        self.requests = RequestTable(inputs, self.events)
        self._turnstile = Turnstile()
        atexit.register(_close_if_alive, weakref.ref(self))

    def generate(self, requests: Seq[Request]) -> list[RequestOutput]:
        """Serve requests one after another; all of them arrived now. The answers come in order."""
        return results(self.streams(requests))

    def stream(self, request: Request) -> RequestStream:
        """Serve one request and yield its tokens one by one; closing the stream ends it and frees the lock."""
        return self.streams([request])[0]

    def streams(self, requests: Seq[Request], *, is_patient: bool = True) -> list[RequestStream]:  # noqa: ARG002
        """A stream for each request; they are served in this order. Here everyone has to be patient."""
        queues: list[SimpleQueue[StepOutput]] = [SimpleQueue() for _ in requests]
        states = self._start(requests, [queue.put for queue in queues])
        return [RequestStream(state, queue, self._abort) for state, queue in zip(states, queues)]

    def submit(self, request: Request, deliver: Deliver, *, is_patient: bool = True) -> str:  # noqa: ARG002
        """Join the line; `deliver` is called with each StepOutput, on the request's own thread."""
        return self.submit_all([request], [deliver])[0]

    def submit_all(self, requests: Seq[Request], delivers: Seq[Deliver]) -> list[str]:
        """`submit` for requests that belong together: all join the line, or none."""
        return [state.request_id for state in self._start(requests, delivers)]

    def abort(self, request_id: str) -> None:
        """Take a request out of the line, or end it before its next token. Unknown ids are ignored."""
        if state := self.requests.get(request_id):
            self._abort(state)

    @property
    def longest_sequence(self) -> int:
        """Tokens, prompt and output together: the most that any request gets here."""
        return self.requests.longest_sequence

    def stats(self) -> EngineStats:
        statuses = [state.sequences[0].status for state in self.requests.states()]
        num_waiting = statuses.count(Status.WAITING)
        return self.requests.stats(SchedulerStats(num_waiting=num_waiting, num_running=len(statuses) - num_waiting))

    def close(self) -> None:
        """Abort what still runs or waits. The engine serves nothing afterwards."""
        self.requests.close()
        for state in self.requests.states():
            self._abort(state)
        self._turnstile.wait_until_empty()

    def _start(self, requests: Seq[Request], delivers: Seq[Deliver]) -> list[RequestState]:
        states = self.requests.register(requests, delivers)
        for state in states:
            self._turnstile.join(state)  # here and not on the thread: first called, first served
            try:
                threading.Thread(target=self._serve, args=(state,), name=state.request_id, daemon=True).start()
            except RuntimeError as error:  # the system has no more threads to give
                self._turnstile.leave(state)
                self.requests.end(state, "error", str(error))
        return states

    def _abort(self, state: RequestState) -> None:
        state.abort_requested = True
        self._turnstile.wake()

    def _note_run(self, item: ScheduledSequence, started: float) -> None:
        now = time.perf_counter()
        self.events.step += 1
        self.requests.totals.num_steps += 1
        self.requests.note_scheduled(item.seq, started)
        if item.num_computed_tokens == 0:
            item.seq.status = Status.RUNNING
            self.events.emit("admitted", item.seq.request_id, item.seq.index, at=started)
        self.events.emit_run(item, started, now)


def _close_if_alive(engine: "weakref.ref[SequentialEngine]") -> None:
    """At exit: threads in the middle of a forward pass must end before the interpreter does."""
    if (alive := engine()) is not None:
        alive.close()
