"""`interference`: running streams while a long prompt arrives."""

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
from shared.bench.interference import InterferencePlan, Tokens, interference_spec, run_interference
from shared.bench.keeping import run_plan

EXPLANATION = """what happens: the streams (prompts of 16 to 32 tokens) decode. When each has 8 tokens, the long
prompt comes, between two steps. From then until its first token is the window. Then all run to their forced ends.

how to read it:
  gap p50 before     between two tokens of a stream, when all streams decode and the long prompt is not there yet
  gap p50, p99, max  of all streams' gaps that overlap the window. With whole-prompt prefill (phase 3) the window
                     is one step: each stream has one gap, and the three are the same
  long prompt's TTFT from its arrival to its first token: what it pays for letting the streams go on
  ... to phase03     over the same figure of the first phase, in the same round: the median of the ratios counts, since
                     the host's speed drifts; smallest and largest beside it
  exact              requests, the long one included, whose tokens are those of HF alone in fp32

Smaller chunks: shorter gaps, later first token. Each row ran with the chunk and the budget it shows, in tokens.
Run nothing else meanwhile."""


def add_options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what to compare")
    what.add_argument(
        "--phases",
        type=phases,
        default="3,4",
        metavar="3,4,..",
        help="from 2 on; ratios refer to the first; default: 3,4",
    )
    what.add_argument(
        "--prompt-tokens", type=count, default=1000, metavar="N", help="of the long prompt; default: 1000"
    )
    what.add_argument("--streams", type=count, default=7, metavar="N", help="that decode meanwhile; default: 7")
    how = parser.add_argument_group("with what")
    how.add_argument(
        "--prefill-chunk-size",
        type=count,
        metavar="N",
        help="most prompt tokens of a sequence in a step, from phase 4 on; default: the engine's own",
    )
    how.add_argument(
        "--prefill-budget-tokens",
        type=count,
        metavar="N",
        help="most tokens of a step, from phase 4 on; decodes take theirs first; default: the engine's own",
    )
    add_model(how)
    add_recording(add_keeping(parser))


def run(args: argparse.Namespace, argv: Seq[str]) -> int:
    check_publishable(args)
    model = model_choice(args)
    chunk: Tokens = args.prefill_chunk_size or "auto"
    budget: Tokens = args.prefill_budget_tokens or "auto"
    plan = InterferencePlan(
        specs=[interference_spec(model, phase, args.streams, chunk, budget) for phase in args.phases],
        num_streams=args.streams,
        num_prompt_tokens=args.prompt_tokens,
        seed=args.seed,
        num_rounds=args.repeats,
        provenance=provenance(argv, REPOSITORY),
        record=args.record,
    )
    return run_plan(run_interference, plan, args)
