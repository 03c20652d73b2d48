"""`step-cost`: milliseconds a step costs beside the model."""

import argparse
from collections.abc import Callable
from collections.abc import Sequence as Seq

from shared.bench.arguments import add_keeping, add_phases, add_sequences, count
from shared.bench.code_files import REPOSITORY
from shared.bench.host import provenance
from shared.bench.keeping import err, keep
from shared.bench.progress import ProgressLine
from shared.bench.results import Result, SystemResult
from shared.errors import SetupError

FIRST_WITH_STEPS = 2
EXPLANATION = """A stand-in for the runner gives each sequence the same token at once, so a step is only planning,
bookkeeping and handing out. Median over the steps of a repeat, then over the repeats. Aim: under 0.3 ms at 8.
Phase 1 has no steps and is left out."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_phases(parser)
    add_sequences(parser)
    parser.add_argument("--steps", type=count, metavar="N", default=500, help="steps of a repeat; default: 500")
    add_keeping(parser)


def run(args: argparse.Namespace, argv: Seq[str]) -> int:
    from shared.bench.step_cost import run_step_cost  # imports torch

    return run_cases("step-cost", run_step_cost, args, argv)


def run_cases(kind: str, measure: Callable[..., list[SystemResult]], args: argparse.Namespace, argv: Seq[str]) -> int:
    """measure: gets the cases, the steps of a repeat, the rounds, and whom to tell what comes."""
    from shared.bench.step_cost import StepCostCase

    phases = [phase for phase in args.phases if phase.number >= FIRST_WITH_STEPS]
    if not phases:
        raise SetupError(f"phase 1 has no step loop: choose phases from {FIRST_WITH_STEPS} on")
    cases = [StepCostCase(phase, num_sequences) for phase in phases for num_sequences in args.sequences]
    origin = provenance(argv, REPOSITORY)
    with ProgressLine(err, len(cases) * args.repeats) as progress:
        systems = measure(cases, args.steps, args.repeats, progress.announce)
    keep(Result(kind, origin, systems, planned_repeats=args.repeats), args)
    return 0
