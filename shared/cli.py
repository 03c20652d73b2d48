"""The command line of every phase: `python -m phaseNN_... generate|serve ...`.

Exit codes: 0 done, 1 a step of the engine failed, 2 bad input or set-up (one line on stderr says what to change),
130 interrupted.
torch is imported only once the arguments have been read.
"""

import argparse
import sys
from collections.abc import Sequence as Seq
from dataclasses import fields, replace
from typing import Any, NoReturn

from shared.config import CHOICES, EngineConfig, parse_setting
from shared.errors import EngineError, InvalidConfig, InvalidRequest, QueueFull, SetupError
from shared.model_loader import DEVICES, DTYPES, LoadedModel, load_draft_model
from shared.registry import Phase, phase_by_number

SETTING_HELP = {
    "max_batch_size": "sequences that may run at once",
    "prefill_budget_tokens": "tokens one step may run (phase 4 on)",
    "prefill_chunk_size": "most prompt tokens of one sequence in one step (phase 4 on)",
    "kv_block_size": "tokens per K/V block (phase 6 on)",
    "kv_num_blocks": "blocks in the pool, or auto (phase 6 on)",
    "max_model_len": "most tokens of one sequence, prompt plus output",
    "gpu_memory_utilization": "share of a GPU's memory the engine may fill",
    "enable_prefix_caching": "reuse the K/V of shared prefixes: 1 or 0 (phase 12)",
    "preemption_mode": "what becomes of a victim's K/V (phase 9 on)",
    "swap_num_blocks": "blocks of host memory for swapping, or auto (phase 9 on)",
    "speculative_method": "who guesses the next tokens (phase 12)",
    "num_speculative_tokens": "most guesses per step (phase 12)",
    "adaptive_speculation": "let the number of guesses follow its use: 1 or 0 (phase 12)",
    "queue_capacity": "requests that may wait (phase 3 on)",
    "queue_timeout_s": "seconds a request may wait, or none (phase 3 on)",
    "forward": "whose forward pass (phase 8 on)",
    "attention_kernel": "which attention kernel (phase 8 on)",
    "cuda_graphs": "record decode steps and replay them, on CUDA: 1 or 0 (phase 8 on)",
}


def main(phase: int, argv: Seq[str] | None = None) -> NoReturn:
    """Run a command of one phase and exit with its code."""
    chapter = phase_by_number(phase)
    args = build_parser(chapter).parse_args(argv)
    sys.exit(exit_code(lambda: args.run(chapter, args)))


def exit_code(command: Any) -> int:
    """Run a command; what its user can cause becomes one line on stderr and exit code 2."""
    try:
        return command() or 0
    except (SetupError, InvalidConfig, InvalidRequest, QueueFull) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except EngineError as error:
        print(f"error: a step failed: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        sys.stderr.close()  # or Python complains about the pipe once more while it exits
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def build_parser(chapter: Phase) -> argparse.ArgumentParser:
    from shared import cli_generate, cli_serve

    parser = argparse.ArgumentParser(
        prog=f"python -m {chapter.package}",
        description=f"PageServe, {chapter.label}.",
        epilog="Settings can also come from the environment (MODEL_NAME, MAX_BATCH_SIZE, ...); options win.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    cli_generate.add_command(commands, chapter)
    cli_serve.add_command(commands, chapter)
    return parser


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """`--model`, `--dtype`, `--device`, `--show-config`, and an option for every setting of EngineConfig."""
    model = parser.add_argument_group("model")
    model.add_argument("--model", metavar="M", help="a folder, a .gguf file or a hub id (default: the default model)")
    model.add_argument(
        "--draft-model",
        metavar="M",
        help="guesses for --speculative-method draft; has the same tokenizer (phase 12)",
    )
    model.add_argument("--dtype", choices=DTYPES, default="auto", help="of weights and K/V (default: auto)")
    model.add_argument("--device", choices=DEVICES, default="auto", help="where to run (default: auto)")
    model.add_argument(
        "--show-config", action="store_true", help="print every resolved setting with its reason, and go on"
    )
    model.add_argument(
        "--record", metavar="FILE", help="write down what the engine does, step by step; see python -m shared.trace"
    )
    engine = parser.add_argument_group("engine settings; a phase ignores what it has no use for")
    for field in fields(EngineConfig):
        engine.add_argument(
            "--" + field.name.replace("_", "-"),
            choices=CHOICES.get(field.name),
            metavar=None if field.name in CHOICES else "X",
            help=f"{SETTING_HELP[field.name]} (default: {field.default})",
        )


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """The environment's settings, then the options'. Raises InvalidConfig."""
    given = {f.name: getattr(args, f.name) for f in fields(EngineConfig) if getattr(args, f.name) is not None}
    return replace(EngineConfig.from_env(), **{name: parse_setting(name, text) for name, text in given.items()})


def build_engine(chapter: Phase, config: EngineConfig, loaded: LoadedModel, args: argparse.Namespace) -> Any:
    """The phase's engine, with a draft model where one is asked for. Raises what loading and building raise."""
    draft = load_draft_model(config, args.draft_model, dtype=args.dtype, device=args.device)
    return chapter.build_engine()(loaded.model, config, loaded.tokenizer, draft)
