"""What a late long prompt does to the streams that run already: the gaps between their tokens, in seconds.

      arrival             the long prompt's first token
         [-- the window --]
|--gap--|                       does not count
    |---gap---|---gap----|      count, whole: they overlap the window
     |----------gap----------|  counts, whole
                          |gap| does not
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import pairwise

from shared.bench.latency import Answer, percentile


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which a stream gets nothing: from one token, or several that come together, to the next."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def overlaps(self, start: float, end: float) -> bool:
        """For more than a moment; to touch is not to overlap."""
        return self.start < end and start < self.end


def gaps(answer: Answer) -> Iterator[Gap]:
    """Between all of a request's tokens."""
    return (Gap(start, end) for start, end in pairwise(sorted(set(answer.token_times))))


def gap_figures(answers: Seq[Answer]) -> dict[str, float | None]:
    """Percentiles over the gaps of all streams together, before the long prompt came and while it was prefilled.

    answers: the streams', then the long prompt's. Before: from when all streams have their first token.
    """
    *streams, late = answers
    first_token = late.token_times[0]
    all_run = max(stream.token_times[0] for stream in streams)
    of_streams = [gap for stream in streams for gap in gaps(stream)]
    before = [gap.seconds for gap in of_streams if all_run <= gap.start and gap.end <= late.arrival]
    during = [gap.seconds for gap in of_streams if gap.overlaps(late.arrival, first_token)]
    return {
        "gap_before_p50_s": percentile(before, 50),
        "gap_p50_s": percentile(during, 50),
        "gap_p99_s": percentile(during, 99),
        "gap_max_s": max(during, default=None),
        "num_gaps": len(during),
        "late_ttft_s": first_token - late.arrival,
    }
