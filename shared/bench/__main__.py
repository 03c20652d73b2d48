"""`python -m shared.bench offline --tiny --repeats 2`; `--help` has the rest."""

import argparse
import sys
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from shared.bench.arguments import make_parser
from shared.bench.capacity import CapacityPlan, run_capacity
from shared.bench.code_files import REPOSITORY
from shared.bench.columns import ON_SCREEN, make_table
from shared.bench.host import provenance
from shared.bench.interference import InterferencePlan, Tokens, interference_spec, run_interference
from shared.bench.offline import OfflinePlan, run_offline
from shared.bench.progress import ProgressLine
from shared.bench.results import Result, read_result, write_result
from shared.bench.source_line import disturbance, source_line
from shared.bench.systems import BENCH_CONFIG, ModelChoice, SystemSpec, hf_spec, hf_static_spec, phase_spec
from shared.bench.tables import PUBLISHED, update
from shared.bench.worker import SystemFailed
from shared.errors import SetupError

FIRST_WITH_STEPS = 2
CHART = "capacity.svg"
WIDE = 200  # characters, where no terminal says how wide it is
out = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else WIDE)
err = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)


def main(argv: Seq[str] | None = None) -> int:
    """The command; returns its exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    args = make_parser().parse_args(argv)
    commands = {
        "offline": offline,
        "interference": interference,
        "step-cost": step_cost,
        "step-parts": step_parts,
        "capacity": capacity,
        "tables": tables,
    }
    try:
        return commands[args.command](args, argv)
    except SetupError as error:
        err.print(f"error: {error}")
        return 2
    except SystemFailed as error:
        err.print(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        err.print("interrupted")
        return 130


def offline(args: argparse.Namespace, argv: Seq[str]) -> int:
    _check_publishable(args)
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
    )
    with ProgressLine(err, plan.num_announcements) as progress:
        run_offline(plan, progress.announce, lambda result: keep(result, args))
    return 0


def interference(args: argparse.Namespace, argv: Seq[str]) -> int:
    _check_publishable(args)
    model = _model(args)
    chunk: Tokens = args.prefill_chunk_size or "auto"
    budget: Tokens = args.prefill_budget_tokens or "auto"
    plan = InterferencePlan(
        specs=[interference_spec(model, phase, args.streams, chunk, budget) for phase in args.phases],
        num_streams=args.streams,
        num_prompt_tokens=args.prompt_tokens,
        seed=args.seed,
        num_rounds=args.repeats,
        provenance=provenance(argv, REPOSITORY),
    )
    with ProgressLine(err, plan.num_announcements) as progress:
        run_interference(plan, progress.announce, lambda result: keep(result, args))
    return 0


def step_cost(args: argparse.Namespace, argv: Seq[str]) -> int:
    from shared.bench.step_cost import StepCostCase, run_step_cost  # imports torch

    phases = [phase for phase in args.phases if phase.number >= FIRST_WITH_STEPS]
    if not phases:
        raise SetupError(f"phase 1 has no step loop: choose phases from {FIRST_WITH_STEPS} on")
    cases = [StepCostCase(phase, num_sequences) for phase in phases for num_sequences in args.sequences]
    origin = provenance(argv, REPOSITORY)
    with ProgressLine(err, len(cases) * args.repeats) as progress:
        systems = run_step_cost(cases, args.steps, args.repeats, progress.announce)
    keep(Result("step-cost", origin, systems, planned_repeats=args.repeats), args)
    return 0


def step_parts(args: argparse.Namespace, argv: Seq[str]) -> int:
    from shared.bench.step_parts import FIRST_PACKED, StepPartsCase, run_step_parts  # imports torch

    _check_publishable(args)
    phases = [phase for phase in args.phases if phase.number >= FIRST_PACKED]
    if not phases:
        raise SetupError(f"phases before {FIRST_PACKED} run a forward pass per sequence: choose later ones")
    cases = [StepPartsCase(phase, number, args.context) for phase in phases for number in args.sequences]
    origin = provenance(argv, REPOSITORY)
    with ProgressLine(err, len(cases) * args.repeats) as progress:
        systems, model = run_step_parts(cases, _model(args), args.steps, args.repeats, progress.announce)
    keep(Result("step-parts", origin, systems, planned_repeats=args.repeats, model=model), args)
    return 0


def capacity(args: argparse.Namespace, argv: Seq[str]) -> int:
    plan = CapacityPlan(
        pool_slots=args.pool_slots,
        block_sizes=args.block_sizes,
        seed=args.seed,
        num_rounds=args.repeats,
        provenance=provenance(argv, REPOSITORY),
    )
    with ProgressLine(err, plan.num_announcements) as progress:
        comparison, sweep = run_capacity(plan, progress.announce)
    path = keep(comparison, args)
    keep(sweep, args)
    chart = args.chart or (REPOSITORY / PUBLISHED / CHART if args.publish else None)
    if chart is not None:
        from shared.bench.capacity_chart import draw_capacity  # imports matplotlib

        draw_capacity(read_result(path), chart)
        err.print(f"drawn in {chart}")
    return 0


def tables(args: argparse.Namespace, _argv: Seq[str]) -> int:
    root = Path(args.root or REPOSITORY)
    if not root.is_dir():
        raise SetupError(f"--root {args.root}: there is no such folder")
    wrong, outdated = update(root, check=args.check)
    for line in outdated:
        err.print(f"note: {line}")
    for line in wrong:
        out.print(f"{line}: {'not what was measured' if args.check else 'written'}", soft_wrap=True)
    if wrong and args.check:
        err.print("error: tables differ from the published results; run python -m shared.bench tables")
    return 1 if wrong and args.check else 0


def keep(result: Result, args: argparse.Namespace) -> Path:
    """Write a result, show it, and return where it is. One that was interrupted is not published."""
    num_repeats = len(result.systems[0].repeats)
    is_whole = num_repeats == result.planned_repeats
    path = write_result(result, REPOSITORY / PUBLISHED if args.publish and is_whole else Path(args.out))
    for warning in disturbance(result):
        err.print(f"warning: {warning}")
    out.print()
    out.print(make_table(result, ON_SCREEN[result.kind], result.systems))
    out.print(source_line(path.name, result), soft_wrap=True)
    err.print(f"{'' if is_whole else f'only {num_repeats} of {result.planned_repeats} rounds; '}kept in {path}")
    return path


def _specs(args: argparse.Namespace) -> list[SystemSpec]:
    """The systems in the order of a round: baselines first."""
    model = _model(args)
    baselines = {"hf": hf_spec(model), "hf-static": hf_static_spec(model, args.static_batch_size)}
    config = replace(BENCH_CONFIG, max_batch_size=args.max_batch_size or "auto")
    phases = [phase_spec(model, phase, config) for phase in args.phases]
    return [baselines[name] for name in args.baselines] + phases


def _model(args: argparse.Namespace) -> ModelChoice:
    return ModelChoice(args.model, args.tiny, args.dtype, num_threads=args.threads)


def _check_publishable(args: argparse.Namespace) -> None:
    if args.tiny and args.publish:
        raise SetupError("a random model's figures are not for publishing: leave out --tiny or --publish")


if __name__ == "__main__":
    sys.exit(main())
