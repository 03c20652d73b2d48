"""Attention over pages, plugged into any Hugging Face model: writes new K/V into the pool, has a kernel read it.

transformers calls `paged_attention` in each layer in place of its own, with whatever keywords the model was called
with; `paged=` carries the step. Letters: T tokens of the step, Hq query heads, H KV heads, D head_dim.
"""

import importlib.util
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface

from phase08_paged_attention.attention_check import check_attends_by_position
from phase08_paged_attention.attention_kernel import Attend, AttentionOptions
from phase08_paged_attention.paged_kv_cache import PagedKVCache
from shared.errors import SetupError

# Else (transformers 4.51) a mask is built all the same, and not looked at.
ASKS_FOR_MASKS = importlib.util.find_spec("transformers.masking_utils") is not None
NAME = "pageserve_paged"
HONOURED = {"sliding_window", "softcap", "paged", "dropout", "position_ids", "is_causal"}
WITHOUT_EFFECT = {"use_cache", "cache_position", "output_attentions", "logits_to_keep", "position_embeddings"}


class Paged(NamedTuple):
    """What a step has for its layers. slots: `[T]`, where its tokens' K/V goes. attend: the kernel, prepared for it."""

    cache: PagedKVCache
    slots: torch.Tensor
    attend: Attend


def install(model: Any) -> None:
    """Make the model attend through pages. It can then run only with `paged=`: never share it with a reference.

    Raises SetupError, naming the family, where a model computes attention in a way that cannot be replaced.
    """
    family = type(model).__name__
    if not getattr(model, "_supports_attention_backend", False):
        raise SetupError(f"{family} does not take an attention of our own; phases 1 to 6 run it")
    AttentionInterface.register(NAME, paged_attention)
    if ASKS_FOR_MASKS:  # a matter of positions, which the kernel knows: transformers need not build one
        from transformers.masking_utils import AttentionMaskInterface

        AttentionMaskInterface.register(NAME, lambda *_, **__: None)
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation(NAME)
    else:  # transformers 4.51
        model.config._attn_implementation = NAME
    check_attends_by_position(model)


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    *,
    paged: Paged | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """query: `[1, Hq, T, D]`. key, value: `[1, H, T, D]`, RoPE applied. Returns `[1, T, Hq, D]`."""
    _refuse_unknown(module, others)
    if paged is None:
        raise SetupError(f"{type(module).__name__} is not handed what the model was called with; phases 1 to 6 run it")
    if attention_mask is not None and ASKS_FOR_MASKS:
        raise SetupError(f"{type(module).__name__} makes a mask of its own, which pages have not; phases 1 to 6 run it")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    paged.cache.write(layer, paged.slots, key[0].transpose(0, 1), value[0].transpose(0, 1))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    queries = query[0].transpose(0, 1).contiguous()  # [T, Hq, D]
    return paged.attend(layer, queries, AttentionOptions(scale, sliding_window, softcap))[None], None


def _refuse_unknown(module: torch.nn.Module, others: dict[str, Any]) -> None:
    asked = {name for name, value in others.items() if value is not None and value is not False}
    unknown = asked - HONOURED - WITHOUT_EFFECT
    if unknown:
        raise SetupError(
            f"{type(module).__name__} asks for {', '.join(sorted(unknown))}, which paged attention has not"
        )
