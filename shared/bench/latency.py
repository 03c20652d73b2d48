"""What a run looked like to its clients: throughput and latencies, in seconds.

An undefined figure (no token, one token only) is None, never 0.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's tokens. token_times: when each came out, in seconds since the requests were handed over.

    arrival: when it was handed over itself, on the same clock; 0 where all came at once.
    """

    token_ids: list[int]
    token_times: list[float]
    arrival: float = 0.0


@dataclass(frozen=True, slots=True)
class Served:
    """What a system made of some requests, in their order, and how long it took.

    counters: figures of its own, such as preemptions; a system has only those that mean something for it.
    """

    seconds: float
    answers: list[Answer]
    counters: dict[str, float | int | None] = field(default_factory=dict)

    @property
    def num_output_tokens(self) -> int:
        return sum(len(answer.token_ids) for answer in self.answers)


def latencies(answers: Seq[Answer]) -> dict[str, float | None]:
    """The percentiles that are kept of a run: over requests for TTFT and TPOT, over all gaps for ITL."""
    ttft = [answer.token_times[0] for answer in answers if answer.token_times]
    tpot = [value for answer in answers if (value := tpot_s(answer)) is not None]
    itl = [gap for answer in answers for gap in inter_token_s(answer)]
    return {
        "ttft_p50_s": percentile(ttft, 50),
        "ttft_p99_s": percentile(ttft, 99),
        "tpot_p50_s": percentile(tpot, 50),
        "itl_p99_s": percentile(itl, 99),
    }


def tpot_s(answer: Answer) -> float | None:
    """Time per output token after the first; None below two tokens."""
    times = answer.token_times
    return None if len(times) < 2 else (times[-1] - times[0]) / (len(times) - 1)


def inter_token_s(answer: Answer) -> list[float]:
    """The gap before each token but the first. Tokens that came together share the gap before them."""
    moments, num_tokens = np.unique(np.array(answer.token_times), return_counts=True)
    if len(moments) < 2:
        return []
    return np.repeat(np.diff(moments) / num_tokens[1:], num_tokens[1:]).tolist()


def percentile(values: Seq[float], percent: float) -> float | None:
    """Interpolated between neighbours, as numpy does it; None of nothing."""
    return float(np.percentile(values, percent)) if values else None
