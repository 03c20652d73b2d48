"""The options that commands have in common, and what is made of them."""

import argparse
from collections.abc import Callable, Collection
from pathlib import Path

from shared.bench.systems import ModelChoice
from shared.errors import SetupError
from shared.model_loader import DTYPES
from shared.registry import PHASES, Phase, phase_by_number


def add_model(parser: "argparse._ArgumentGroup") -> None:
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the token ids and lengths; default: 0")
    add_model_alone(parser)


def add_model_alone(parser: "argparse._ArgumentGroup", *, has_dtype: bool = True) -> None:
    """Which model, and with what; without the seed of what it is given."""
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model", help="a folder, a .gguf file or a hub id; default: SmolLM2-135M-Instruct")
    model.add_argument("--tiny", action="store_true", help="a random two-layer model: for trying the command only")
    if has_dtype:
        parser.add_argument(
            "--dtype",
            choices=[name for name in DTYPES if name != "auto"],
            default="float32",
            metavar="TYPE",
            help="float32 (the default), bfloat16, float16 or float64",
        )
    parser.add_argument("--threads", type=count, metavar="N", help="torch's threads; default: torch's own choice")


def add_scale(parser: "argparse._ActionsContainer") -> None:
    parser.add_argument(
        "--scale", type=float, default=0.25, metavar="SHARE", help="share of the requests, in (0, 1]; default: 0.25"
    )


def add_phases(parser: "argparse._ActionsContainer") -> None:
    parser.add_argument(
        "--phases", type=phases, default=list(PHASES), metavar="1,2,..", help="all (the default), none, or numbers"
    )


def add_sequences(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sequences",
        type=listed(count),
        default=[1, 8, 32],
        metavar="N,N,..",
        help="running at once; default: 1,8,32",
    )


def add_keeping(
    parser: argparse.ArgumentParser, repeats: int = 5, what: str = "rounds; five or more for a number to rely on"
) -> "argparse._ArgumentGroup":
    keeping = add_keeping_alone(parser)
    keeping.add_argument("--repeats", type=count, metavar="N", default=repeats, help=f"{what}; default: {repeats}")
    return keeping


def add_keeping_alone(parser: argparse.ArgumentParser) -> "argparse._ArgumentGroup":
    """Where the result goes, of what is run once."""
    keeping = parser.add_argument_group("what becomes of it")
    keeping.add_argument("--out", default="results", metavar="DIR", help="where the JSON goes; default: results")
    keeping.add_argument("--publish", action="store_true", help="into shared/bench/published instead, for the READMEs")
    return keeping


def add_recording(parser: "argparse._ActionsContainer") -> None:
    parser.add_argument(
        "--record",
        type=Path,
        metavar="DIR",
        help="after the timed rounds, run the phases once more, untimed, and write down what each does, step by step, "
        "in a file of its own in this folder; see python -m shared.trace",
    )


def phases(text: str) -> list[Phase]:
    if text in ("all", "none"):
        return list(PHASES) if text == "all" else []
    try:
        return [phase_by_number(number) for number in listed(count)(text)]
    except SetupError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return int(text)


def listed(read: Callable[[str], object]) -> Callable[[str], list]:
    def values_separated_by_commas(text: str) -> list:
        return [read(part) for part in text.split(",")]

    return values_separated_by_commas


def none_or_of(known: Collection[str]) -> Callable[[str], list[str]]:
    def none_or_names_of_these(text: str) -> list[str]:
        names = [] if text == "none" else text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(known)}, or none")
        return names

    return none_or_names_of_these


def model_choice(args: argparse.Namespace) -> ModelChoice:
    return ModelChoice(args.model, args.tiny, getattr(args, "dtype", "float32"), num_threads=args.threads)


def check_publishable(args: argparse.Namespace) -> None:
    if args.tiny and args.publish:
        raise SetupError("a random model's figures are not for publishing: leave out --tiny or --publish")
