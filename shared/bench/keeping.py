"""What becomes of a result: a file, a table on the terminal, and where it is."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from rich.console import Console

from shared.bench.code_files import REPOSITORY
from shared.bench.columns import ON_SCREEN, make_table, said_columns
from shared.bench.progress import ProgressLine
from shared.bench.results import Result, write_result
from shared.bench.source_line import disturbance, source_line
from shared.bench.tables import PUBLISHED

WIDE = 260  # characters, where no terminal says how wide it is
out = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else WIDE)
err = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)


class Plan(Protocol):
    @property
    def num_announcements(self) -> int: ...


AnyPlan = TypeVar("AnyPlan", bound=Plan)


def run_plan(
    run: Callable[[AnyPlan, Callable[[str], None], Callable[[Result], object]], None],
    plan: AnyPlan,
    args: argparse.Namespace,
) -> int:
    """Run a plan under a progress line and keep each of its results as it comes. Returns a command's exit code."""
    with ProgressLine(err, plan.num_announcements) as progress:
        run(plan, progress.announce, lambda result: keep(result, args))
    say_recorded(args)
    return 0


def say_recorded(args: argparse.Namespace) -> None:
    if args.record is not None:
        err.print(f"recorded in {args.record}, a file for each phase: python -m shared.trace replay --open FILE")


def keep(result: Result, args: argparse.Namespace) -> Path:
    """Write a result, show it, and return where it is. One that was interrupted is not published."""
    num_repeats = len(result.systems[0].repeats)
    is_whole = num_repeats == result.planned_repeats
    path = write_result(result, REPOSITORY / PUBLISHED if args.publish and is_whole else Path(args.out))
    for warning in disturbance(result):
        err.print(f"warning: {warning}")
    for note in dict.fromkeys(f"{system.label}: {note}" for system in result.systems for note in system.notes):
        err.print(f"note: {note}")
    out.print()
    out.print(make_table(result, said_columns(result, ON_SCREEN[result.kind]), result.systems))
    out.print(source_line(path.name, result), soft_wrap=True)
    err.print(f"{'' if is_whole else f'only {num_repeats} of {result.planned_repeats} rounds; '}kept in {path}")
    return path
