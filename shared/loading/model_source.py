"""Where a model's files are: from what a user typed to a local folder that can be loaded. Torch-free."""

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import SetupError
from shared.loading.default_model import DEFAULT_MODEL, default_model_folder
from shared.loading.gguf_convert import CONVERSION_VERSION, convert_gguf
from shared.loading.model_cache import cached_folder
from shared.loading.setup_messages import Report, one_line, say

MODEL_VARIABLE = "MODEL_NAME"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
HUB_PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]  # weights, config, tokenizer; no pickles
WEIGHTS_INDEX = "model.safetensors.index.json"
SHARD = re.compile(r"[^/\\]+\.safetensors")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
AGAIN = "fetch or convert the model again"
WAYS = "give a model folder, a .gguf file or a hub id, or leave it out for the default model"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A folder with config.json and safetensors; `name` is what clients see, `reason` where it comes from."""

    name: str
    folder: Path
    reason: str


def find_model(name: str | None = None, report: Report = say) -> ModelSource:
    """What `name` stands for: a folder, a .gguf file, a hub id; without one, $MODEL_NAME or else the default model.

    Fetches and converts what is not here yet; `report` gets the progress.

    Raises SetupError: there is no such model, it could not be fetched or converted, or its folder lacks files.
    """
    if name:
        return _named(name, report, "")
    chosen = os.environ.get(MODEL_VARIABLE)
    return _named(chosen, report, f"{MODEL_VARIABLE}={chosen}: ") if chosen else _default_model(report)


def _default_model(report: Report) -> ModelSource:
    return ModelSource(DEFAULT_MODEL.name, default_model_folder(report), "the default model")


def _named(name: str, report: Report, origin: str) -> ModelSource:
    if name == DEFAULT_MODEL.name:
        return _default_model(report)
    path = Path(name).expanduser()
    if path.is_dir():
        source = ModelSource(Path(os.path.abspath(path)).name, path, f"{origin}a local folder")
    elif path.suffix.lower() == ".gguf":
        source = ModelSource(path.stem, _converted(path, report), f"{origin}converted from a GGUF file")
    elif path.exists():
        raise SetupError(f"model {name!r} is a file of an unknown kind; {WAYS}")
    elif HUB_ID.fullmatch(name):
        source = ModelSource(name, _from_hub(name), f"{origin}from the Hugging Face hub")
    else:
        raise SetupError(f"model {name!r}: there is no such folder; {WAYS}")
    check_folder(source.folder)
    return source


def check_folder(folder: Path) -> None:
    """Raises SetupError unless `folder` has config.json and weights in safetensors, and asks for no foreign code."""
    if not (folder / "config.json").is_file():
        ways = "give the .gguf file in it" if _has(folder, ["*.gguf"]) else WAYS
        raise SetupError(f"{folder} has no config.json, so it is no model folder; {ways}")
    _check_config(folder / "config.json")
    _check_generation_config(folder / "generation_config.json")
    index = folder / WEIGHTS_INDEX
    if (folder / "model.safetensors").is_file():
        return
    if index.is_file():
        _check_index(index)
    elif _has(folder, PICKLES):
        how = "AutoModelForCausalLM.from_pretrained(...).save_pretrained(..., safe_serialization=True)"
        raise SetupError(f"{folder} has its weights as pickles only, which can run code; convert them with {how}")
    else:
        raise SetupError(f"{folder} has no weights (model.safetensors); fetch the model's safetensors files into it")


def _check_index(path: Path) -> None:
    """The files that hold the weights are safetensors in the same folder: no pickles, nothing from elsewhere."""
    weight_map = _read(path).get("weight_map")
    for name in weight_map.values() if isinstance(weight_map, dict) else ():
        _check_shard(path, name)


def _check_shard(path: Path, name: object) -> None:
    if not SHARD.fullmatch(str(name)):
        raise SetupError(f"{path} wants weights from {name!r}, which is no safetensors file beside it; {AGAIN}")


def _check_config(path: Path) -> None:
    """transformers lets a config name another file of weights, and a repository (with a slash) to run a kernel from."""
    parts = [_read(path)]
    if (name := parts[0].get("transformers_weights")) is not None:
        _check_shard(path, name)
    while parts:
        part = parts.pop()
        parts += [value for value in part.values() if isinstance(value, dict)]
        for name in ("_attn_implementation", "attn_implementation"):
            if "/" in str(part.get(name)):
                raise SetupError(
                    f"{path} asks for {part[name]!r} as {name}: code from elsewhere is never run; take that entry out"
                )


def _check_generation_config(path: Path) -> None:
    """transformers goes on without a broken one, and so without its ids that end an output."""
    if path.exists() and _object(path) is None:
        raise SetupError(f"{path} is no valid JSON object; {AGAIN}")


def _read(path: Path) -> dict[str, Any]:
    """Empty where it is no JSON object; whoever loads it says so."""
    return _object(path) or {}


def _object(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _converted(path: Path, report: Report) -> Path:
    """The folder that a GGUF file was converted to; a file that changed is converted again."""
    if not path.is_file():
        raise SetupError(f"model {str(path)!r}: there is no such file; {WAYS}")
    path = path.resolve()
    key = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    state = path.stat()

    def fill(folder: Path, _scratch: Path) -> None:
        report(f"Converting {path.name} ({state.st_size / 1e6:.0f} MB), once ...")
        convert_gguf(path, folder)

    return cached_folder(f"{path.stem}-{key}", f"{state.st_size} {state.st_mtime_ns} v{CONVERSION_VERSION}", fill)


def _from_hub(name: str) -> Path:
    """The hub's local copy, fetched where it is missing; the hub's own variables (HF_HOME, ...) apply."""
    from huggingface_hub import snapshot_download  # imported late: the local ways do without it

    try:
        return Path(snapshot_download(name, allow_patterns=HUB_PATTERNS, ignore_patterns=["*/*"]))
    except (OSError, ValueError) as error:  # no network, no such model, no access, not an id
        where = "is no folder here and not to be had from the hub"
        raise SetupError(f"model {name!r} {where} ({one_line(error)}); {WAYS}") from error


def _has(folder: Path, patterns: Iterable[str]) -> bool:
    return any(next(folder.glob(pattern), None) for pattern in patterns)
