"""`step-time`: a decode step over context, batch and pool size, for each forward and attention kernel."""

import argparse
from collections.abc import Sequence as Seq
from itertools import product

from shared.bench.arguments import add_keeping, add_model, check_publishable, count, listed, phases
from shared.bench.commands.step_parts import run_decodings
from shared.config import CHOICES
from shared.errors import SetupError
from shared.registry import phase_by_number

EXPLANATION = """what happens: for each case the scheduler plans the prompts while a stand-in answers, the blocks are
filled with random K/V, and then real decode steps are timed. Rows are cases; one that cannot run here (no room for its
K/V, a kernel that this machine cannot have) is left out, with a message.

how to read it:
  whole step       milliseconds, the median of a repeat's steps, then of the repeats
  attention        of it, in all layers, at the kernel; new K/V is written before, which is model rest
  linears, head    of it, the matmuls; the head is the one that makes logits
  batch building   of it, packing the step's tokens and tables
  roofline         what the machine allows at best: weights and K/V read once at the read bandwidth, or the matmuls
                   and attention at the rate of a large matmul, whichever takes longer; both measured in the same round
  of roofline %    how close the step comes
Below the table: is a step linear in the context (a least-squares line), and flat in the pool's size?

Run nothing else meanwhile."""


def add_options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("which steps")
    what.add_argument("--contexts", type=listed(count), default=[128, 1024, 4096], metavar="N,..", help="tokens each")
    what.add_argument("--sequences", type=listed(count), default=[1, 8, 32, 64], metavar="N,..", help="running at once")
    what.add_argument(
        "--pool-factors",
        type=listed(count),
        default=[1],
        metavar="N,..",
        help="K/V blocks in the pool, in multiples of those needed; default: 1",
    )
    what.add_argument("--phases", type=phases, default=[phase_by_number(8)], metavar="8,..", help="default: 8")
    _add_choice(what, "--forwards", "forward")
    _add_choice(what, "--kernels", "attention_kernel")
    what.add_argument("--steps", type=count, metavar="N", default=20, help="of a repeat, or 5 s of them; default: 20")
    add_model(parser.add_argument_group("model"))
    add_keeping(parser)


def run(args: argparse.Namespace, argv: Seq[str]) -> int:
    from shared.bench.decoding import Decoding  # imports torch
    from shared.bench.step_fits import findings
    from shared.bench.step_parts import FIRST_PACKED

    check_publishable(args)
    if not args.phases or args.phases[0].number < FIRST_PACKED:
        raise SetupError(f"--phases: a step is one forward pass from phase {FIRST_PACKED} on; choose from those")
    choices = product(args.phases, args.forwards, args.kernels, args.sequences, args.contexts, args.pool_factors)
    cases = [
        Decoding(phase, num_sequences, context, pool_factor, forward, kernel)
        for phase, forward, kernel, num_sequences, context, pool_factor in choices
    ]
    return run_decodings("step-time", cases, args, argv, findings)


def _add_choice(group: "argparse._ArgumentGroup", option: str, setting: str) -> None:
    known = [choice for choice in CHOICES[setting] if choice != "auto"]
    group.add_argument(
        option,
        type=_some_of(known),
        default=known,
        metavar="NAMES",
        help=f"of {','.join(known)}; default: all",
    )


def _some_of(known: Seq[str]) -> "argparse._ActionType":
    def names(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := [name for name in chosen if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(known)}")
        return chosen

    return names
