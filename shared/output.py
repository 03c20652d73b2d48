"""What comes back to a client: per step, and in the end. Torch-free.

Finish reasons: "stop" (EOS, a stop id or a stop string), "length" (max_tokens, or the model's
longest sequence), "abort", "timeout" (waited too long in the queue), "error".
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log-probabilities at one position, of the model's own distribution.

    logprob: of the token that was taken. top: token id -> logprob, the most likely first.
    """

    token_id: int
    logprob: float
    top: dict[int, float]


@dataclass(slots=True)
class StepOutput:
    """What one step added to one sequence; `finish_reason` is set on its last."""

    request_id: str
    index: int
    token_ids: list[int]
    text: str  # may be empty while a character or a possible stop string is incomplete
    finish_reason: str | None = None
    logprobs: list[TokenLogprobs] | None = None  # one per token id, if asked for
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # on the first output, if asked for
    error: str | None = None  # with finish_reason "error"
    failed_alone: bool = False  # with an error that is this sequence's own: its neighbours in the step go on
    time: float = 0.0  # seconds, time.perf_counter(); set when the engine hands it out
    num_cached_tokens: int = 0  # of its request's prompt; set when the engine hands it out
    metrics: "RequestMetrics | None" = None  # set on the last output of the whole request


@dataclass(slots=True)
class CompletionOutput:
    """One finished completion. The EOS or stop id is in `token_ids`, and not in `text`."""

    index: int
    token_ids: list[int]
    text: str
    finish_reason: str
    logprobs: list[TokenLogprobs] | None = None


@dataclass(slots=True)
class RequestMetrics:
    """Times of one request in seconds on one clock (time.perf_counter); None until it happened.

    arrival_time: when the engine got it, as token ids. What a server did with it before that does not count.
    """

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finish_time: float | None = None
    num_output_tokens: int = 0  # of all completions
    num_gaps: int = 0  # tokens that followed another one of their completion
    gaps_s: float = 0.0  # from each completion's first token to its last, all completions added up
    num_cached_tokens: int = 0  # prompt tokens whose K/V came from the prefix cache (phase 12)

    @property
    def queue_s(self) -> float | None:
        """From arrival to the first step that held the request."""
        return None if self.first_scheduled_time is None else self.first_scheduled_time - self.arrival_time

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, the wait in the queue included."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after a completion's first; None where no completion has two tokens.

        Of one completion: (last - first) / (tokens - 1). Of several: the mean over their gaps.
        """
        return self.gaps_s / self.num_gaps if self.num_gaps else None

    @property
    def e2e_s(self) -> float | None:
        return None if self.finish_time is None else self.finish_time - self.arrival_time


@dataclass(slots=True)
class RequestOutput:
    """The whole answer to one request: `n` completions."""

    request_id: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    metrics: RequestMetrics
    num_cached_tokens: int = 0  # prompt tokens whose K/V came from the prefix cache (phase 12)
    errors: list[str] = field(default_factory=list)

    @property
    def token_ids(self) -> list[int]:
        return self._only.token_ids

    @property
    def text(self) -> str:
        return self._only.text

    @property
    def finish_reason(self) -> str:
        return self._only.finish_reason

    @property
    def _only(self) -> CompletionOutput:
        if len(self.outputs) != 1:
            raise AttributeError(f"the request asked for n={len(self.outputs)}; read .outputs[i]")
        return self.outputs[0]
