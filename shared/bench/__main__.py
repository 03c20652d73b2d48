"""`python -m shared.bench offline --tiny --repeats 2`; `--help` has the rest."""

import argparse
import sys
from collections.abc import Sequence as Seq
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from shared.bench.commands import COMMANDS
from shared.bench.keeping import err
from shared.bench.results import make_folder
from shared.bench.worker import SystemFailed
from shared.errors import SetupError

EXAMPLES = """examples:
  python -m shared.bench offline --tiny --repeats 2          does it work? (a random tiny model, under a minute)
  python -m shared.bench offline --workloads A               the random workload, a quarter of its requests
  python -m shared.bench offline --phases 1 --baselines hf --workloads C    phase 1 against Hugging Face
  python -m shared.bench interference --tiny --repeats 2     what a long prompt does to running streams
  python -m shared.bench step-cost                           what the step loop itself costs
  python -m shared.bench step-parts                          where a decode step's milliseconds go
  python -m shared.bench capacity                            how many sequences the same memory serves at once
  python -m shared.bench tables --check                      are the READMEs' tables what was measured?

exit codes: 0 done, 1 a system failed or a table is not right, 2 something has to be mended first, 130 Ctrl-C"""


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; {self.prog} --help explains\n")


def main(argv: Seq[str] | None = None) -> int:
    """The command; returns its exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    args = make_parser().parse_args(argv)
    try:
        if getattr(args, "publish", None) is False and not getattr(args, "dry_run", False):
            make_folder(Path(args.out))
        return args.run(args, argv)
    except SetupError as error:
        err.print(f"error: {error}")
        return 2
    except SystemFailed as error:
        err.print(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        err.print("interrupted")
        return 130


def make_parser() -> argparse.ArgumentParser:
    """A subcommand for each of COMMANDS."""
    parser = OneLineParser(
        prog="python -m shared.bench",
        description="Measures the phases beside Hugging Face, keeps what was measured, and makes the tables from it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module_name, summary) in COMMANDS.items():
        module = import_module(module_name)
        command = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=module.EXPLANATION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_options(command)
        command.set_defaults(run=module.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
