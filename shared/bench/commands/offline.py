"""`offline`: throughput and latency of every phase beside Hugging Face."""

import argparse
from collections.abc import Sequence as Seq
from dataclasses import replace

from shared.bench.ablation import variant_spec, variants
from shared.bench.arguments import (
    add_keeping,
    add_model,
    add_phases,
    add_recording,
    check_publishable,
    count,
    listed,
    model_choice,
    none_or_of,
)
from shared.bench.code_files import REPOSITORY
from shared.bench.host import provenance
from shared.bench.keeping import run_plan
from shared.bench.offline import OfflinePlan, run_offline
from shared.bench.systems import BENCH_CONFIG, SystemSpec, hf_continuous_spec, hf_spec, hf_static_spec, phase_spec
from shared.bench.workloads import FOR_ALL, SHAPES, num_of

BASELINES = ("hf", "hf-static", "hf-continuous")
WORKLOADS = (
    "workloads (all requests come at once; output lengths are forced, but for texts, which end at EOS):\n"
    + "\n".join(
        f"  {shape.title}, {num_of(shape.num_requests, shape.num_requests)}: {shape.stresses}"
        for shape in SHAPES.values()
    )
)
HOW_TO_READ = """how to read it: the host's speed drifts, by half and more within minutes. So systems run in turns,
round after round; "ratio" compares two runs of the same round, and the median of these ratios counts, with the
smallest and the largest beside it. "exact" counts the requests whose tokens are those of HF alone in fp32. TTFT
is high by design: everything comes at once, and it counts the wait. Run nothing else meanwhile."""
EXPLANATION = f"{WORKLOADS}\n\n{HOW_TO_READ}"


def add_options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what to compare")
    what.add_argument("--workloads", type=listed(str), default=list(FOR_ALL), metavar="A,B,..", help="default: A,B,C,D")
    add_phases(what)
    what.add_argument(
        "--baselines",
        type=none_or_of(BASELINES),
        default=["hf", "hf-static"],
        metavar="NAMES",
        help=f"of {','.join(BASELINES)}, or none; default: hf,hf-static",
    )
    what.add_argument(
        "--ablate",
        type=_variants,
        default=[],
        metavar="NAMES",
        help=f"the newest phase with one thing changed: all, or of {','.join(variants())}; default: none",
    )
    what.add_argument(
        "--base", metavar="NAME", help="the system that ratios refer to, such as phase02; default: the first"
    )
    how = parser.add_argument_group("how much, and with what")
    how.add_argument(
        "--scale", type=float, default=0.25, metavar="SHARE", help="share of the requests, in (0, 1]; default: 0.25"
    )
    how.add_argument(
        "--slow-scale",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="share of those for hf and phases 1 to 6; rows say so; default: 1",
    )
    add_model(how)
    how.add_argument("--max-batch-size", type=count, metavar="N", help="of the phases; default: the phases' own")
    how.add_argument(
        "--static-batch-size", type=count, metavar="N", default=32, help="of hf-static, hf-continuous; default: 32"
    )
    add_recording(add_keeping(parser))


def run(args: argparse.Namespace, argv: Seq[str]) -> int:
    check_publishable(args)
    specs = _specs(args)
    plan = OfflinePlan(
        workload_keys=args.workloads,
        specs=specs,
        base=args.base or (specs[0].name if specs else ""),
        scale=args.scale,
        slow_scale=args.slow_scale,
        seed=args.seed,
        num_rounds=args.repeats,
        provenance=provenance(argv, REPOSITORY),
        record=args.record,
    )
    return run_plan(run_offline, plan, args)


def _specs(args: argparse.Namespace) -> list[SystemSpec]:
    """The systems in the order of a round: baselines first."""
    model = model_choice(args)
    baselines = {
        "hf": hf_spec(model),
        "hf-static": hf_static_spec(model, args.static_batch_size),
        "hf-continuous": hf_continuous_spec(model, args.static_batch_size),
    }
    config = replace(BENCH_CONFIG, max_batch_size=args.max_batch_size or "auto")
    phases = [phase_spec(model, phase, config) for phase in args.phases]
    ablated = [variant_spec(model, name, config) for name in args.ablate]
    return [baselines[name] for name in args.baselines] + phases + ablated


def _variants(text: str) -> list[str]:
    return list(variants()) if text == "all" else none_or_of(variants())(text)
