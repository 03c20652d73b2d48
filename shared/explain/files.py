"""Which files of this project an engine's parts are written in, read off the living parts: where to look next."""

import inspect
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def files_of(build_engine: Any, engine: Any) -> dict[str, str]:
    """Role -> path from the project's root. Roles that no file of the project plays are left out.

    Roles: engine (build_engine), runner, scheduler, sampler, penalties, forward (calls the model), attention,
    loader (of weights), completion (when an output ends), inputs.
    """
    owner = getattr(engine, "runner", engine)
    forward = getattr(sys.modules.get(type(owner).__module__), "forward_sequence", None)
    parts: dict[str, Any] = {
        "engine": inspect.unwrap(build_engine),
        "runner": type(owner),
        "scheduler": type(getattr(engine, "scheduler", engine)),
        "sampler": type(owner.sampler),
        "forward": forward,
        "attention": _attention_function(owner.model),
    }
    found = {role: path for role, part in parts.items() if part is not None and (path := _path(part))}
    named = {
        "penalties": "shared/logits_processors.py",
        "loader": "shared/loading/hf_loading.py",
        "completion": "shared/completion.py",
        "inputs": "shared/input_processor.py",
    }
    return found | {role: path for role, path in named.items() if (ROOT / path).exists()}


def pick(files: Mapping[str, str], roles: Iterable[str]) -> tuple[str, ...]:
    """The files of these roles, each once, in this order."""
    return tuple(dict.fromkeys(files[role] for role in roles if role in files))


def _attention_function(model: Any) -> Any:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = getattr(model.config, "_attn_implementation", None)
    return ALL_ATTENTION_FUNCTIONS.get(name, None)


def _path(part: Any) -> str | None:
    try:
        path = Path(inspect.getsourcefile(part) or "").resolve()
    except TypeError:
        return None
    is_ours = path.is_relative_to(ROOT) and "site-packages" not in path.parts
    return path.relative_to(ROOT).as_posix() if is_ours else None
