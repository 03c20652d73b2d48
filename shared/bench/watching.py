"""`python -m shared.bench watching`: what a step costs more while somebody watches, or records.

Steps without a model, as in `step-cost`, in short turns: unwatched, watched, unwatched, ... While watched, a thread
takes what comes and writes it down 20 times a second, as the server and `--record` do.
"""

import os
from collections.abc import Callable
from collections.abc import Sequence as Seq
from statistics import fmean, median

from shared.bench.results import Figures, SystemResult
from shared.bench.step_cost import StepCostCase, in_rounds, instant_decoding, timed
from shared.trace.recording import written

STEPS_PER_TURN = 500  # some tenths of a second: the writing thread has its turns, too
WRITE_EVERY_S = 0.05


def run_watching(
    cases: Seq[StepCostCase], num_steps: int, num_rounds: int, announce: Callable[[str], None]
) -> list[SystemResult]:
    """Measure all cases, phases from 2 on, in each round."""
    code = ["shared/trace/tap.py", "shared/trace/encode.py"]
    return in_rounds(cases, num_rounds, announce, lambda case: _measured(case, num_steps), code)


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
    with instant_decoding(case, 2 * (num_steps + STEPS_PER_TURN)) as engine, open(os.devnull, "w") as nowhere:
        while len(watched) < num_steps:
            unwatched += [timed(engine.step) for _ in range(STEPS_PER_TURN)]
            with written(engine, nowhere, {}, WRITE_EVERY_S):
                engine.step()  # the first one shows every table
                watched += [timed(engine.step) for _ in range(STEPS_PER_TURN - 1)]
    return unwatched, watched
