"""Attention over pages in plain PyTorch: gathers each row's context out of the pool, then attends. Any device.

The oracle of every faster kernel. Rows of one kind are taken together, padded to the longest of their group: all
decodes in one go, all short rows in one, all longer chunks in one.

Letters: T tokens of the step, B rows of a group, Q queries and S context per row, Hq query heads, H KV heads,
D head_dim, P tokens per block.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from phase08_paged_attention.attention_kernel import Attend, AttentionOptions
from phase08_paged_attention.packed_batch import PackedBatch, slots_of
from phase08_paged_attention.paged_kv_cache import PagedKVCache

SHORT = 16  # tokens; padding a row of 5 to a chunk of 128 would cost more than it saves


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Rows whose attention is computed together.

    token_index: `[B, Q]`, where each query is in the packed row; padding repeats the row's first query.
    is_query: `[B, Q]`, False for padding. positions: `[B, Q]`.
    context_slots: `[B, S]`, the slot of every position; past a row's end, its slot of position 0, which is written.
    """

    token_index: torch.Tensor
    is_query: torch.Tensor
    positions: torch.Tensor
    context_slots: torch.Tensor


class GatherAttention:
    name = "torch"

    def prepare(self, batch: PackedBatch, cache: PagedKVCache) -> Attend:
        groups = list(attention_groups(batch, cache.block_size))

        def attend_layer(layer: int, query: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
            output = torch.empty_like(query)  # [T, Hq, D]
            for group in groups:
                key, value = cache.read(layer, group.context_slots)  # [B, H, S, D] twice
                seen = visible(group, options.window)  # [B, Q, S]
                attended = attend(query[group.token_index], key.to(query), value.to(query), seen, options)
                output[group.token_index[group.is_query]] = attended[group.is_query]  # from [B, Q, Hq, D]
            return output

        return attend_layer


def attention_groups(batch: PackedBatch, block_size: int) -> Iterator[AttentionGroup]:
    """Decodes, short rows, chunks: those there are."""
    lengths = batch.row_starts.diff()  # [R]
    kinds = (lengths == 1, (lengths > 1) & (lengths <= SHORT), lengths > SHORT)
    for rows in (kind.nonzero() for kind in kinds):  # [B, 1]
        if len(rows):
            yield _group(batch, rows, lengths[rows], block_size)


def _group(batch: PackedBatch, rows: torch.Tensor, lengths: torch.Tensor, block_size: int) -> AttentionGroup:
    """rows, lengths: `[B, 1]`."""
    steps = torch.arange(int(lengths.max()), device=rows.device)  # [Q]
    is_query = steps < lengths  # [B, Q]
    token_index = batch.row_starts[rows] + steps * is_query  # [B, Q], padding is step 0
    context_lens = batch.context_lens[rows]  # [B, 1]
    context = torch.arange(int(context_lens.max()), device=rows.device)  # [S]
    context = context * (context < context_lens)  # [B, S], past the end is position 0
    context_slots = slots_of(batch.block_tables, rows, context, block_size)  # [B, S]
    return AttentionGroup(token_index, is_query, batch.positions[token_index], context_slots)


def visible(group: AttentionGroup, window: int | None) -> torch.Tensor:
    """`[B, Q, S]`: which positions each query sees: none after its own, and no further back than the window.

    Aligned by absolute position, so a chunk with context before it sees all of it (bottom-right, not top-left).
    """
    context = torch.arange(group.context_slots.shape[1], device=group.positions.device)  # [S]
    queries = group.positions.unsqueeze(-1)  # [B, Q, 1]
    # BEGIN SOLUTION 8.2
    seen = context <= queries  # [B, Q, S]
    return seen if window is None else seen & (context > queries - window)
    # END SOLUTION


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor, options: AttentionOptions
) -> torch.Tensor:
    """Softmax attention of each query over what it sees.

    query: `[B, Q, Hq, D]`. key, value: `[B, H, S, D]`, Hq a multiple of H. seen: `[B, Q, S]`.
    Returns `[B, Q, Hq, D]`.
    """
    q, mask = query.transpose(1, 2), seen.unsqueeze(1)  # [B, Hq, Q, D], [B, 1, Q, S]
    if options.softcap is None:
        out = F.scaled_dot_product_attention(q, key, value, attn_mask=mask, scale=options.scale, enable_gqa=True)
    else:
        out = _attend_softcapped(q, key, value, mask, options.scale, options.softcap)
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
