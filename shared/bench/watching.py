"""`python -m shared.bench watching`: what a step costs more while somebody watches, or records.

Steps without a model, as in `step-cost`, in short turns: unwatched, watched, unwatched, ... While watched, a thread
takes what comes and writes it down 20 times a second, as the server and `--record` do.
"""

import threading
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from queue import SimpleQueue
from statistics import fmean, median
from typing import Any

from shared.bench.results import Figures, SystemResult
from shared.bench.step_cost import NUM_WARM_UP_STEPS, StepCostCase, endless, instant_engine, timed
from shared.trace.encode import Encoder, to_line
from shared.trace.tap import Tap

STEPS_PER_TURN = 500  # some tenths of a second: the writing thread has its turns, too
WRITE_EVERY_S = 0.05


def run_watching(
    cases: Seq[StepCostCase], num_steps: int, num_rounds: int, announce: Callable[[str], None]
) -> list[SystemResult]:
    """Measure all cases, phases from 2 on, in each round."""
    repeats: dict[str, list[Figures]] = {case.name: [] for case in cases}
    for number in range(1, num_rounds + 1):
        for case in cases:
            announce(f"round {number} of {num_rounds}: {case.label}")
            repeats[case.name].append(_measured(case, num_steps))
    code = ["shared/trace/tap.py", "shared/trace/encode.py"]
    return [
        SystemResult(case.name, case.label, repeats[case.name], code=[f"{case.phase.package}/engine.py", *code])
        for case in cases
    ]


def _measured(case: StepCostCase, num_steps: int) -> Figures:
    """added: to the median step. added_mean: to the mean, which has what the writing thread takes away."""
    unwatched, watched = step_times(case, num_steps)
    return {
        "step_s": median(unwatched),
        "watched_step_s": median(watched),
        "added_s": median(watched) - median(unwatched),
        "added_mean_s": fmean(watched) - fmean(unwatched),
    }


def step_times(case: StepCostCase, num_steps: int) -> tuple[list[float], list[float]]:
    """Seconds of so many decode steps each, unwatched and watched, all sequences running."""
    unwatched: list[float] = []
    watched: list[float] = []
    engine = instant_engine(case, 2 * (num_steps + STEPS_PER_TURN))
    try:
        for number in range(case.num_sequences):
            engine.add_request(endless(number), SimpleQueue[Any]().put)
        for _ in range(NUM_WARM_UP_STEPS):
            engine.step()
        while len(watched) < num_steps:
            unwatched += [timed(engine.step) for _ in range(STEPS_PER_TURN)]
            with _watched(engine):
                engine.step()  # the first one shows every table
                watched += [timed(engine.step) for _ in range(STEPS_PER_TURN - 1)]
        return unwatched, watched
    finally:
        engine.close()


@contextmanager
def _watched(engine: Any) -> Iterator[None]:
    tap, encoder, is_over = Tap(engine), Encoder(0.0), threading.Event()

    def write() -> None:
        while not is_over.wait(WRITE_EVERY_S):
            for raw in tap.take():
                to_line(encoder.encode(raw))

    tap.open()
    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        tap.close()
        is_over.set()
        thread.join()
