"""`moves`: what each move towards a fast engine buys."""

import argparse
from collections.abc import Sequence as Seq

from shared.bench.arguments import (
    add_keeping,
    add_model,
    add_recording,
    check_publishable,
    listed,
    model_choice,
    phases,
)
from shared.bench.code_files import REPOSITORY
from shared.bench.host import provenance
from shared.bench.keeping import err, run_plan
from shared.bench.moves import MOVES, LeftOut, systems_of
from shared.bench.offline import OfflinePlan, run_offline
from shared.bench.systems import SystemSpec
from shared.errors import SetupError
from shared.registry import phase_by_number

EXPLANATION = """what happens: the same engine, with one setting after the other changed, runs the workload in turns,
round after round, every other round backwards. Ratios are to the first row. A move that this engine cannot make is
left out, with the reason.

moves, each on top of those before:
""" + "\n".join(f"  {move.name:16} {move.label.removeprefix('+ ')}" for move in MOVES)


def add_options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what to compare")
    what.add_argument(
        "--moves",
        type=listed(str),
        default=[move.name for move in MOVES],
        metavar="NAMES",
        help="of those below; default: all",
    )
    what.add_argument("--phases", type=phases, default=[phase_by_number(8)], metavar="8", help="one; default: 8")
    what.add_argument("--workloads", type=listed(str), default=["A"], metavar="A,B,..", help="default: A")
    what.add_argument("--scale", type=float, default=0.5, metavar="SHARE", help="of the requests; default: 0.5")
    add_model(parser.add_argument_group("model"))
    add_recording(add_keeping(parser))


def run(args: argparse.Namespace, argv: Seq[str]) -> int:
    check_publishable(args)
    specs = _specs(args)
    plan = OfflinePlan(
        workload_keys=args.workloads,
        specs=specs,
        base=specs[0].name,
        scale=args.scale,
        slow_scale=1.0,
        seed=args.seed,
        num_rounds=args.repeats,
        provenance=provenance(argv, REPOSITORY),
        record=args.record,
        kind="moves",
    )
    return run_plan(run_offline, plan, args)


def _specs(args: argparse.Namespace) -> list[SystemSpec]:
    if unknown := set(args.moves) - {move.name for move in MOVES}:
        raise SetupError(f"there is no move {unknown.pop()!r}; moves: {', '.join(move.name for move in MOVES)}")
    if len(args.phases) != 1:
        raise SetupError("--phases: give one phase, from 8 on")
    specs: list[SystemSpec] = []
    chosen = [move for move in MOVES if move.name in args.moves]
    for system in systems_of(args.phases[0], model_choice(args), chosen):
        if isinstance(system, LeftOut):
            err.print(f"left out: {system.move.label.removeprefix('+ ')}: {system.why}")
        else:
            specs.append(system)
    return specs
