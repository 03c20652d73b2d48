"""The calls into transformers that load a model or a tokenizer from local files.

What differs between transformers' versions, and how it is kept quiet, is known here alone.
Never runs a checkpoint's own Python code, never unpickles.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as transformers_logging

from shared.errors import SetupError
from shared.loading.setup_messages import one_line

AGAIN = "fetch or convert the model again"
DTYPE_KEYWORD_SINCE = (4, 56)  # `torch_dtype` before


def load_hf_model(folder: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, list[str]]:
    """The causal language model in `folder`, on the CPU, and the names of tensors it has no place for.

    Raises SetupError where a file is broken, a tensor is missing, or the architecture is unknown.
    """
    with quiet(), explained(folder, "model"):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are told apart below
            **{dtype_keyword(transformers.__version__): dtype},
            **_rope_as_before(folder),
        )
    model, info = loaded
    _check_all_there(folder, info)
    return model, sorted(info["unexpected_keys"])


def load_hf_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Raises SetupError if there is none, or its files are broken."""
    with quiet(), explained(folder, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        if _is_of_another_kind(tokenizer, folder / "tokenizer.json"):
            return PreTrainedTokenizerFast.from_pretrained(folder, trust_remote_code=False)
        return tokenizer


def _is_of_another_kind(tokenizer: Any, path: Path) -> bool:
    """Whether it reads ids in another way than its own tokenizer.json says.

    Some classes of transformers 5 take nothing but the vocabulary from that file: DeepSeek's byte-level tokens, in a
    folder that names Llama's class, lost their spaces.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not path.exists():
        return False
    written = json.loads(path.read_text(encoding="utf-8")).get("decoder")
    made = backend.decoder and json.loads(backend.decoder.__getstate__())
    return _kinds(written) != _kinds(made)


def _kinds(decoder: dict[str, Any] | None) -> list[str]:
    """Of the steps of a tokenizer's decoder, in order."""
    return [step["type"] for step in (decoder.get("decoders", [decoder]) if decoder else [])]


def load_gguf_with_transformers(source: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A GGUF file of any family that transformers knows, in float32; wants accelerate. Raises SetupError."""
    options: dict[str, Any] = {dtype_keyword(transformers.__version__): torch.float32}
    if hasattr(transformers, "GgufConfig"):  # newer versions may keep the weights packed
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    with quiet(), explained(source, "model"):
        options |= {"gguf_file": source.name}
        model = AutoModelForCausalLM.from_pretrained(source.parent, trust_remote_code=False, **options)
        if quantizer := getattr(model, "hf_quantizer", None):
            quantizer.remove_quantization_config(model)  # and then refuse to save them
        return model, AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, trust_remote_code=False)


def dtype_keyword(version: str) -> str:
    """What `from_pretrained` calls the element type in this version of transformers."""
    major, minor = version.split(".")[:2]
    return "dtype" if (int(major), int(minor)) >= DTYPE_KEYWORD_SINCE else "torch_dtype"


def _rope_as_before(folder: Path) -> dict[str, Any]:
    """`rope_parameters` of a newer checkpoint where transformers 4 looks; it would go on with defaults, silently."""
    if not transformers.__version__.startswith("4."):
        return {}
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if rope := getattr(config, "rope_parameters", None):
        if any(isinstance(value, dict) for value in rope.values()):
            raise SetupError("its RoPE differs from layer to layer, which needs transformers 5 or newer")
        config.rope_theta = rope.get("rope_theta", config.rope_theta)
        config.rope_scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
    return {"config": config}


@contextmanager
def explained(where: Path, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # transformers passes on whatever a broken or unknown file sets off
        reason, advice = one_line(error), "fetch or convert the files again, or try another model"
        if "trust_remote_code" in str(error):  # how transformers asks to be allowed to
            reason, advice = f"it needs {_own_code(where)}, which is never run", "try another model"
        raise SetupError(f"{where}: the {what} cannot be loaded ({reason}); {advice}") from error


def _own_code(folder: Path) -> str:
    return f"Python code of its own, {', '.join(sorted(path.name for path in folder.glob('*.py'))) or 'from elsewhere'}"


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no warnings from transformers inside, as before afterwards."""
    verbosity, had_bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if had_bars:
            transformers_logging.enable_progress_bar()


def _check_all_there(folder: Path, info: Mapping[str, Any]) -> None:
    """Where a tensor is missing or of another shape, transformers goes on with random numbers."""
    if missing := sorted(info["missing_keys"]):
        which = f"{missing[0]} is" if len(missing) == 1 else f"{missing[0]} and {len(missing) - 1} more tensors are"
        raise SetupError(f"{folder}: {which} missing in its safetensors; {AGAIN}")
    for entry in sorted(info["mismatched_keys"]):
        name = entry if isinstance(entry, str) else entry[0]  # older versions give names, newer ones shapes as well
        raise SetupError(f"{folder}: {name} has another shape in its safetensors than by its config.json; {AGAIN}")
