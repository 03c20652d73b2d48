"""`serving`: every phase's real server under the same load."""

import argparse
import signal
import sys
from collections.abc import Sequence as Seq
from types import FrameType

from shared.bench.arguments import (
    add_keeping,
    add_model_alone,
    add_phases,
    add_recording,
    check_publishable,
    listed,
    model_choice,
)
from shared.bench.code_files import REPOSITORY
from shared.bench.commands.load_options import TINY_VOCAB, add_traffic, rate, traffic
from shared.bench.host import provenance
from shared.bench.keeping import err, keep, say_recorded

EXPLANATION = """what happens: for each phase its own server is started (a process, on a free port of this machine),
waited for until it is healthy, put under the same requests at each rate, and stopped. The queue's limits are off, so
that a wait is measured and not refused. What `load --help` says on how to read it holds here.

The load tester runs on the same machine and takes its share of the CPU. --slow-scale gives phases 1 to 6 fewer
requests, and their rows say so; at a rate they cannot keep up with, fewer requests also wait for less long.

examples:
  python -m shared.bench serving --tiny --rates 4,inf --requests 4 --repeats 1       does it work?
  python -m shared.bench serving --phases 1,12 --rates 0.5,1,2,4,inf --requests 40"""


def add_options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("which servers, and how much load")
    add_phases(what)
    what.add_argument(
        "--rates", type=listed(rate), default=[1.0, 2.0, 4.0, float("inf")], metavar="R,R,..", help="default: 1,2,4,inf"
    )
    what.add_argument(
        "--slow-scale", type=float, default=1.0, metavar="SHARE", help="of the requests for phases 1 to 6; default: 1"
    )
    what.add_argument(
        "--server-option",
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help="more for the servers' command line, such as --server-option=--max-batch-size=8",
    )
    add_traffic(what, workload="tokens", requests=40)
    add_model_alone(parser.add_argument_group("model"))
    add_recording(add_keeping(parser, 3, "rounds over all phases"))


def run(args: argparse.Namespace, argv: Seq[str]) -> int:
    check_publishable(args)
    if args.tiny:
        args.vocab_size = min(args.vocab_size, TINY_VOCAB)
    asked = traffic(args, is_chat=False)
    from shared.bench.load.live_line import LiveLine
    from shared.bench.serving import ServingPlan, run_serving

    plan = ServingPlan(
        phases=args.phases,
        rates=args.rates,
        traffic=asked,
        slow_scale=args.slow_scale,
        model=model_choice(args),
        options=args.server_option,
        num_rounds=args.repeats,
        provenance=provenance(argv, REPOSITORY),
        record=args.record,
    )
    signal.signal(signal.SIGTERM, _end)
    with LiveLine(err) as line:
        has_success = run_serving(plan, line, lambda result: keep(result, args))
    say_recorded(args)
    return 0 if has_success else 1


def _end(_signal: int, _frame: FrameType | None) -> None:
    """So that the server is stopped, too."""
    sys.exit(143)
