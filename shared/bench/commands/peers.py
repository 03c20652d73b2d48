"""`peers`: this project's engines beside other people's."""

import argparse
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path

from shared.bench.arguments import (
    add_keeping,
    add_model,
    add_recording,
    check_publishable,
    count,
    listed,
    model_choice,
    none_or_of,
    phases,
)
from shared.bench.code_files import REPOSITORY
from shared.bench.host import provenance
from shared.bench.keeping import err, run_plan
from shared.bench.offline import OfflinePlan, run_offline
from shared.bench.peers.catalogue import PEERS, Home, Peer, peer_named, peers_dir
from shared.bench.peers.install import install
from shared.bench.peers.process import PeerSpec, default_num_threads
from shared.bench.systems import ModelChoice, SystemSpec, hf_spec, hf_static_spec, phase_spec
from shared.bench.workloads import SHAPES, check_key
from shared.errors import SetupError
from shared.loading.model_source import find_model
from shared.registry import phase_by_number

PHASES = [phase_by_number(12), phase_by_number(8)]
BASELINES = ("hf-static", "hf")
DEFAULT = ["vllm", "openvino", *BASELINES]
DTYPES = ("float32", "bfloat16")
EXPLANATION = """what happens: each system loads the model in a process of its own; then they run the workload in turns,
round after round, every other round backwards. Only one computes at a time; the peers are stopped meanwhile, and our
own wait. All have the same number of threads and start each run without cached prefixes. Output lengths are forced.

peers, each in an environment of its own (shared/bench/peers/README.md):
  vllm           vLLM's CPU build as it comes, compiled, with the OpenMP library that its manual advises
  vllm-eager     the same without compiling; not by default
  openvino       OpenVINO GenAI, continuous batching
  hf-static, hf  Hugging Face generate() in batches of 32, and one request at a time
What is not installed is skipped, with a message that says how to install it.

how to read it:
  phase12 to this  the base's tokens per second over this row's, in the same round: the median of these ratios, with
                   the smallest and the largest. Over 1, the base is faster
  exact            requests whose tokens are those of HF alone in fp32. In bf16 nobody gives them all, HF included
  peak RSS         the most memory that the process had resident, the weights and the K/V pool included

Run nothing else meanwhile."""


def add_options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what to compare")
    what.add_argument(
        "--peers",
        type=none_or_of([*PEERS, *BASELINES]),
        default=DEFAULT,
        metavar="NAMES",
        help=f"of {','.join([*PEERS, *BASELINES])}, or none; default: {','.join(DEFAULT)}",
    )
    what.add_argument(
        "--phases", type=phases, default=PHASES, metavar="12,8,..", help="ratios are of the first; default: 12,8"
    )
    what.add_argument("--workloads", type=listed(str), default=["A"], metavar="A,B,..", help="default: A")
    what.add_argument("--base", metavar="NAME", help="the system that ratios are of; default: the first phase")
    how = parser.add_argument_group("how much, and with what")
    how.add_argument("--scale", type=float, default=1.0, metavar="SHARE", help="of the requests, in (0, 1]; default: 1")
    how.add_argument(
        "--slow-scale", type=float, default=0.25, metavar="SHARE", help="share of those for hf; default: 0.25"
    )
    how.add_argument("--static-batch-size", type=count, metavar="N", default=32, help="of hf-static; default: 32")
    add_model(how)
    where = parser.add_argument_group("where the peers are")
    where.add_argument("--peers-dir", type=Path, metavar="DIR", help="default: peers in the cache of converted models")
    where.add_argument("--install", type=_installable, metavar="NAMES", help="make these peers' environments, and stop")
    add_recording(add_keeping(parser))


def run(args: argparse.Namespace, argv: Seq[str]) -> int:
    check_publishable(args)
    folder = args.peers_dir or peers_dir()
    if args.install:
        source = _model_folder(args.model)
        for peer in args.install:
            install(Home(peer, folder), source, err.print)
        return 0
    if args.dtype not in DTYPES:
        raise SetupError(f"--dtype {args.dtype}: peers run in {' or '.join(DTYPES)}")
    _check_workloads(args.workloads)
    specs = _specs(args, folder)
    plan = OfflinePlan(
        workload_keys=args.workloads,
        specs=specs,
        base=args.base or specs[0].name,
        scale=args.scale,
        slow_scale=args.slow_scale,
        seed=args.seed,
        num_rounds=args.repeats,
        provenance=provenance(argv, REPOSITORY),
        record=args.record,
        kind="peers",
    )
    return run_plan(run_offline, plan, args)


def _check_workloads(keys: Seq[str]) -> None:
    """Peers are asked for a number of tokens; where an output ends at EOS, each would compute another number."""
    for key in keys:
        check_key(key)
        if SHAPES[key].texts is not None:
            raise SetupError(f"--workloads {key}: its outputs end at EOS; peers run those with forced lengths")


def _specs(args: argparse.Namespace, folder: Path) -> list[SystemSpec | PeerSpec]:
    """Our own first; peers that cannot run are left out, with a message."""
    if not args.phases:
        raise SetupError("--phases none: peers are compared with at least one phase")
    model = replace(model_choice(args), num_threads=args.threads or default_num_threads())
    baselines = {"hf": hf_spec(model), "hf-static": hf_static_spec(model, args.static_batch_size)}
    homes = [Home(PEERS[name], folder) for name in args.peers if name in PEERS]
    peers = [spec for home in homes if (spec := _peer_spec(home, model)) is not None]
    phases = [phase_spec(model, phase) for phase in args.phases]
    return [*phases, *peers, *(baselines[name] for name in args.peers if name in baselines)]


def _peer_spec(home: Home, model: ModelChoice) -> PeerSpec | None:
    """None, and a message, where the peer cannot run."""
    source = None if model.is_tiny else _model_folder(model.name)
    why_not = "the tiny model is in no file that a peer could read" if source is None else home.why_not(source)
    if source is None or why_not is not None:
        err.print(f"skipped: {home.peer.name}: {why_not}")
        return None
    return PeerSpec(
        name=home.peer.name,
        label=home.label,
        model=model,
        driver=home.peer.driver,
        python=home.python,
        model_folder=home.model_folder(source),
        environ=home.environ,
        options=home.peer.options,
    )


def _model_folder(name: str | None) -> Path:
    return find_model(name).folder


def _installable(text: str) -> list[Peer]:
    try:
        return [peer_named(name) for name in text.split(",")]
    except SetupError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
