"""`all`: a complete small set, then the charts; `make bench` runs it."""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from pathlib import Path

from shared.bench.arguments import check_publishable
from shared.bench.code_files import REPOSITORY
from shared.bench.keeping import err
from shared.errors import SetupError
from shared.registry import newest_phase

NEWEST = str(newest_phase().number)
STEPS: tuple[str, ...] = (  # about 20 minutes on two cores in all; rows with fewer requests say so
    "capacity --repeats 3",
    "offline --workloads A --slow-scale 0.125 --repeats 3 --baselines hf,hf-static,hf-continuous",
    f"offline --workloads A --slow-scale 0.125 --repeats 1 --baselines none --phases {NEWEST} --ablate all",
    f"offline --workloads B --scale 0.125 --repeats 1 --baselines hf-static --phases 9,{NEWEST} --ablate no-cache",
    "who-waits --repeats 3",
    "interference --repeats 1",
    "preemption --scale 0.125 --pool-slots 1024 --repeats 1",
    "speculation --scale 0.0625 --repeats 1",
    f"serving --phases 1,4,{NEWEST} --rates 0.5,1,2 --requests 8 --output-len 16-32 --repeats 1",
    "accuracy --positions 512",
    "step-time --contexts 128,1024 --sequences 1,8 --steps 5 --repeats 1",
)
WITHOUT_MODEL = ("capacity",)
EXPLANATION = """what runs, one after the other, at most 20 minutes on two cores:
  {}

How each is read, its own --help says. Few rounds and few requests: good to see that everything works and in which
direction it goes, and not to rely on a number. One that fails is named at the end, and the others still run.""".format(
    "\n  ".join(STEPS)
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="results/bench", metavar="DIR", help="default: results/bench")
    parser.add_argument(
        "--publish", action="store_true", help="into shared/bench/published instead, and write the tables"
    )
    parser.add_argument("--tiny", action="store_true", help="on a random model: for trying it only, about 3 minutes")
    parser.add_argument("--only", metavar="NAME,..", help="of these commands alone, such as capacity,who-waits")
    parser.add_argument("--dry-run", action="store_true", help="show the commands, and run none")


def run(args: argparse.Namespace, _argv: Seq[str]) -> int:
    check_publishable(args)
    started, failed = time.monotonic(), []
    steps = list(_steps(args))
    for number, step in enumerate(steps, 1):
        err.print(f"[{number}/{len(steps)}, {_minutes(started)}] python -m shared.bench {' '.join(step)}")
        if not args.dry_run and _run(step) != 0:
            failed.append(step[0])
    err.print(f"{_minutes(started)} in all" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def _steps(args: argparse.Namespace) -> Iterator[list[str]]:
    wanted = args.only.split(",") if args.only else [step.split()[0] for step in STEPS]
    if unknown := set(wanted) - {step.split()[0] for step in STEPS}:
        raise SetupError(f"--only {unknown.pop()} is not in the set: all --help lists it")
    keeping = ["--publish"] if args.publish else ["--out", args.out]
    for step in STEPS:
        name, *options = step.split()
        if name in wanted:
            tiny = ["--tiny"] if args.tiny and name not in WITHOUT_MODEL else []
            yield [name, *options, *tiny, *keeping]
    if args.publish:
        yield ["tables"]
        yield ["charts"]
    else:
        yield ["charts", "--results", args.out, "--out", str(Path(args.out, "charts"))]


def _run(step: Seq[str]) -> int:
    """In a process of its own, so that nothing of one is in the memory of the next."""
    here = Path.cwd()
    command = [sys.executable, "-m", "shared.bench", *_with_whole_paths(step, here)]
    return subprocess.run(command, cwd=REPOSITORY, check=False).returncode


def _with_whole_paths(step: Seq[str], here: Path) -> list[str]:
    """Folders are meant from where the user is."""
    folders = {number + 1 for number, word in enumerate(step) if word in ("--out", "--results")}
    return [str(here / word) if number in folders else word for number, word in enumerate(step)]


def _minutes(started: float) -> str:
    return f"{(time.monotonic() - started) / 60:.1f} min"
