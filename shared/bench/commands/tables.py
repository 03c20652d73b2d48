"""`tables`: write the READMEs' tables from the published results."""

import argparse
from collections.abc import Sequence as Seq
from pathlib import Path

from shared.bench.code_files import REPOSITORY
from shared.bench.keeping import err, out
from shared.bench.tables import update
from shared.errors import SetupError

EXPLANATION = """A README asks for a table with a pair of lines, each at the beginning of its line:

  <!-- bench:offline workload=A columns=system,tok_s,ratio systems=hf,phase02 -->
  <!-- /bench -->

options: workload, dtype, model and file choose the result (the newest that fits), systems and columns what is
shown of it, and chart the picture above it; all may be left out. A result that was measured before its systems' code
changed is named in a note, which is no error."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if a table is not what it should be"
    )
    parser.add_argument("--root", metavar="DIR", help="the repository; default: this one")


def run(args: argparse.Namespace, _argv: Seq[str]) -> int:
    root = Path(args.root or REPOSITORY)
    if not root.is_dir():
        raise SetupError(f"--root {args.root}: there is no such folder")
    wrong, outdated = update(root, check=args.check)
    for line in outdated:
        err.print(f"note: {line}")
    if outdated:
        err.print(
            "note: whether that matters for a speed is for you to say; measure again with the command below a table"
        )
    for line in wrong:
        out.print(f"{line}: {'not what was measured' if args.check else 'written'}", soft_wrap=True)
    if wrong and args.check:
        err.print("error: tables differ from the published results; run python -m shared.bench tables")
    return 1 if wrong and args.check else 0
