"""The command that shows a difference again, for whoever reads a failed test."""

import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from shared.config import EngineConfig
from shared.explain.report import Divergence
from shared.tiny_models import FAMILIES

MAX_TOKEN_IDS = 64  # longer ones nobody pastes


def command_for(
    found: Divergence,
    build_engine: Callable[..., Any],
    make_model: Callable[[], Any],
    config: EngineConfig,
    neighbours: list[list[int]],
) -> str | None:
    """A `python -m shared.explain` line; None where the engine is no phase's, the model not tiny, or the ids many.

    neighbours: prompts served beside it, named only where they matter.
    """
    phase = re.match(r"phase(\d+)_", build_engine.__module__)
    family = next((name for name, make in FAMILIES.items() if make is make_model), None)
    beside = neighbours if found.cause == "neighbours" else []
    num_ids = sum(map(len, [found.prompt_token_ids, *beside]))
    if phase is None or family is None or num_ids > MAX_TOKEN_IDS or found.cause == "length":
        return None
    settings = [
        f"--set {f.name}={getattr(config, f.name)}" for f in fields(config) if getattr(config, f.name) != f.default
    ]
    words = [f"--phase {int(phase[1])} --tiny {family} --max-tokens {len(found.expected)}", *settings]
    words += [f"--beside-ids {_ids(prompt)}" for prompt in beside]
    return f"python -m shared.explain {' '.join(words)} --prompt-ids {_ids(list(found.prompt_token_ids))}"


def _ids(token_ids: list[int]) -> str:
    return ",".join(map(str, token_ids))
