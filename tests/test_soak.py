"""A server process under a mixed load, for long enough to show what it keeps: a minute here, half an hour as

    python -m pytest -m slow tests/test_soak.py

(`PAGESERVE_SOAK_MINUTES=5` makes that shorter or longer). Each ends with the figures for `tests/README.md`.
"""

import asyncio
import math
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx
import numpy as np
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from shared.bench.load.server_process import ServerProcess
from shared.registry import newest_phase
from shared.tiny_models import tiny_llama
from tests.helpers import letter_tokenizer, wait_until
from tests.server_helpers import chatting
from tests.soak_load import KINDS, Plan, Seen, make_plan, put_under_load
from tests.test_guards import ROOT

MB = 1e6
SHORT_S = 60.0
MINUTES = int(os.environ.get("PAGESERVE_SOAK_MINUTES", "30"))
POOL = {  # too small for everybody, so that somebody is always preempted; some fit into host memory, some do not
    **{"kv-block-size": 8, "kv-num-blocks": 64, "swap-num-blocks": 12, "max-batch-size": 8},
    **{"prefill-budget-tokens": 64, "prefill-chunk-size": 32, "speculative-method": "ngram"},
}


@dataclass
class Soak:
    """What is left of one: the clients' side, the server's memory in bytes over seconds, its metrics in the end.

    pace: minute from 0 on -> seconds that always the same computation took: a machine whose neighbours are busy is
    slower for everybody.
    """

    seconds: float
    seen: Seen = field(default_factory=Seen)
    memory: list[tuple[float, int]] = field(default_factory=list)
    pace: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    metrics: dict[str, float] = field(default_factory=dict)

    def memory_growth(self, warm_up_s: float) -> float:
        """Bytes per second after the warm-up: the slope of the line that fits best."""
        seconds, sizes = np.array([sample for sample in self.memory if sample[0] >= warm_up_s]).T
        return float(np.polyfit(seconds, sizes, 1)[0])

    def memory_gained(self, warm_up_s: float, window_s: float = 10.0) -> float:
        """Bytes between the medians of the first and the last seconds after the warm-up."""

        def median(start: float) -> float:
            return statistics.median(size for at, size in self.memory if start <= at < start + window_s)

        return median(self.memory[-1][0] - window_s) - median(warm_up_s)

    def p99_gap(self, minute: int) -> float:
        """Seconds between two events of a probe's stream, 99 of 100 no longer, in that minute, counted from 0."""
        return float(np.percentile(self.seen.gaps[minute] or [math.nan], 99))

    def machine_slowed(self, minute: int, since: int) -> float:
        """How many times longer the same computation takes than in that other minute."""
        return statistics.median(self.pace[minute]) / statistics.median(self.pace[since])

    def line(self, at: float) -> str:
        seen = self.seen
        size = self.memory[-1][1] / MB if self.memory else 0.0
        minute = max(0, int(at // 60) - 1)  # the last whole one
        gap, pace = self.p99_gap(minute) * 1e3, statistics.median(self.pace[minute]) * 1e3
        return (
            f"{at:5.0f} of {self.seconds:.0f} s: {seen.counts.total()} requests, {seen.num_compared} compared, "
            f"{len(seen.failures)} wrong, {size:.1f} MB, "
            f"p99 of the gaps {gap:.1f} ms, always the same loop {pace:.2f} ms"
        )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Plan]]:
    """A model whose greedy output repeats, and what it says."""
    folder, tokenizer = tmp_path_factory.mktemp("soak"), chatting(letter_tokenizer(vocab_size=97))
    tiny_llama(seed=7, initializer_range=0.1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    options = [text for name, value in POOL.items() for text in (f"--{name}", str(value))]
    options += ["--model", str(folder), "--dtype", "float64", "--live-page"]
    plan = make_plan(tiny_llama(seed=7, initializer_range=0.1), tokenizer)
    with ServerProcess("soak", newest_phase().package, options, ROOT, {"OMP_NUM_THREADS": "1"}) as server:
        yield server, plan


def run_soak(server: ServerProcess, plan: Plan, seconds: float, show: Callable[[str], None]) -> Soak:
    soak, process = Soak(seconds), psutil.Process(server.pid)

    def tick(at: float) -> None:
        soak.memory.append((at, process.memory_info().rss))
        soak.pace[int(at // 60)].append(seconds_of_a_loop())
        show(soak.line(at))

    tokenizer = letter_tokenizer(vocab_size=97)
    asyncio.run(put_under_load(server.url, plan, tokenizer, seconds, soak.seen, tick))
    wait_until(lambda: read_metrics(server)["pageserve_num_requests"] == 0)
    soak.metrics = read_metrics(server)
    return soak


def seconds_of_a_loop() -> float:
    started = time.perf_counter()
    sum(range(100_000))
    return time.perf_counter() - started


def read_metrics(server: ServerProcess) -> dict[str, float]:
    """Name with labels -> value."""
    text = httpx.get(f"{server.url}/metrics", trust_env=False).text
    return {
        sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def check_answers(soak: Soak) -> None:
    assert soak.seen.failures == []
    for kind in KINDS:
        assert soak.seen.counts[kind.__name__] >= 5, kind.__name__
    assert soak.seen.num_compared > 100
    found = soak.metrics
    assert not [name for name in found if name.startswith("pageserve_http_requests_total") and "[5" in name]
    assert found.get("pageserve_requests_finished_total[error]", 0) == 0
    for name in ("num_preemptions", "num_recomputed_tokens", "num_prefix_hit_tokens", "num_accepted_tokens"):
        assert found[f"pageserve_{name}_total"] > 0, f"the load never came to {name}"
    assert found["pageserve_requests_finished_total[abort]"] > 0


def check_nothing_is_held(soak: Soak) -> None:
    found = soak.metrics
    assert found["pageserve_num_waiting"] == found["pageserve_num_running"] == found["pageserve_num_swapped"] == 0
    assert found["pageserve_kv_blocks_free"] == found["pageserve_kv_blocks_total"] == POOL["kv-num-blocks"]
    assert found["pageserve_swap_blocks_used"] == 0


def report(soak: Soak, warm_up_s: float) -> str:
    rate = soak.memory_growth(warm_up_s) * 60 / MB
    return (
        f"{soak.seen.counts.total()} requests in {soak.seconds:.0f} s, {soak.seen.num_compared} of them compared with "
        f"generate(), {len(soak.seen.failures)} wrong; {soak.metrics['pageserve_num_preemptions_total']:.0f} "
        f"preemptions; memory {soak.memory[-1][1] / MB:.0f} MB, growing {rate:+.2f} MB/min after {warm_up_s:.0f} s "
        f"({soak.memory_gained(warm_up_s) / MB:+.1f} MB in all)"
    )


def test_a_minute_of_everything_leaves_nothing_behind(
    served: tuple[ServerProcess, Plan], capfd: pytest.CaptureFixture[str]
) -> None:
    """Too short for a slope: the allocator alone moves by more. What each request kept would add up all the same."""
    with capfd.disabled():
        soak = run_soak(*served, SHORT_S, Progress(10))
        print(f"\nsoak: {report(soak, 20)}", flush=True)
    check_answers(soak)
    check_nothing_is_held(soak)
    assert soak.memory_gained(warm_up_s=20) < 3 * MB


@pytest.mark.slow
@pytest.mark.timeout(MINUTES * 60 + 300)
def test_half_an_hour_is_like_its_second_minute(
    served: tuple[ServerProcess, Plan], capfd: pytest.CaptureFixture[str]
) -> None:
    with capfd.disabled():
        soak = run_soak(*served, MINUTES * 60, Progress(60))
        second, last = soak.p99_gap(1), soak.p99_gap(MINUTES - 1)
        slowed = soak.machine_slowed(MINUTES - 1, since=1)
        times = f"p99 of the probe's gaps {second * 1e3:.1f} ms in minute 2, {last * 1e3:.1f} ms in the last, "
        times += f"the machine {slowed:.2f} times as slow"
        print(f"\nsoak: {report(soak, 120)}; {times}", flush=True)
    check_answers(soak)
    check_nothing_is_held(soak)
    assert soak.memory_growth(warm_up_s=120) * 60 < 1 * MB
    assert last <= 1.1 * slowed * second, f"{times}: or was the soak not alone on it?"


class Progress:
    """One live line on a terminal; in a log, a line every so many seconds."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._next = time.perf_counter() + every_s

    def __call__(self, line: str) -> None:
        if sys.stdout.isatty():
            print(f"\r\033[K{line}", end="", flush=True)
        elif time.perf_counter() >= self._next:
            self._next += self._every_s
            print(f"\nsoak: {line}", end="", flush=True)
