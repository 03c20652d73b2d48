"""One forward pass of a Hugging Face model over one sequence, with Hugging Face's own K/V cache.

The one place that knows how each transformers version spells it. Letters: T tokens, V vocabulary.
"""

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import transformers
from transformers import DynamicCache

from shared.errors import SetupError

ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}


def layer_kinds(config: Any) -> set[str]:
    """Of a text model's layers, as its config names them; none where it does not."""
    return set(getattr(config, "layer_types", None) or ())


def check_layers(config: Any) -> None:
    """Raises SetupError for a model with layers whose past is no K/V: convolutions, recurrence, linear attention."""
    config = config.get_text_config()
    if not getattr(config, "num_attention_heads", None):
        raise SetupError(f"{config.model_type} has no attention, and so no K/V: no phase runs it")
    if others := layer_kinds(config) - ATTENTION:
        raise SetupError(
            f"{config.model_type} has layers of {', '.join(sorted(others))}, whose past is no K/V: no phase runs it"
        )


def check_version(config: Any) -> None:
    """Raises SetupError for a model that this version runs right on no cache but its own fixed one.

    Before 4.53 Gemma's layers cut their masks for that cache, whatever the keys are. Asks a blank config:
    a checkpoint's own may still name the cache that it was once meant for.
    """
    config = config.get_text_config()
    if getattr(type(config)(), "cache_implementation", None):
        raise SetupError(f"{config.model_type} needs transformers 4.53 or newer; this is {transformers.__version__}")


def new_cache() -> DynamicCache:
    """An empty cache; it grows by one K and one V per token and layer."""
    return DynamicCache()


@lru_cache(maxsize=8)
def _cache_keyword(forward: Any) -> str:
    """`past_key_values` became `cache` in transformers 5.24."""
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


def forward_sequence(
    model: Any, token_ids: list[int], cache: DynamicCache, score: Callable[[torch.Tensor], None] | None = None
) -> torch.Tensor:
    """Run the next tokens of one sequence on top of what `cache` holds; it then holds them too.

    score: called with the logits after each of them, `[T, V]`; they are computed only where somebody scores.
    Returns the logits after the last of them, `[V]`. Call it under torch.inference_mode().
    """
    input_ids = torch.tensor([token_ids], device=model.device)  # [1, T]
    output = model(
        input_ids=input_ids,
        **{_cache_keyword(type(model).forward): cache},
        use_cache=True,
        logits_to_keep=len(token_ids) if score else 1,
    )
    if score:
        score(output.logits[0])
    return output.logits[0, -1]  # [V]


def drop_last(cache: DynamicCache, num_tokens: int) -> None:
    """Forget the K/V of the last tokens."""
    if num_tokens:
        cache.crop(-num_tokens)
