"""The command line of the benchmark suite: what can be asked, and what it means."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from shared.bench.help_texts import (
    CAPACITY,
    EXAMPLES,
    HOW_TO_READ,
    INTERFERENCE,
    STEP_COST,
    STEP_PARTS,
    TABLES,
    WORKLOADS,
)
from shared.bench.workloads import SHAPES
from shared.errors import SetupError
from shared.model_loader import DTYPES
from shared.registry import PHASES, Phase, phase_by_number


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; {self.prog} --help explains\n")


def make_parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="python -m shared.bench",
        description="Measures the phases beside Hugging Face, keeps what was measured, and makes the tables from it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_offline(_add(commands, "offline", "throughput and latency of every phase", f"{WORKLOADS}\n\n{HOW_TO_READ}"))
    _add_interference(_add(commands, "interference", "running streams while a long prompt arrives", INTERFERENCE))
    _add_step_cost(_add(commands, "step-cost", "milliseconds a step costs beside the model", STEP_COST))
    _add_step_parts(_add(commands, "step-parts", "where the milliseconds of a decode step go", STEP_PARTS))
    _add_capacity(_add(commands, "capacity", "sequences at once on the same slots, no model", CAPACITY))
    _add_tables(_add(commands, "tables", "write the READMEs' tables from the published results", TABLES))
    return parser


def _add(
    commands: "argparse._SubParsersAction[OneLineParser]", name: str, summary: str, explanation: str
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=explanation,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_offline(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what to compare")
    what.add_argument("--workloads", type=_listed(str), default=list(SHAPES), metavar="A,B,..", help="default: all")
    _add_phases(what)
    what.add_argument(
        "--baselines",
        type=_baselines,
        default=["hf", "hf-static"],
        metavar="NAMES",
        help="of hf,hf-static, or none; default: both",
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
    _add_model(how)
    how.add_argument("--max-batch-size", type=_count, metavar="N", help="of the phases; default: the phases' own")
    how.add_argument("--static-batch-size", type=_count, metavar="N", default=32, help="of hf-static; default: 32")
    _add_keeping(parser)


def _add_interference(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what to compare")
    what.add_argument(
        "--phases",
        type=_phases,
        default="3,4",
        metavar="3,4,..",
        help="from 2 on; ratios refer to the first; default: 3,4",
    )
    what.add_argument(
        "--prompt-tokens", type=_count, default=1000, metavar="N", help="of the long prompt; default: 1000"
    )
    what.add_argument("--streams", type=_count, default=7, metavar="N", help="that decode meanwhile; default: 7")
    how = parser.add_argument_group("with what")
    how.add_argument(
        "--prefill-chunk-size",
        type=_count,
        metavar="N",
        help="most prompt tokens of a sequence in a step, from phase 4 on; default: the engine's own",
    )
    how.add_argument(
        "--prefill-budget-tokens",
        type=_count,
        metavar="N",
        help="most tokens of a step, from phase 4 on; decodes take theirs first; default: the engine's own",
    )
    _add_model(how)
    _add_keeping(parser)


def _add_sequences(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sequences",
        type=_listed(_count),
        default=[1, 8, 32],
        metavar="N,N,..",
        help="running at once; default: 1,8,32",
    )


def _add_step_cost(parser: argparse.ArgumentParser) -> None:
    _add_phases(parser)
    _add_sequences(parser)
    parser.add_argument("--steps", type=_count, metavar="N", default=500, help="steps of a repeat; default: 500")
    _add_keeping(parser)


def _add_step_parts(parser: argparse.ArgumentParser) -> None:
    _add_phases(parser)
    parser.add_argument(
        "--sequences",
        type=_listed(_count),
        default=[1, 8, 32],
        metavar="N,N,..",
        help="running at once; default: 1,8,32",
    )
    parser.add_argument("--context", type=_count, default=128, metavar="N", help="tokens of each; default: 128")
    parser.add_argument("--steps", type=_count, metavar="N", default=30, help="steps of a repeat; default: 30")
    _add_model(parser.add_argument_group("model"))
    _add_keeping(parser)


def _add_capacity(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pool-slots", type=_count, metavar="N", default=8192, help="tokens whose K/V there is room for; default: 8192"
    )
    parser.add_argument(
        "--block-sizes",
        type=_listed(_count),
        default=[1, 4, 8, 16, 32, 64],
        metavar="N,N,..",
        help="tokens per block, of the sweep on demand; the comparison has 16; default: 1,4,8,16,32,64",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first draw; default: 0")
    keeping = _add_keeping(parser, 3, "draws of the jobs, each with the next seed")
    keeping.add_argument(
        "--chart",
        type=_svg,
        metavar="FILE.svg",
        help="draw the comparison; default: shared/bench/published/capacity.svg with --publish, else nowhere",
    )


def _add_tables(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if a table is not what it should be"
    )
    parser.add_argument("--root", metavar="DIR", help="the repository; default: this one")


def _add_model(parser: "argparse._ArgumentGroup") -> None:
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the token ids and lengths; default: 0")
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model", help="a folder, a .gguf file or a hub id; default: SmolLM2-135M-Instruct")
    model.add_argument("--tiny", action="store_true", help="a random two-layer model: for trying the command only")
    parser.add_argument(
        "--dtype",
        choices=[name for name in DTYPES if name != "auto"],
        default="float32",
        metavar="TYPE",
        help="float32 (the default), bfloat16, float16 or float64",
    )
    parser.add_argument("--threads", type=_count, metavar="N", help="torch's threads; default: torch's own choice")


def _add_phases(parser: "argparse._ActionsContainer") -> None:
    parser.add_argument(
        "--phases", type=_phases, default=list(PHASES), metavar="1,2,..", help="all (the default), none, or numbers"
    )


def _add_keeping(
    parser: argparse.ArgumentParser, repeats: int = 5, what: str = "rounds; five or more for a number to rely on"
) -> "argparse._ArgumentGroup":
    keeping = parser.add_argument_group("what becomes of it")
    keeping.add_argument(
        "--repeats",
        type=_count,
        metavar="N",
        default=repeats,
        help=f"{what}; default: {repeats}",
    )
    keeping.add_argument("--out", default="results", metavar="DIR", help="where the JSON goes; default: results")
    keeping.add_argument("--publish", action="store_true", help="into shared/bench/published instead, for the READMEs")
    return keeping


def _phases(text: str) -> list[Phase]:
    if text in ("all", "none"):
        return list(PHASES) if text == "all" else []
    try:
        return [phase_by_number(number) for number in _listed(_count)(text)]
    except SetupError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _baselines(text: str) -> list[str]:
    names = [] if text == "none" else text.split(",")
    if unknown := set(names) - {"hf", "hf-static"}:
        raise argparse.ArgumentTypeError(f"{unknown.pop()!r} is not hf, hf-static or none")
    return names


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return int(text)


def _svg(text: str) -> Path:
    if not text.endswith(".svg"):
        raise argparse.ArgumentTypeError(f"must be a file name that ends in .svg, got {text!r}")
    return Path(text)


def _listed(read: Callable[[str], object]) -> Callable[[str], list]:
    def values_separated_by_commas(text: str) -> list:
        return [read(part) for part in text.split(",")]

    return values_separated_by_commas
