"""`load`: a server under load, from outside."""

import argparse
import os
from collections.abc import Sequence as Seq
from dataclasses import replace

from shared.bench.arguments import add_keeping, check_publishable, count, listed, phases
from shared.bench.code_files import REPOSITORY
from shared.bench.commands.load_options import TINY_VOCAB, add_traffic, rate, traffic
from shared.bench.host import provenance
from shared.bench.keeping import err, keep
from shared.bench.systems import ModelChoice
from shared.errors import SetupError

DEFAULT_URL = "http://127.0.0.1:8001"
EXPLANATION = """what happens: requests go to a server that runs already (or that --serve starts), streamed, at moments
that are fixed before the first one goes (open loop), or each client after its last answer (--clients, closed loop).

how to read it:
  TTFT, E2E     from the *scheduled* moment, so a server that falls behind is charged for it; failed ones have none
  TPOT          (last - first) / (tokens - 1) of a request; n/a below two tokens
  ITL           the gap before a token; tokens of one event share it. Not measured where the server hides how many
  goodput       requests per second that were answered whole and within the SLO; "within SLO" is of all requests
  --compare-loops R   at R requests per second: what the same server looks like to a client that waits for answers
                before it sends, and starts its clock only then (coordinated omission)

The server may be anybody's that speaks OpenAI's API. What it does not tell is noted below the table: then tokens
are not guessed. Beside PageServe or vLLM, --token-ids makes them tell. A server on this machine shares the CPU.

examples:
  python -m shared.bench load --url http://127.0.0.1:8001 --rates 1,2,4,inf --token-ids
  python -m shared.bench load --url http://127.0.0.1:8001 --api chat --workload chat --clients 1,4
  python -m shared.bench load --serve 12 --compare-loops 4

exit codes: 0 done, 1 a load had no success at all, 2 something has to be mended first, 130 Ctrl-C"""


def add_options(parser: argparse.ArgumentParser) -> None:
    server = parser.add_argument_group("which server")
    which = server.add_mutually_exclusive_group()
    which.add_argument("--url", default=DEFAULT_URL, metavar="URL", help=f"up to /v1; default: {DEFAULT_URL}")
    which.add_argument(
        "--serve", type=phases, metavar="PHASE", help="start this phase's own server, and stop it afterwards"
    )
    server.add_argument(
        "--tiny", action="store_true", help="with --serve: a random two-layer model, asked in token ids, to try it"
    )
    server.add_argument("--api", choices=["completions", "chat"], default="completions", help="default: completions")
    server.add_argument("--model", metavar="ID", help="default: the first that the server lists")
    server.add_argument(
        "--api-key-env", metavar="VAR", help="the environment variable with its API key, which is never recorded"
    )
    server.add_argument("--token-ids", action="store_true", help="ask for them (return_token_ids; vLLM, PageServe)")
    server.add_argument("--extra-body", metavar="JSON", help="more fields for each request")
    server.add_argument(
        "--timeout-s", type=rate, default=600.0, metavar="S", help="a whole request may take; default: 600"
    )
    load = parser.add_argument_group("how much load, and which")
    loops = load.add_mutually_exclusive_group()
    loops.add_argument(
        "--rates", type=listed(rate), metavar="R,R,..", help="requests per second, or inf; default: 1,2,4,inf"
    )
    loops.add_argument("--clients", type=listed(count), metavar="N,N,..", help="closed loop: so many clients")
    loops.add_argument("--compare-loops", type=rate, metavar="R", help="coordinated omission at this rate")
    load.add_argument(
        "--max-concurrency", type=count, metavar="N", help="cap on requests under way; 1 with --compare-loops"
    )
    add_traffic(load)
    add_keeping(parser, 1, "rounds over all loads")


def run(args: argparse.Namespace, argv: Seq[str]) -> int:
    from shared.bench.serving import own_server

    check_publishable(args)
    if args.serve is None and args.tiny:
        raise SetupError("--tiny is of a server that this command starts: give --serve PHASE, too")
    if args.serve is None:
        return _load(args, argv)
    if len(args.serve) != 1:
        raise SetupError("--serve: give one phase, such as 12")
    args.token_ids = True
    if args.tiny:  # it has no tokenizer
        args.workload, args.vocab_size = "tokens", min(args.vocab_size, TINY_VOCAB)
    with own_server(args.serve[0], ModelChoice(is_tiny=args.tiny)) as args.url:
        return _load(args, argv)


def _load(args: argparse.Namespace, argv: Seq[str]) -> int:
    from shared.bench.load.live_line import LiveLine
    from shared.bench.load.sweep import model_of
    from shared.bench.load.target import Target, parse_extra
    from shared.bench.load_run import LoadPlan, run_load

    target = Target(
        url=args.url,
        api=args.api,
        api_key=_api_key(args.api_key_env),
        has_token_ids=args.token_ids,
        ignore_eos=args.ignore_eos,
        extra=parse_extra(args.extra_body) if args.extra_body else {},
        timeout_s=args.timeout_s,
    )
    target = replace(target, model=args.model or model_of(target) or "default")
    plan = LoadPlan(
        target=target,
        traffic=traffic(args, is_chat=args.api == "chat"),
        cases=_cases(args),
        num_rounds=args.repeats,
        provenance=provenance(_without_host(argv, target.is_local), REPOSITORY),
        kind="load-comparison" if args.compare_loops else "load",
    )
    with LiveLine(err) as line:
        is_success = run_load(plan, line, lambda result: keep(result, args))
    return 0 if is_success else 1


def _cases(args: argparse.Namespace) -> list:
    from shared.bench.load.sweep import client_case, comparison, rate_case

    if args.compare_loops:
        return comparison(args.compare_loops, args.max_concurrency or 1)
    if args.clients:
        if args.max_concurrency:
            raise SetupError("--max-concurrency caps an open loop; with --clients, that many are under way at most")
        return [client_case(number) for number in args.clients]
    return [rate_case(rate, args.max_concurrency) for rate in args.rates or (1.0, 2.0, 4.0, float("inf"))]


def _api_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    if not os.environ.get(variable):
        raise SetupError(f"--api-key-env {variable}: that variable is not set")
    return os.environ[variable]


def _without_host(argv: Seq[str], is_local: bool) -> list[str]:
    """What is recorded of the command: no host but this one."""
    if is_local:
        return list(argv)
    return ["URL" if "://" in word else word for word in argv]
