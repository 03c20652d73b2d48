"""What `load` and `serving` have in common: what is asked, how often, and what is promised."""

import argparse
import math
from typing import TYPE_CHECKING

from shared.errors import SetupError

if TYPE_CHECKING:
    from shared.bench.load.sweep import Traffic

TINY_VOCAB = 97  # token ids of the tiny model
KINDS = ("words", "tokens", "shared_prefix", "long_prompt_interference", "repetitive", "chat")


def add_traffic(
    group: "argparse._ArgumentGroup", workload: str = "words", requests: int = 50, warm_up: int = 1
) -> None:
    group.add_argument(
        "--workload", choices=KINDS, default=workload, metavar="KIND", help=f"{', '.join(KINDS)}; default: {workload}"
    )
    group.add_argument(
        "--requests", type=count0, default=requests, metavar="N", help=f"of each load; default: {requests}"
    )
    group.add_argument(
        "--prompt-len", type=span, default=(64, 128), metavar="A-B", help="tokens or words; default: 64-128"
    )
    group.add_argument("--output-len", type=span, default=(32, 128), metavar="A-B", help="tokens; default: 32-128")
    group.add_argument(
        "--vocab-size", type=span_end, default=32_000, metavar="N", help="token ids are below it; default: 32000"
    )
    group.add_argument(
        "--ignore-eos", action="store_true", help="outputs have their full length (vLLM, PageServe, not OpenAI)"
    )
    group.add_argument("--arrivals", choices=["poisson", "constant"], default="poisson", help="default: poisson")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of prompts, lengths and arrivals; default: 0")
    group.add_argument(
        "--warm-up", type=count0, default=warm_up, metavar="N", help=f"requests that don't count; default: {warm_up}"
    )
    group.add_argument("--slo-ttft-ms", type=milliseconds, default=2000.0, metavar="MS", help="default: 2000")
    group.add_argument("--slo-tpot-ms", type=milliseconds, default=100.0, metavar="MS", help="default: 100")


def traffic(args: argparse.Namespace, *, is_chat: bool) -> "Traffic":
    """Raises SetupError for a workload that the API cannot take, or a missing client."""
    try:
        from shared.bench.load.asks import KINDS as MAKERS
        from shared.bench.load.asks import Lengths
        from shared.bench.load.report import Slo
        from shared.bench.load.sweep import Traffic
    except ModuleNotFoundError as error:
        raise SetupError(f"{error.name} is not installed: pip install -e '.[bench]'") from None
    if is_chat and not MAKERS[args.workload].is_text:
        raise SetupError(f"--workload {args.workload} is token ids, and a chat takes text: choose another")
    return Traffic(
        kind=args.workload,
        lengths=Lengths(args.prompt_len, args.output_len, args.vocab_size),
        num_requests=args.requests,
        seed=args.seed,
        arrivals=args.arrivals,
        num_warm_up=args.warm_up,
        slo=Slo(args.slo_ttft_ms / 1000, args.slo_tpot_ms / 1000),
    )


def rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return value


def milliseconds(text: str) -> float:
    if math.isinf(value := rate(text)):
        raise argparse.ArgumentTypeError(f"must be finite, got {text!r}; a very large number is met by everybody")
    return value


def count0(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number from 0, got {text!r}")
    return int(text)


def span_end(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"must be a whole number from 2, got {text!r}")
    return int(text)


def span(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    high = high or low
    if not (low.isdecimal() and high.isdecimal() and 1 <= int(low) <= int(high)):
        raise argparse.ArgumentTypeError(f"must be a length or a range such as 64-128, got {text!r}")
    return int(low), int(high)
