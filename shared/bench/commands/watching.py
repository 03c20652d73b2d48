"""`watching`: microseconds that a step costs more while somebody watches."""

import argparse
from collections.abc import Sequence as Seq

from shared.bench.arguments import add_keeping, add_phases, add_sequences, count
from shared.bench.code_files import REPOSITORY
from shared.bench.commands.step_cost import FIRST_WITH_STEPS
from shared.bench.host import provenance
from shared.bench.keeping import err, keep
from shared.bench.progress import ProgressLine
from shared.bench.results import Result
from shared.errors import SetupError

EXPLANATION = """Steps without a model, in short turns: nobody watches, somebody watches. While somebody does, the steps
are handed over raw, and a thread writes them down 20 times a second, as for the live page and for --record.

how to read it:
  adds, median  to the typical step: what the stepping thread itself does more
  adds, mean    to the average step, with the time that the writing thread takes away from it. These steps come ten to
                a hundred times as fast as a model's, so there is more to write per second than there ever is in earnest
Aim: under 50 microseconds. Phase 1 has no steps and is left out."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_phases(parser)
    add_sequences(parser)
    parser.add_argument("--steps", type=count, metavar="N", default=2000, help="of a repeat, each way; default: 2000")
    add_keeping(parser)


def run(args: argparse.Namespace, argv: Seq[str]) -> int:
    from shared.bench.step_cost import StepCostCase
    from shared.bench.watching import run_watching  # imports torch

    phases = [phase for phase in args.phases if phase.number >= FIRST_WITH_STEPS]
    if not phases:
        raise SetupError(f"phase 1 has no step loop: choose phases from {FIRST_WITH_STEPS} on")
    cases = [StepCostCase(phase, num_sequences) for phase in phases for num_sequences in args.sequences]
    origin = provenance(argv, REPOSITORY)
    with ProgressLine(err, len(cases) * args.repeats) as progress:
        systems = run_watching(cases, args.steps, args.repeats, progress.announce)
    keep(Result("watching", origin, systems, planned_repeats=args.repeats), args)
    return 0
