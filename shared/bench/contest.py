"""Alternating rounds: system 1, 2, 3, 3, 2, 1, 1, ..., so that figures to be compared lie close together in time.

Every other round goes backwards: no system always has the same one before it.
"""

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from shared.bench.competitor import Competitor
from shared.bench.cpu_clock import CpuClock
from shared.bench.latency import Answer
from shared.bench.results import Figures
from shared.bench.workloads import Workload
from shared.request import Request

Round = dict[str, Figures]  # system name -> what was measured


@dataclass(frozen=True, slots=True)
class Contest:
    """Some systems under one workload.

    num_requests: system name -> how many of the workload's requests it runs, the first ones.
    warm_up: what each system serves before the rounds. expected: the right tokens of each request.
    figures: what is made of a run's answers. announce: called before each run.
    """

    workload: Workload
    workers: Seq[Competitor]
    num_requests: Mapping[str, int]
    warm_up: Seq[Request]
    expected: Seq[Seq[int]]
    figures: Callable[[Seq[Answer]], Mapping[str, float | int | None]]
    announce: Callable[[str], None]

    def rounds(self, num_rounds: int) -> Iterator[Round]:
        """Warm every system up once, then yield each round when all of them have run."""
        for worker in self.workers:
            self.announce(f"{self.workload.label}: warm-up, {worker.spec.name}")
            worker.serve(self.warm_up)
        for number in range(1, num_rounds + 1):
            order = self.workers if number % 2 else self.workers[::-1]
            yield {worker.spec.name: self._run(worker, f"round {number} of {num_rounds}") for worker in order}

    def _run(self, worker: Competitor, which: str) -> Figures:
        self.announce(f"{self.workload.label}: {which}, {worker.spec.name}")
        requests = self.workload.requests[: self.num_requests[worker.spec.name]]
        before = CpuClock.now()
        served, peak_rss_bytes = worker.serve(requests)
        return {
            "seconds": served.seconds,
            "output_tokens": served.num_output_tokens,
            **self.figures(served.answers),
            **served.counters,
            "peak_rss_bytes": peak_rss_bytes,
            "num_exact": num_exact(served.answers, self.expected),
            "other_cpu_share": CpuClock.now().other_share_since(before),
        }


def num_exact(answers: Seq[Answer], expected: Seq[Seq[int]]) -> int:
    """How many requests got exactly the tokens they should."""
    return sum(answer.token_ids == list(tokens) for answer, tokens in zip(answers, expected))
