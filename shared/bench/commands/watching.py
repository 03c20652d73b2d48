"""`watching`: microseconds that a step costs more while somebody watches."""

import argparse
from collections.abc import Sequence as Seq

from shared.bench.arguments import add_keeping, add_phases, add_sequences, count
from shared.bench.commands.step_cost import run_cases

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
    from shared.bench.watching import run_watching  # imports torch

    return run_cases("watching", run_watching, args, argv)
