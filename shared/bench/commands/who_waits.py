"""`who-waits`: a few requests at one moment, on one clock."""

import argparse
from collections.abc import Sequence as Seq

from shared.bench.arguments import (
    add_keeping,
    add_model,
    add_recording,
    check_publishable,
    count,
    model_choice,
    phases,
)
from shared.bench.code_files import REPOSITORY
from shared.bench.host import provenance
from shared.bench.keeping import run_plan
from shared.bench.who_waits import WhoWaitsPlan, run_who_waits
from shared.registry import newest_phase

EXPLANATION = """what happens: four requests with prompts of 32 and outputs of 50 tokens are handed over at one moment.
When has each its first token, and its last? With one request at a time, the fourth waits for the three before it;
with a batch, all begin at once and share the steps. The chart "who waits how long" is drawn from this."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--phases",
        type=phases,
        default=f"1,{newest_phase().number}",
        metavar="1,2,..",
        help="default: the first and the newest",
    )
    parser.add_argument("--requests", type=count, default=4, metavar="N", help="default: 4")
    parser.add_argument("--tokens", type=count, default=50, metavar="N", help="of each output; default: 50")
    add_model(parser.add_argument_group("model"))
    add_recording(add_keeping(parser))


def run(args: argparse.Namespace, argv: Seq[str]) -> int:
    check_publishable(args)
    plan = WhoWaitsPlan(
        phases=args.phases,
        num_requests=args.requests,
        num_tokens=args.tokens,
        model=model_choice(args),
        seed=args.seed,
        num_rounds=args.repeats,
        provenance=provenance(argv, REPOSITORY),
        record=args.record,
    )
    return run_plan(run_who_waits, plan, args)
