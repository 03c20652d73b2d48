"""`serve`: a phase's engine over HTTP, until it is told to stop."""

import argparse
import ipaddress
import math
import sys
from functools import partial
from typing import Any

from shared.registry import Phase

DEFAULT_HOST = "127.0.0.1"
DEFAULT_GRACE_S = 30.0
CLOSE_S = 5.0  # for the step that still runs when everybody has been answered
EXAMPLES = """\
examples:
  %(prog)s
  %(prog)s --port 9000 --model path/to/model --queue-capacity 64 --queue-timeout-s 30
  PAGESERVE_API_KEY=... %(prog)s --host 0.0.0.0 --allowed-host models.example.org

Ctrl-C or SIGTERM lets running requests finish within the grace period; a second one ends at once.
"""


def add_command(commands: Any, chapter: Phase) -> None:
    from shared.cli import add_engine_options

    parser = commands.add_parser(
        "serve",
        help="serve it over HTTP: OpenAI's API and a native one",
        description=f"Serve {chapter.label} over HTTP.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    add_server_options(parser, default_port(chapter))
    add_engine_options(parser)


def default_port(chapter: Phase) -> int:
    """Phase 1 beside a later phase, to compare the two."""
    return 8000 if chapter.number == 1 else 8001


def add_server_options(parser: argparse.ArgumentParser, port: int) -> None:
    group = parser.add_argument_group("server")
    group.add_argument("--host", default=DEFAULT_HOST, help=f"address to listen on (default: {DEFAULT_HOST})")
    group.add_argument("--port", type=int, default=port, help=f"0 takes a free one (default: {port})")
    group.add_argument("--api-key", metavar="KEY", help="wanted on every route but /health (or PAGESERVE_API_KEY)")
    group.add_argument(
        "--allowed-host",
        action="append",
        metavar="NAME",
        help="a name it may be reached by, without a port, beside localhost and IP addresses; may be repeated",
    )
    group.add_argument("--served-model-name", metavar="NAME", help="the model's id for clients (default: its name)")
    group.add_argument(
        "--live-page",
        action=argparse.BooleanOptionalAction,
        help="the page that shows the engine at work, on / (default: only where --host is this machine alone)",
    )
    group.add_argument("--max-body-bytes", type=int, metavar="N", help="largest request body (default: 1048576)")
    group.add_argument(
        "--stuck-step-s",
        type=float,
        metavar="S",
        help="seconds that one step may take before /health calls the engine stuck (default: 60)",
    )
    group.add_argument(
        "--grace-period",
        type=grace_seconds,
        default=DEFAULT_GRACE_S,
        metavar="S",
        help=f"seconds that running requests get after a signal to stop (default: {DEFAULT_GRACE_S:g})",
    )


def grace_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be seconds, 0 or more, got {text!r}")
    return seconds


def run(chapter: Phase, args: argparse.Namespace) -> int:
    from shared.cli import build_engine, engine_config
    from shared.model_loader import load_model
    from shared.server.app import create_app
    from shared.server.graceful_server import GracefulServer, bind, ends_within
    from shared.server.log_lines import log_to_stderr
    from shared.show_config import config_rows, print_config
    from shared.trace.recording import recorded

    config, limits = engine_config(args), server_limits(args)
    listener = bind(args.host, args.port)
    warn_if_open(args.host, has_key="api_key" in limits)
    loaded = load_model(args.model, dtype=args.dtype, device=args.device)
    rows = list(config_rows(config, loaded, has_pool=chapter.has_pool)) if args.show_config else []
    log_to_stderr()
    engine = build_engine(chapter, config, loaded, args)
    if rows:
        print_config(rows, chapter, getattr(engine, "implementation", {}))
    name = args.served_model_name or loaded.name
    try:
        app = create_app(engine, loaded.tokenizer, name, title=chapter.label, **limits)
        server = GracefulServer(app, listener, args.grace_period, partial(announce, chapter, name, limits))
        with recorded(engine, args.record, phase=chapter.number, title=chapter.label, model=loaded.name):
            server.run()
    finally:
        with ends_within(CLOSE_S):
            engine.close()
    return 0


def announce(chapter: Phase, name: str, limits: dict[str, Any], url: str) -> None:
    page = "" if limits.get("live_page") is False else f"live page: {url}/, "
    print(f"{chapter.label}: {name} is served on {url} ({page}docs: {url}/docs)", file=sys.stderr, flush=True)


def server_limits(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of ServerSettings that the environment and the options set; options win. Raises InvalidConfig."""
    from shared.server.factory import limits_from_env
    from shared.server.settings import ServerSettings

    given = {
        "api_key": args.api_key,
        "allowed_hosts": args.allowed_host,
        "max_body_bytes": args.max_body_bytes,
        "stuck_step_s": args.stuck_step_s,
        "live_page": args.live_page,
    }
    limits = limits_from_env() | {name: value for name, value in given.items() if value is not None}
    if not _is_loopback(args.host):
        limits.setdefault("live_page", False)
    ServerSettings(**limits)  # what is wrong with them is said before a model is loaded
    return limits


def warn_if_open(host: str, *, has_key: bool) -> None:
    """What it means to listen beyond this machine, before it happens."""
    if _is_loopback(host):
        return
    key = "whoever has the key" if has_key else "everyone on that network, for there is no --api-key,"
    print(
        f"warning: {host} can be reached from other machines: {key} can use this model and read its metrics, "
        "and the traffic is not encrypted. Listen on 127.0.0.1, or put a TLS proxy in front.",
        file=sys.stderr,
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
