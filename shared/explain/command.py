"""The command `python -m shared.explain`: an engine against `generate()`, with planted faults to learn from."""

import argparse
import copy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shared.config import EngineConfig, parse_setting
from shared.errors import EngineError, InvalidConfig, InvalidRequest, SetupError
from shared.explain.planted_faults import FAULTS, PlantedFault
from shared.explain.replay import MakeModel
from shared.registry import PHASES, phase_by_number

IDENTICAL, DIFFERS, BAD_INPUT = 0, 1, 2

TINY_PROMPT = [5, 17, 33, 8, 21, 40, 11, 3]
TEXT_PROMPT = "The capital of France is"
MAX_TOKENS = 24

EXAMPLES = """
a first look: a healthy engine, then one whose decodes run one position too far
  python -m shared.explain --phase 2 --tiny llama
  python -m shared.explain --phase 2 --tiny llama --plant position-off-by-one

chunked prefill with the wrong mask; the default model (135 million weights) in bfloat16
  python -m shared.explain --phase 4 --tiny qwen2 --set prefill_chunk_size=3 --plant top-left-mask
  python -m shared.explain --phase 2 --dtype bfloat16 "Why is the sky blue?"

tokens that came from elsewhere, compared with what generate() gives for the same prompt
  python -m shared.explain --phase 2 --tiny llama --prompt-ids 5,17,33 --got 8,62,19

faults to plant (--plant): guess the report before you read it
"""


@dataclass(frozen=True, slots=True)
class _Models:
    """make: a fresh model at each call. tokenizer: None for tiny models."""

    make: MakeModel
    tokenizer: Any


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if the tokens are identical, 1 if they differ, 2 for what a user can mend."""
    args = _parser().parse_args(argv)
    try:
        return _compare(args)
    except (SetupError, InvalidRequest, InvalidConfig, EngineError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT


def _compare(args: argparse.Namespace) -> int:
    from shared.explain import explain
    from shared.explain.replay import Case

    fault = FAULTS[args.plant] if args.plant else PlantedFault("", "")
    build_engine = fault.plant(phase_by_number(args.phase).build_engine())
    config = _config(args.set)
    models = _models(args)
    make_model = fault.prepare(models.make)
    prompt = _prompt(args, models.tokenizer)
    beside = _neighbours(args, models, fault, prompt)
    _check_ids([prompt, *beside, args.got or []], models)
    max_tokens = args.max_tokens or (len(args.got) if args.got else MAX_TOKENS)
    case = Case(build_engine, make_model, config, tuple(map(tuple, [prompt, *beside])), row=0, ignore_eos=True)
    if args.got and args.record:
        raise SetupError("--record: with --got the tokens come from elsewhere; leave one of the two out")
    title = f"phase {args.phase}, explained" + (f": {fault.name}" if args.plant else "")
    tokens = args.got or case.serve(max_tokens, args.record, title).token_ids
    if not args.tiny:
        print("Comparing with generate() ...", file=sys.stderr)
    found = explain(
        build_engine,
        make_model,
        prompt,
        max_tokens,
        tokens,
        config=config,
        served_with=case.prompts,
        tokenizer=models.tokenizer,
    )
    if args.plant:
        print(f"Planted in phase {args.phase}: {fault.name}, {fault.what}.\n")
    if found is None:
        print(_identical(make_model(), prompt, tokens, bool(args.plant)))
        return IDENTICAL
    print(found)
    return DIFFERS


def _identical(model: Any, prompt: list[int], tokens: list[int], is_planted: bool) -> str:
    from shared.explain.choice import smallest_margin

    step, choice = smallest_margin(model, prompt, tokens)
    said = f"identical over {len(tokens)} tokens; smallest top-2 margin {choice.margin:.2g} at output[{step}]"
    if choice.is_near_tie:
        said += f"\nThat is a near tie: rounding may turn around what is less than {choice.noise:.2g} apart."
    if is_planted:
        said += (
            "\nThe planted fault does not show in these tokens: try another prompt, more of them, or an earlier phase."
        )
    return said


def _config(settings: Sequence[str]) -> EngineConfig:
    """Settings from NAME=VALUE. Raises InvalidConfig."""
    given: dict[str, Any] = {}
    for setting in settings:
        name, has_value, text = setting.partition("=")
        if name not in EngineConfig.__dataclass_fields__ or not has_value:
            known = ", ".join(EngineConfig.__dataclass_fields__)
            raise InvalidConfig(f"--set {setting}: must be NAME=VALUE, with one of {known}")
        given[name] = parse_setting(name, text)
    return EngineConfig(**given)


def _models(args: argparse.Namespace) -> _Models:
    if args.tiny:
        import torch

        from shared.tiny_models import FAMILIES

        dtype = torch.float64 if args.dtype == "auto" else getattr(torch, args.dtype)
        return _Models(lambda: FAMILIES[args.tiny]().to(dtype), None)
    from shared.model_loader import load_model

    loaded = load_model(args.model, dtype=args.dtype, device="cpu")
    return _Models(lambda: copy.deepcopy(loaded.model), loaded.tokenizer)


def _prompt(args: argparse.Namespace, tokenizer: Any) -> list[int]:
    if args.prompt_ids:
        return args.prompt_ids
    if tokenizer is None:
        if args.prompt is not None:
            raise SetupError("this model has no tokenizer: give the prompt as --prompt-ids 5,17,33")
        return TINY_PROMPT
    return tokenizer(args.prompt or TEXT_PROMPT).input_ids


def _neighbours(args: argparse.Namespace, models: _Models, fault: PlantedFault, prompt: list[int]) -> list[list[int]]:
    """As asked for; a fault that needs a neighbour gets one, as long as the prompt."""
    if args.beside and models.tokenizer is None:
        raise SetupError("this model has no tokenizer: give the neighbour as --beside-ids 6,18,34")
    neighbours = [*args.beside_ids, *(models.tokenizer(text).input_ids for text in args.beside)]
    vocab_size = models.make().get_input_embeddings().num_embeddings if fault.num_neighbours else 1
    while len(neighbours) < fault.num_neighbours:
        neighbours.append([(token_id + 1) % vocab_size for token_id in prompt])
    return neighbours


def _check_ids(lists: Sequence[Sequence[int]], models: _Models) -> None:
    vocab_size = models.make().get_input_embeddings().num_embeddings
    for token_id in (token_id for token_ids in lists for token_id in token_ids):
        if not 0 <= token_id < vocab_size:
            raise SetupError(f"token id {token_id} is outside the vocabulary (0 to {vocab_size - 1})")


def _token_ids(text: str) -> list[int]:
    """For argparse: 5,17,33."""
    try:
        return [int(number) for number in text.replace(" ", ",").split(",") if number]
    except ValueError:
        raise argparse.ArgumentTypeError(f"token ids, like 5,17,33, not {text!r}") from None


def _parser() -> argparse.ArgumentParser:
    from shared.model_loader import DTYPES
    from shared.tiny_models import FAMILIES

    faults = "\n".join(f"  {fault.name:<22} {fault.what}{_needs(fault)}" for fault in FAULTS.values())
    parser = argparse.ArgumentParser(
        prog="python -m shared.explain",
        description="Run a prompt through a phase's engine and through Hugging Face's greedy generate(). "
        "If their tokens differ, say where, in which layer it begins, and what that points to.",
        epilog=EXAMPLES + faults + "\n\nexit code: 0 identical, 1 different, 2 something to mend first",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    numbers = ", ".join(str(phase.number) for phase in PHASES)
    add("prompt", nargs="?", help=f"text; default: {TEXT_PROMPT!r}, or eight ids for a tiny model")
    add("--phase", type=int, default=PHASES[-1].number, help=f"whose engine: {numbers}; default: the newest")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--model", help="a folder, a .gguf file or a hub id; default: SmolLM2-135M-Instruct")
    which.add_argument("--tiny", choices=sorted(FAMILIES), help="a tiny model with random weights: no download")
    add("--dtype", choices=DTYPES, default="auto", help="auto: float32, for tiny models float64")
    add("--max-tokens", type=_count, help=f"tokens to compare; default: {MAX_TOKENS}, or as many as --got has")
    add("--prompt-ids", type=_token_ids, metavar="IDS", help="the prompt as token ids: 5,17,33")
    add("--got", type=_token_ids, metavar="IDS", help="the engine's tokens, if you have them: 8,62,19")
    add("--beside", action="append", default=[], metavar="TEXT", help="another prompt, served in the same batch")
    add("--beside-ids", type=_token_ids, action="append", default=[], metavar="IDS", help="the same, as token ids")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="an engine setting: prefill_chunk_size=3")
    add("--record", metavar="FILE", help="write down what the engine does, step by step; see python -m shared.trace")
    add("--plant", choices=sorted(FAULTS), metavar="FAULT", help="plant a known fault in the engine (listed below)")
    return parser


def _needs(fault: PlantedFault) -> str:
    return f" (--tiny {' | '.join(fault.families)})" if fault.families else ""


def _count(text: str) -> int:
    """For argparse: a whole number from 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number of at least 1, not {text!r}")
    return int(text)
