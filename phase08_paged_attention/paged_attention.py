"""Attention over pages, plugged into any Hugging Face model: writes new K/V into the pool, reads context from it.

transformers calls `paged_attention` in each layer in place of its own, with whatever keywords the model was called
with; `paged=` carries the step. Plain PyTorch, the oracle of every faster kernel.
Letters: T tokens of the step, B rows of a group, Q queries and S context per row, Hq query heads, H KV heads,
D head_dim.
"""

from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from phase08_paged_attention.packed_batch import AttentionGroup, PackedBatch
from phase08_paged_attention.paged_kv_cache import PagedKVCache
from shared.errors import SetupError

NAME = "pageserve_paged"
HONOURED = {"sliding_window", "softcap", "paged", "dropout", "position_ids", "is_causal"}
WITHOUT_EFFECT = {"use_cache", "cache_position", "output_attentions", "logits_to_keep", "position_embeddings"}


def install(model: Any) -> None:
    """Make the model attend through pages. It can then run only with `paged=`: never share it with a reference.

    Raises SetupError, naming the family, where a model computes attention in a way that cannot be replaced.
    """
    family = type(model).__name__
    if not getattr(model, "_supports_attention_backend", False):
        raise SetupError(f"{family} does not take an attention of our own; phases 1 to 6 run it")
    AttentionInterface.register(NAME, paged_attention)
    _register_no_mask()
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation(NAME)
    else:  # transformers 4.51
        model.config._attn_implementation = NAME


def _register_no_mask() -> None:
    """The mask is a matter of positions, which `paged=` knows; transformers need not build one of its own."""
    try:
        from transformers.masking_utils import AttentionMaskInterface
    except ImportError:  # transformers 4.51 builds one all the same, and it is not looked at
        return
    AttentionMaskInterface.register(NAME, lambda *_, **__: None)


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001 - positions say it all
    scaling: float | None = None,
    *,
    paged: tuple[PackedBatch, PagedKVCache],
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """query: `[1, Hq, T, D]`. key, value: `[1, H, T, D]`, RoPE applied. Returns `[1, T, Hq, D]`."""
    _refuse_unknown(module, others)
    batch, cache = paged
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    cache.write(layer, batch.slots, key[0].transpose(0, 1), value[0].transpose(0, 1))
    keys, values = cache.layer(layer)  # [slots, H, D]
    queries = query[0].transpose(0, 1)  # [T, Hq, D]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    output = torch.empty_like(queries)  # [T, Hq, D]
    for group in batch.groups:
        attended = attend(
            queries[group.token_index],
            keys[group.context_slots],
            values[group.context_slots],
            visible(group, sliding_window),
            scale,
            softcap,
        )  # [B, Q, Hq, D]
        output[group.token_index[group.is_query]] = attended[group.is_query]
    return output[None], None


def visible(group: AttentionGroup, sliding_window: int | None) -> torch.Tensor:
    """`[B, Q, S]`: which positions each query sees: none after its own, and no further back than the window.

    Aligned by absolute position, so a chunk with context before it sees all of it (bottom-right, not top-left).
    """
    context = torch.arange(group.context_slots.shape[1], device=group.positions.device)  # [S]
    queries = group.positions.unsqueeze(-1)  # [B, Q, 1]
    seen = context <= queries  # [B, Q, S]
    return seen if sliding_window is None else seen & (context > queries - sliding_window)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seen: torch.Tensor,
    scale: float,
    softcap: float | None = None,
) -> torch.Tensor:
    """Softmax attention of each query over what it sees.

    query: `[B, Q, Hq, D]`. key, value: `[B, S, H, D]`, Hq a multiple of H. seen: `[B, Q, S]`.
    Returns `[B, Q, Hq, D]`.
    """
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))  # [B, Hq, Q, D], [B, H, S, D] twice
    mask = seen.unsqueeze(1)  # [B, 1, Q, S]
    if softcap is None:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)
    else:
        out = _attend_softcapped(q, k, v, mask, scale, softcap)
    return out.transpose(1, 2)


def _attend_softcapped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float, softcap: float
) -> torch.Tensor:
    """Gemma 2 bends the scores through tanh, which SDPA has no place for. Shapes as there; returns `[B, Hq, Q, D]`."""
    per_group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(per_group, dim=1) for x in (k, v))  # [B, Hq, S, D]
    scores = q @ k.transpose(-1, -2) * scale  # [B, Hq, Q, S]
    scores = torch.tanh(scores / softcap) * softcap
    weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1, dtype=_wide(q)).to(q.dtype)
    return weights @ v


def _wide(x: torch.Tensor) -> torch.dtype:
    """fp32 for half precision and for fp32; fp64 stays."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _refuse_unknown(module: torch.nn.Module, others: dict[str, Any]) -> None:
    asked = {name for name, value in others.items() if value is not None and value is not False}
    unknown = asked - HONOURED - WITHOUT_EFFECT
    if unknown:
        raise SetupError(
            f"{type(module).__name__} asks for {', '.join(sorted(unknown))}, which paged attention has not"
        )
