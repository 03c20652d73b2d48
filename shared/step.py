"""The records that flow through one step: plan -> execute -> apply. Torch-free."""

from dataclasses import dataclass, field

from shared.output import TokenLogprobs
from shared.sequence import Sequence


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """One row of a plan: run the next `num_tokens` uncomputed tokens of `seq`, then `draft`.

    `num_computed_tokens` is the progress before the step, kept here because `apply` moves it on.
    """

    seq: Sequence
    num_tokens: int
    num_computed_tokens: int
    draft: tuple[int, ...] = ()  # guesses to verify in the same pass (phase 12)

    @classmethod
    def next_tokens(cls, seq: Sequence, num_tokens: int) -> "ScheduledSequence":
        return cls(seq, num_tokens, seq.num_computed_tokens)

    @property
    def token_ids(self) -> list[int]:
        """The tokens to run, drafts left out."""
        return self.seq.token_ids[self.num_computed_tokens : self.num_computed_tokens + self.num_tokens]

    @property
    def run_token_ids(self) -> list[int]:
        """The tokens to run, drafts included."""
        return [*self.token_ids, *self.draft]

    @property
    def num_run_tokens(self) -> int:
        return self.num_tokens + len(self.draft)

    @property
    def is_sampled(self) -> bool:
        """Only a row that reaches the last known token yields a new one."""
        return self.num_computed_tokens + self.num_tokens == len(self.seq.token_ids)

    @property
    def is_decode(self) -> bool:
        return self.num_tokens == 1 and self.num_computed_tokens >= self.seq.num_prompt_tokens


@dataclass(slots=True)
class StepPlan:
    """What one step runs (vLLM: `SchedulerOutput`). Prints as a table."""

    items: list[ScheduledSequence] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(item.num_run_tokens for item in self.items)

    def __bool__(self) -> bool:
        return bool(self.items)

    def __str__(self) -> str:
        rows = [f"{'sequence':<12} {'kind':<8} {'tokens':>6}  positions   samples"]
        for item in self.items:
            start, end = item.num_computed_tokens, item.num_computed_tokens + item.num_run_tokens
            kind = "verify" if item.draft else "decode" if item.is_decode else "prefill"
            rows.append(
                f"{item.seq.name:<12} {kind:<8} {end - start:>6}  {f'[{start}, {end})':<11} "
                f"{'yes' if item.is_sampled else 'no'}"
            )
        rows.append(f"{len(self.items)} sequences, {self.num_tokens} tokens")
        return "\n".join(rows)


@dataclass(slots=True)
class SampledToken:
    """A token that the runner chose.

    logprobs: only where the request asked for them. draft: guesses at the tokens after it (phase 12), on a step's last.
    error: why there was nothing to choose from; the sequence ends here, and `token_id` means nothing.
    """

    token_id: int
    logprobs: TokenLogprobs | None = None
    draft: tuple[int, ...] = ()
    error: str | None = None
