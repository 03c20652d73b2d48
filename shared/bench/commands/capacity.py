"""`capacity`: sequences at once on the same slots, no model."""

import argparse
from collections.abc import Sequence as Seq

from shared.bench.arguments import add_keeping, count, listed
from shared.bench.capacity import CapacityPlan, run_capacity
from shared.bench.code_files import REPOSITORY
from shared.bench.host import provenance
from shared.bench.keeping import err, keep
from shared.bench.progress import ProgressLine

EXPLANATION = """what happens: jobs whose K/V is 20 times what the pool holds come at once, to the real block
allocator. A stand-in for the runner gives each a token per step. Everyone knows its budget (max_tokens), nobody how
long it becomes.

workloads (prompts of 20 to 40 tokens):
  low variance  budget 32; outputs of 14 to 32 tokens, 23 on average
  heavy tail    budget 256; half of the outputs have 20 to 80 tokens, a few all 256; 60 on average (log-normal)
  two kinds     budget 256; four outputs in five have 8 to 32 tokens, one has 192 to 256; 61 on average

systems:
  contiguous slabs            prompt + max_tokens slots in one piece at admission, first fit
  paged, worst case promised  phase 6: blocks as it grows, but who is admitted must be able to reach its budget
  paged, on demand            phase 9: blocks as it grows, nothing promised, admitted if its prompt fits. Who cannot
                              grow takes the newest's blocks, and that one runs its tokens again (recompute)

how to read it:
  running at once  mean over the steps in which somebody waits, after as many as the budget; "at most" likewise
  gain             over contiguous slabs, on the same jobs
  waste            share of the allocated slots (in slabs or blocks) that holds no K/V
  % of pool        K/V, empty (held for somebody, and holding nothing) and free make 100, but for rounding
  run again        share of all tokens that ran a second time, after a preemption
  fit at full length  how many of the jobs fit beside each other if each is as long as it ever gets

Median over the draws, with the smallest and the largest. The same seed gives the same figures on every machine.
`charts` draws the published ones."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pool-slots", type=count, metavar="N", default=8192, help="tokens whose K/V there is room for; default: 8192"
    )
    parser.add_argument(
        "--block-sizes",
        type=listed(count),
        default=[1, 4, 8, 16, 32, 64],
        metavar="N,N,..",
        help="tokens per block, of the sweep on demand; the comparison has 16; default: 1,4,8,16,32,64",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first draw; default: 0")
    add_keeping(parser, 3, "draws of the jobs, each with the next seed")


def run(args: argparse.Namespace, argv: Seq[str]) -> int:
    plan = CapacityPlan(
        pool_slots=args.pool_slots,
        block_sizes=args.block_sizes,
        seed=args.seed,
        num_rounds=args.repeats,
        provenance=provenance(argv, REPOSITORY),
    )
    with ProgressLine(err, plan.num_announcements) as progress:
        comparison, sweep = run_capacity(plan, progress.announce)
    keep(comparison, args)
    keep(sweep, args)
    return 0
