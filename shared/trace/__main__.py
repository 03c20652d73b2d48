"""Recordings: look at them, turn them into something else, make the page's own.

python -m phase12_prefix_and_spec generate --record run.jsonl "Why is the sky blue?"
python -m shared.trace replay run.jsonl
python -m shared.trace chrome run.jsonl
"""

import argparse
import json
import sys
from collections.abc import Sequence as Seq
from pathlib import Path

from shared.cli import exit_code
from shared.errors import SetupError
from shared.trace.chrome import chrome_trace
from shared.trace.recording import read_recording

EXAMPLES = """\
examples:
  python -m phase12_prefix_and_spec generate --record run.jsonl "Why is the sky blue?" "Name three fruits."
  %(prog)s replay --open run.jsonl             in the browser, on a clock that can be stopped
  %(prog)s chrome run.jsonl -o run.json        then open run.json in https://ui.perfetto.dev
  %(prog)s scenes                              run the page's own scenes again on this machine, and keep them
"""


def main(argv: Seq[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    return exit_code(lambda: args.run(args))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m shared.trace",
        description="Recordings of an engine at work: times, numbers and blocks; no tokens and no text.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    replay = commands.add_parser("replay", help="serve the page with this recording, on this machine only")
    replay.add_argument("file", metavar="FILE", type=Path)
    replay.add_argument("--port", type=int, default=8002, metavar="N", help="0 takes a free one (default: 8002)")
    replay.add_argument("--open", action="store_true", help="open the browser, too")
    replay.set_defaults(run=run_replay)
    chrome = commands.add_parser("chrome", help="write a Chrome trace, which Perfetto opens")
    chrome.add_argument("file", metavar="FILE", type=Path)
    chrome.add_argument("-o", "--output", metavar="FILE", help="default: standard output")
    chrome.set_defaults(run=run_chrome)
    scenes = commands.add_parser("scenes", help="record the page's own scenes with the default model: about a minute")
    scenes.add_argument("names", nargs="*", metavar="SCENE", help="default: all")
    scenes.add_argument("--out", type=Path, metavar="DIR", help="default: where the page has them")
    scenes.set_defaults(run=run_scenes)
    return parser


def run_replay(args: argparse.Namespace) -> int:
    from shared.trace.replay import replay

    replay(args.file, args.port, opens_browser=args.open)
    return 0


def run_chrome(args: argparse.Namespace) -> int:
    text = json.dumps(chrome_trace(read_recording(args.file)), separators=(",", ":"))
    if args.output is None:
        print(text)
        return 0
    try:
        Path(args.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SetupError(f"--output {args.output}: {error.strerror}; give a file that can be written") from None
    print(f"written to {args.output}; open it in https://ui.perfetto.dev", file=sys.stderr)
    return 0


def run_scenes(args: argparse.Namespace) -> int:
    from shared.trace.scenes import FOLDER, SCENES, record_scenes

    known = [scene.name for scene in SCENES]
    if unknown := [name for name in args.names if name not in known]:
        raise SetupError(f"there is no scene {unknown[0]!r}; scenes: {', '.join(known)}")
    for path in record_scenes(args.names, args.out or FOLDER, lambda text: print(text, file=sys.stderr, flush=True)):
        print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
