"""`accuracy`: how close each dtype and forward pass comes to Hugging Face in fp32."""

import argparse
from collections.abc import Sequence as Seq

from shared.bench.arguments import add_keeping_alone, add_model_alone, check_publishable, count, listed, model_choice
from shared.bench.code_files import REPOSITORY
from shared.bench.host import provenance
from shared.bench.keeping import err, keep
from shared.bench.progress import ProgressLine
from shared.config import CHOICES
from shared.errors import SetupError
from shared.model_loader import DTYPES

ALONE = "transformers"
EXPLANATION = """what happens: everyone reads the same prose (this repository's READMEs, without code and tables) and
says at each position what comes next; what was said before does not matter (teacher forcing). The reference is Hugging
Face in float32.

how to read it:
  top-1 %       positions where the likeliest token is the same
  clear         differences where the reference was not undecided: its best two logits were over 0.1 apart
  KL            of the whole distributions, in nats: mean, 99th percentile
  loss          of the text itself; the reference's own is that of "float32, Hugging Face alone"
A forward pass of this project should be as close as Hugging Face's own model is in the same dtype."""


def add_options(parser: argparse.ArgumentParser) -> None:
    forwards = [name for name in CHOICES["forward"] if name != "auto"]
    parser.add_argument(
        "--dtypes", type=listed(str), default=["float32", "bfloat16"], metavar="T,T", help="default: float32,bfloat16"
    )
    parser.add_argument(
        "--forwards",
        type=listed(str),
        default=[ALONE, *forwards],
        metavar="F,F",
        help=f"of {ALONE} (no engine), {', '.join(forwards)}; default: all",
    )
    parser.add_argument("--positions", type=count, default=2048, metavar="N", help="at least so many; default: 2048")
    add_model_alone(parser.add_argument_group("model"), has_dtype=False)
    add_keeping_alone(parser)


def run(args: argparse.Namespace, argv: Seq[str]) -> int:
    from shared.bench.accuracy import Pair, run_accuracy, text_windows  # imports torch

    check_publishable(args)
    _check_known("--dtypes", args.dtypes, [name for name in DTYPES if name != "auto"])
    _check_known("--forwards", args.forwards, [ALONE, *CHOICES["forward"]])
    pairs = [Pair(dtype, forward) for dtype in args.dtypes for forward in args.forwards]
    choice = model_choice(args)
    origin = provenance(argv, REPOSITORY)
    windows = text_windows(choice, REPOSITORY, args.positions)
    with ProgressLine(err, 1 + len(pairs)) as progress:
        result = run_accuracy(pairs, choice, windows, origin, progress.announce)
    keep(result, args)
    return 0


def _check_known(option: str, names: Seq[str], known: Seq[str]) -> None:
    if unknown := [name for name in names if name not in known]:
        raise SetupError(f"{option} {unknown[0]} is not known; choose of {', '.join(known)}")
