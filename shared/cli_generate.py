"""`generate`: run prompts together on a phase's engine and show their text as it comes."""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from shared.errors import InvalidRequest, SetupError
from shared.prompts import Prompt, prompts_from_file, prompts_from_texts
from shared.registry import Phase

EXAMPLES = """\
examples:
  %(prog)s "Why is the sky blue?"
  %(prog)s --raw --max-tokens 8 "The capital of France is" "Two plus two is"
  %(prog)s --temperature 0.8 --seed 1 --json --prompts-file questions.txt
"""

SAMPLING_OPTIONS: dict[str, tuple[Callable[[str], Any], str]] = {
    "max_tokens": (int, "most tokens to generate per prompt (default: 128)"),
    "temperature": (float, "0 is greedy (the default)"),
    "top_p": (float, "keep the most likely tokens that make up this much probability"),
    "top_k": (int, "keep this many of the most likely tokens; 0 keeps all"),
    "min_p": (float, "keep tokens at least this likely, relative to the most likely one"),
    "seed": (int, "the same seed gives the same tokens, whoever else is in the batch"),
    "repetition_penalty": (float, "above 1 makes tokens seen in prompt or output less likely"),
    "presence_penalty": (float, "subtracted from the logits of tokens generated before"),
    "frequency_penalty": (float, "the same, once per occurrence"),
    "min_tokens": (int, "do not end before this many tokens"),
}


def add_command(commands: Any, chapter: Phase) -> None:
    parser = commands.add_parser(
        "generate",
        help="run prompts together and print their answers",
        description=f"Run prompts together on {chapter.label}; text streams as it comes.",
        usage="%(prog)s [options] PROMPT ...",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    parser.add_argument("prompts", nargs="*", metavar="PROMPT", help="prompts; all of them are in flight together")
    parser.add_argument("--prompts-file", metavar="FILE", help="a prompt a line, or JSON lines; - is standard input")
    style = parser.add_mutually_exclusive_group()
    style.add_argument(
        "--chat", action="store_true", help="through the chat template (default where the model has one)"
    )
    style.add_argument("--raw", action="store_true", help="go on from the prompt as it stands")
    parser.add_argument("--json", action="store_true", help="one JSON object per prompt and line, in input order")
    parser.add_argument("--stats", action="store_true", help="what happened inside: steps, preemptions, hits, guesses")
    add_sampling_options(parser)

    from shared.cli import add_engine_options

    add_engine_options(parser)


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling")
    for name, (kind, text) in SAMPLING_OPTIONS.items():
        group.add_argument("--" + name.replace("_", "-"), type=kind, metavar="X", help=text)
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; may be given several times"
    )
    group.add_argument("--ignore-eos", action="store_true", default=None, help="go on past the end of the answer")


def sampling_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The sampling fields that were given."""
    names = [*SAMPLING_OPTIONS, "stop", "ignore_eos"]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return {"max_tokens": 128} | given


def run(chapter: Phase, args: argparse.Namespace) -> int:
    from shared.cli import build_engine, engine_config
    from shared.model_loader import load_model
    from shared.show_config import config_rows, print_config
    from shared.trace.recording import recorded

    if not args.prompts and not args.prompts_file and not args.show_config:
        raise SetupError("nothing to do: give a PROMPT, or --prompts-file FILE")
    config = engine_config(args)
    loaded = load_model(args.model, dtype=args.dtype, device=args.device)
    rows = list(config_rows(config, loaded, has_pool=chapter.has_pool)) if args.show_config else []
    prompts = read_prompts(args, loaded.tokenizer)
    engine = build_engine(chapter, config, loaded, args)
    try:
        if rows:
            print_config(rows, chapter, getattr(engine, "implementation", {}))
        if not prompts:
            return 0
        show = print_json_lines if args.json else print_text
        with recorded(engine, args.record, phase=chapter.number, title=chapter.label, model=loaded.name):
            show(engine, prompts)
        if args.stats:
            print_stats(engine.stats())
        return 0
    finally:
        engine.close()


def read_prompts(args: argparse.Namespace, tokenizer: Any) -> list[Prompt]:
    encode = encoder(tokenizer, chat=args.chat, raw=args.raw)
    params = sampling_fields(args)
    prompts = prompts_from_texts(args.prompts, encode, params)
    if args.prompts_file:
        prompts += prompts_from_file(args.prompts_file, encode, params)
    for prompt in prompts:
        if prompt.request.params.n > 1:
            raise InvalidRequest("n", "this command shows one answer per prompt; repeat the prompt with another seed")
    return prompts


def print_stats(stats: Any) -> None:
    """What happened inside, on stderr; what this phase does not do, or nobody asked for, is left out."""
    said = [f"steps {stats.num_steps}, tokens {stats.generated_tokens}"]
    if stats.swap_blocks_total is not None:  # phase 9 on
        said.append(f"preemptions {stats.num_preemptions}, tokens dropped by them {stats.num_recomputed_tokens}")
    if stats.num_prefix_queried_tokens:
        said.append(f"prompt tokens cached {stats.num_prefix_hit_tokens} of {stats.num_prefix_queried_tokens}")
    if stats.num_drafted_tokens:
        said.append(f"guesses right {stats.num_accepted_tokens} of {stats.num_drafted_tokens}")
    print("; ".join(said), file=sys.stderr)


def encoder(tokenizer: Any, *, chat: bool, raw: bool) -> Callable[[str], list[int]]:
    """How a prompt's text becomes token ids. Raises, when called, what `shared.prompt_encoding` raises."""
    from shared.prompt_encoding import encode_chat, encode_text

    def encode(text: str) -> list[int]:
        if tokenizer is None:
            raise InvalidRequest("prompt", "this model has no tokenizer; use --prompts-file with prompt_token_ids")
        if chat or (tokenizer.chat_template and not raw):
            return encode_chat(tokenizer, [{"role": "user", "content": text}])
        return encode_text(tokenizer, text)

    return encode


def print_json_lines(engine: Any, prompts: list[Prompt]) -> None:
    """Each line as soon as it and all before it are done."""
    streams = engine.streams([prompt.request for prompt in prompts], is_patient=True)
    try:
        for stream in streams:
            print(json.dumps(json_record(stream.result())), flush=True)
    finally:
        for stream in streams:
            stream.close()


def json_record(output: Any) -> dict[str, Any]:
    """The fields that scripts read; times in milliseconds from when the prompts were handed in."""
    return {
        "id": output.request_id,
        "prompt_token_ids": output.prompt_token_ids,
        "token_ids": output.token_ids,
        "text": output.text,
        "finish_reason": output.finish_reason,
        "ttft_ms": _ms(output.metrics.ttft_s),
        "e2e_ms": _ms(output.metrics.e2e_s),
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)


def print_text(engine: Any, prompts: list[Prompt]) -> None:
    """One prompt streams plainly; several share the screen, or come whole and in order where there is none."""
    from shared.live_text import stream_one, stream_together

    stream = stream_one if len(prompts) == 1 else stream_together
    stream(engine, prompts, sys.stdout)
