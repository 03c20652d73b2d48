"""`preemption`: a pool too small for everybody."""

import argparse
from collections.abc import Sequence as Seq

from shared.bench.arguments import (
    add_keeping,
    add_model,
    add_recording,
    add_scale,
    check_publishable,
    count,
    listed,
    model_choice,
)
from shared.bench.code_files import REPOSITORY
from shared.bench.host import provenance
from shared.bench.keeping import run_plan
from shared.bench.preemption import PreemptionPlan, run_preemption

EXPLANATION = """what happens: questions come at once, to a K/V pool of each size. Every answer may have 256 tokens, and
the model ends many sooner, which no scheduler knows. Phase 8 promises each the worst case, so few run together; phase 9
promises nothing, and when the pool is full the newest gives its blocks back: swapped to host memory, or dropped and
computed again.

how to read it:
  finished      requests that were answered, with exactly the tokens of Hugging Face
  preemptions   how often somebody had to give back
  run again     tokens whose K/V was dropped and is computed a second time (recompute; swap copies instead)
  ratio         throughput to phase 8's in the same round with the same pool"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pool-slots",
        type=listed(count),
        default=[512, 1024, 2048],
        metavar="N,N",
        help="sizes of the pool, in tokens; default: 512,1024,2048",
    )
    add_scale(parser)
    add_model(parser.add_argument_group("model"))
    add_recording(add_keeping(parser))


def run(args: argparse.Namespace, argv: Seq[str]) -> int:
    check_publishable(args)
    plan = PreemptionPlan(
        pool_slots=args.pool_slots,
        model=model_choice(args),
        scale=args.scale,
        seed=args.seed,
        num_rounds=args.repeats,
        provenance=provenance(argv, REPOSITORY),
        record=args.record,
    )
    return run_plan(run_preemption, plan, args)
