"""A request inside an engine: its sequences, its times, and who is told about its tokens. Torch-free."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from shared.output import CompletionOutput, RequestMetrics, RequestOutput, StepOutput
from shared.request import Request
from shared.sequence import Sequence

log = logging.getLogger(__name__)

Deliver = Callable[[StepOutput], None]


@dataclass(slots=True, eq=False)
class RequestState:
    """One request is one unit of delivery and of cancellation, whatever its `n` (vLLM: `RequestState`)."""

    request_id: str
    request: Request
    sequences: list[Sequence]
    metrics: RequestMetrics
    deliver: Deliver | None = None  # called with every output, on the thread that made it
    abort_requested: bool = False  # by any thread; the one that runs the request acts on it
    errors: list[str] = field(default_factory=list)
    last_times: dict[int, float] = field(default_factory=dict)  # completion -> when its last token was handed out
    open_sequences: list[Sequence] = field(init=False)  # whose last output has not been handed out

    def __post_init__(self) -> None:
        self.open_sequences = list(self.sequences)

    @property
    def is_finished(self) -> bool:
        return all(seq.is_finished for seq in self.sequences)

    @property
    def _num_cached_tokens(self) -> int:
        return self.sequences[0].num_cached_tokens or 0

    def note(self, output: StepOutput) -> None:
        """Stamp one step's output and keep the times. Called once per sequence and step, before `tell`."""
        output.time = time.perf_counter()
        output.num_cached_tokens = self._num_cached_tokens
        metrics = self.metrics
        if output.token_ids:
            self._note_tokens(output)
        if output.error:
            self.errors.append(output.error)
        if output.finish_reason is not None:
            self.open_sequences.remove(self.sequences[output.index])
        if not self.open_sequences:  # several may finish in one step: only the last one's output ends the request
            metrics.finish_time = output.time
            metrics.num_cached_tokens = output.num_cached_tokens
            output.metrics = metrics

    def _note_tokens(self, output: StepOutput) -> None:
        metrics, last_time = self.metrics, self.last_times.get(output.index)
        metrics.num_output_tokens += len(output.token_ids)
        metrics.num_gaps += len(output.token_ids) - (last_time is None)
        metrics.gaps_s += 0.0 if last_time is None else output.time - last_time
        metrics.last_token_time = self.last_times[output.index] = output.time
        if metrics.first_token_time is None:
            metrics.first_token_time = output.time

    def tell(self, output: StepOutput) -> None:
        """A client's callback that raises is the client's loss: it is not called again, and nobody else is harmed."""
        if self.deliver is None:
            return
        try:
            self.deliver(output)
        except BaseException:
            log.exception("the callback of %s raised; it gets nothing more", self.request_id)
            self.deliver = None

    def end(self, reason: str) -> None:
        """Finish from outside (abort, timeout, error) what the client does not know to be over."""
        for seq in self.open_sequences:
            seq.finish(reason)

    def output(self) -> RequestOutput:
        """The whole answer, as far as it has come."""
        return RequestOutput(
            request_id=self.request_id,
            prompt_token_ids=list(self.request.prompt_token_ids),
            outputs=[_completion(seq) for seq in self.sequences],
            metrics=self.metrics,
            num_cached_tokens=self._num_cached_tokens,
            errors=self.errors,
        )


def _completion(seq: Sequence) -> CompletionOutput:
    return CompletionOutput(
        index=seq.index,
        token_ids=seq.output_token_ids,
        text=seq.text_stream.text,
        finish_reason=seq.finish_reason or "abort",
        logprobs=seq.logprobs if seq.params.logprobs is not None else None,
    )
