"""`step-parts`: where the milliseconds of a decode step go."""

import argparse
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

from shared.bench.arguments import (
    add_keeping,
    add_model,
    add_phases,
    add_sequences,
    check_publishable,
    count,
    model_choice,
)
from shared.bench.code_files import REPOSITORY
from shared.bench.host import provenance
from shared.bench.keeping import err, keep, out
from shared.bench.progress import ProgressLine
from shared.bench.results import ModelRecord, Result, SystemResult
from shared.errors import SetupError

if TYPE_CHECKING:
    from shared.bench.decoding import Decoding

EXPLANATION = """Clocks on the model's linear layers, its head, its attention, the sampler and the packing of a batch.
What is left of the forward pass is norms, RoPE, activations and dispatch; what is left of the step is planning and
handing out. Median over the steps of a repeat, then over the repeats."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_phases(parser)
    add_sequences(parser)
    parser.add_argument("--context", type=count, default=128, metavar="N", help="tokens of each; default: 128")
    parser.add_argument("--steps", type=count, metavar="N", default=30, help="steps of a repeat; default: 30")
    add_model(parser.add_argument_group("model"))
    add_keeping(parser)


def run(args: argparse.Namespace, argv: Seq[str]) -> int:
    from shared.bench.decoding import Decoding  # imports torch
    from shared.bench.step_parts import FIRST_PACKED

    check_publishable(args)
    phases = [phase for phase in args.phases if phase.number >= FIRST_PACKED]
    if not phases:
        raise SetupError(f"phases before {FIRST_PACKED} run a forward pass per sequence: choose later ones")
    cases = [Decoding(phase, number, args.context) for phase in phases for number in args.sequences]
    return run_decodings("step-parts", cases, args, argv)


def run_decodings(
    kind: str,
    cases: "Seq[Decoding]",
    args: argparse.Namespace,
    argv: Seq[str],
    findings: Callable[[list[SystemResult]], Iterable[str]] = lambda _systems: (),
) -> int:
    """Measure and keep them. findings: sentences to print below the table."""
    from shared.bench.step_parts import run_step_parts

    origin = provenance(argv, REPOSITORY)

    def kept(systems: list[SystemResult], model: ModelRecord) -> None:
        keep(Result(kind, origin, systems, planned_repeats=args.repeats, model=model), args)
        for finding in findings(systems):
            out.print(finding, soft_wrap=True)

    with ProgressLine(err, len(cases) * args.repeats) as progress:
        run_step_parts(cases, model_choice(args), args.steps, args.repeats, progress.announce, kept)
    return 0
