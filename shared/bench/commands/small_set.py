"""`all`: a complete small set, then the charts; `make bench` runs it."""

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shared.bench.arguments import check_publishable
from shared.bench.code_files import REPOSITORY
from shared.bench.keeping import err
from shared.errors import SetupError
from shared.registry import newest_phase

NEWEST = str(newest_phase().number)


@dataclass(frozen=True, slots=True)
class Step:
    """minutes: about what it takes on two cores, for the estimate alone."""

    command: str
    minutes: float

    @property
    def name(self) -> str:
        return self.command.split()[0]


STEPS: tuple[Step, ...] = (  # under 20 minutes on two cores in all; rows with fewer requests say so
    Step("capacity --repeats 1 --block-sizes 4,16,64", 0.5),
    Step("offline --workloads A --slow-scale 0.25 --repeats 1 --baselines hf,hf-static,hf-continuous", 2.5),
    Step(f"offline --workloads A --slow-scale 0.25 --repeats 1 --baselines none --phases {NEWEST} --ablate all", 2.5),
    Step(
        f"offline --workloads B --scale 0.125 --repeats 1 --baselines hf-static --phases 9,{NEWEST} --ablate no-cache",
        1.0,
    ),
    Step("who-waits --repeats 1", 0.5),
    Step("interference --repeats 1", 2.0),
    Step("preemption --scale 0.2 --pool-slots 512,1024 --repeats 1", 3.0),
    Step("speculation --scale 0.0625 --repeats 1", 1.5),
    Step(f"serving --phases 1,4,{NEWEST} --rates 1,2,4 --requests 8 --output-len 16-32 --repeats 1", 1.5),
    Step(f"load --serve {NEWEST} --compare-loops 2 --requests 10 --output-len 16-32", 0.5),
    Step("accuracy --positions 512", 0.5),
    Step("step-time --contexts 128,1024 --sequences 1,8 --forwards native --kernels cpp,torch --repeats 1", 0.5),
    Step("step-parts --phases 8 --repeats 1", 0.5),
    Step("moves --scale 0.125 --repeats 1", 1.5),
)
WITHOUT_MODEL = ("capacity",)
INTERRUPTED = 130
PATIENCE_S = 5.0  # more than it takes to keep a result
EXPLANATION = """what runs, one after the other, under 20 minutes on two cores:
  {}

How each is read, its own --help says. Few rounds and few requests: good to see that everything works and in which
direction it goes, and not to rely on a number. One that fails is named at the end, and the others still run. Ctrl-C
ends it; what was measured is kept, and drawn by the next run or by `charts --results`.""".format(
    "\n  ".join(step.command for step in STEPS)
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
    steps = [*_measuring(args), *_drawing(args)]
    started, failed = time.monotonic(), []
    for number, (minutes, words) in enumerate(steps, 1):
        left = sum(minutes for minutes, _ in steps[number - 1 :])
        about = "" if args.tiny else f", about {max(1, round(left))} min left"
        where = f"[{number}/{len(steps)}, {_minutes(started)}{about}]"
        err.print(f"{where} python -m shared.bench {' '.join(words)}")
        code = 0 if args.dry_run else _run(words)
        if code == INTERRUPTED:
            raise KeyboardInterrupt  # the step has kept its own
        if code != 0:
            failed.append(words[0])
    err.print(f"{_minutes(started)} in all" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def _measuring(args: argparse.Namespace) -> Iterator[tuple[float, list[str]]]:
    """Minutes, and the words of a command."""
    wanted = args.only.split(",") if args.only else [step.name for step in STEPS]
    if unknown := set(wanted) - {step.name for step in STEPS}:
        raise SetupError(f"--only {unknown.pop()} is not in the set: all --help lists it")
    keeping = ["--publish"] if args.publish else ["--out", args.out]
    for step in STEPS:
        if step.name in wanted:
            tiny = ["--tiny"] if args.tiny and step.name not in WITHOUT_MODEL else []
            yield step.minutes, [*step.command.split(), *tiny, *keeping]


def _drawing(args: argparse.Namespace) -> Iterator[tuple[float, list[str]]]:
    """Charts first: tables stand below them."""
    if args.publish:
        yield 0.2, ["charts"]
        yield 0.2, ["tables"]
    else:
        yield 0.2, ["charts", "--results", args.out, "--out", str(Path(args.out, "charts"))]


def _run(words: Seq[str]) -> int:
    """In a process of its own, so that nothing of one is in the memory of the next. Its exit code.

    A terminal sends Ctrl-C to both: this one waits until the other has kept what it has. A signal to this one alone
    is handed on.
    """
    command = [sys.executable, "-m", "shared.bench", *_with_whole_paths(words, Path.cwd())]
    with subprocess.Popen(command, cwd=REPOSITORY) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE_S)
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait()
            return INTERRUPTED


def _with_whole_paths(words: Seq[str], here: Path) -> list[str]:
    """Folders are meant from where the user is."""
    folders = {number + 1 for number, word in enumerate(words) if word in ("--out", "--results")}
    return [str(here / word) if number in folders else word for number, word in enumerate(words)]


def _minutes(started: float) -> str:
    return f"{(time.monotonic() - started) / 60:.1f} min"
