"""What the engine knows about one running completion. Torch-free.

    token_ids            [ prompt .......... | generated ...... ]
    num_computed_tokens  [ has K/V ............... | not yet    ]
                                                     ^ run next: num_uncomputed_tokens

One number holds the progress. A prefill chunk, a decode step and a recompute after preemption
are the same thing: run some of the uncomputed tokens.
"""

from dataclasses import dataclass, field
from enum import Enum

from shared.output import TokenLogprobs
from shared.request import Request, SamplingParams
from shared.text_stream import NullTextStream, TextStream


class Status(Enum):
    """Where a sequence is. Prefilling or decoding is no status: the progress number tells."""

    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One completion of a request (vLLM: `Request`, one per sample).

    Invariant: 0 <= num_computed_tokens <= len(token_ids); between steps, a running sequence that
    is decoding has exactly one uncomputed token, the one sampled last.
    """

    request_id: str
    index: int  # which of the request's n completions
    request: Request
    token_ids: list[int]  # prompt, then generated
    seed: int  # the request's, or one drawn for it
    eos_token_ids: frozenset[int]  # empty under ignore_eos
    max_num_tokens: int  # prompt plus output may not grow past this
    text_stream: TextStream | NullTextStream = field(default_factory=NullTextStream)
    arrival: int = 0  # its number in the scheduler's line (phase 9)
    num_computed_tokens: int = 0  # tokens that have K/V
    num_known_tokens: int = 0  # found in the prefix cache when it arrived (phase 12)
    num_cached_tokens: int | None = None  # of these, still there when it was first admitted
    status: Status = Status.WAITING
    finish_reason: str | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=lambda: [None])  # nothing predicts the first
    draft: list[int] = field(default_factory=list)  # guesses at the next tokens (phase 12)

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def is_decoding(self) -> bool:
        """Past its prompt, and only the token sampled last is left to run."""
        return self.num_output_tokens > 0 and self.num_uncomputed_tokens == 1

    @property
    def is_finished(self) -> bool:
        return self.status is Status.FINISHED

    @property
    def name(self) -> str:
        """How tables and pictures call it: the request id, with the index where n > 1."""
        return self.request_id if self.params.n == 1 else f"{self.request_id}/{self.index}"

    def finish(self, reason: str) -> None:
        self.status = Status.FINISHED
        self.finish_reason = reason
