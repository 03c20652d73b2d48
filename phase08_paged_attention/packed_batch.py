"""One step's tokens in one row, and where each of them leaves and finds K/V. Built once per step, for all layers.

    plan      req-1 decode 1 · req-2 decode 1 · req-3 chunk of 4
    packed    [ d | d | c c c c ]                       T = 6 tokens, no padding
    groups    decodes: 2 queries of length 1            chunks: 1 query of length 4

Attention takes rows of one kind together: all decodes in one go, all chunks in one go (short ones apart).
Letters: T tokens of the step, B rows of a group, Q its longest query, S its longest context, M most blocks of a row.
"""

import itertools
from collections.abc import Container, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from shared.step import ScheduledSequence, StepPlan

SHORT = 16  # tokens


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


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """What one forward pass runs. token_ids, positions, slots: `[T]`.

    logit_index: `[K]`, the tokens whose logits are wanted: the last of each row that samples, and all of a row whose
    prompt is scored. num_logits: how many of the K each row of the plan has, in order.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    logit_index: torch.Tensor
    num_logits: list[int]
    groups: tuple[AttentionGroup, ...]


def pack(
    plan: StepPlan,
    block_tables: Mapping[str, Seq[int]],
    block_size: int,
    device: torch.device,
    scored_rows: Container[int] = (),
) -> PackedBatch:
    """block_tables: sequence -> blocks, with room for the plan's tokens. scored_rows: where all logits are wanted."""
    starts = [0]  # of each row in the packed one
    for item in plan.items:
        starts.append(starts[-1] + item.num_run_tokens)
    kinds: dict[int, list[tuple[int, ScheduledSequence]]] = {}  # kind -> rows and where they start
    for start, item in zip(starts, plan.items):
        kinds.setdefault(_kind(item.num_run_tokens), []).append((start, item))
    groups = tuple(_group(rows, block_tables, block_size, device) for rows in kinds.values())
    positions = torch.empty(starts[-1], dtype=torch.long, device=device)  # [T]
    slots = torch.empty_like(positions)  # [T]
    for group in groups:
        positions[group.token_index] = group.positions
        slots[group.token_index] = group.context_slots.gather(1, group.positions)
    token_ids = [token_id for item in plan.items for token_id in item.run_token_ids]
    wanted = [
        range(start if row in scored_rows else end - item.is_sampled, end)
        for row, (start, end, item) in enumerate(zip(starts, starts[1:], plan.items))
    ]
    return PackedBatch(
        token_ids=torch.tensor(token_ids, device=device),  # [T]
        positions=positions,
        slots=slots,
        logit_index=torch.tensor([*itertools.chain(*wanted)], dtype=torch.long, device=device),  # [K]
        num_logits=[len(indices) for indices in wanted],
        groups=groups,
    )


def _kind(num_tokens: int) -> int:
    """Decodes, short rows, chunks: padding a row of 5 to a chunk of 128 would cost more than it saves."""
    return 0 if num_tokens == 1 else 1 if num_tokens <= SHORT else 2


def _group(
    rows: Seq[tuple[int, ScheduledSequence]],
    block_tables: Mapping[str, Seq[int]],
    block_size: int,
    device: torch.device,
) -> AttentionGroup:
    columns = [(start, item.num_run_tokens, item.num_computed_tokens) for start, item in rows]
    starts, lengths, cached = torch.tensor(columns, device=device).T.unsqueeze(-1)  # each [B, 1]
    steps = torch.arange(int(lengths.max()), device=device)  # [Q]
    is_query = steps < lengths  # [B, Q]
    steps = steps * is_query  # [B, Q], padding is step 0
    context = torch.arange(int((cached + lengths).max()), device=device)  # [S]
    context = context * (context < cached + lengths)  # [B, S], past the end is position 0
    tables = _padded([block_tables[item.seq.name] for _, item in rows], device)  # [B, M]
    return AttentionGroup(
        token_index=starts + steps,
        is_query=is_query,
        positions=cached + steps,
        context_slots=tables.gather(1, context // block_size) * block_size + context % block_size,
    )


def _padded(tables: Seq[Seq[int]], device: torch.device) -> torch.Tensor:
    longest = max(map(len, tables))
    return torch.tensor([[*table, *[0] * (longest - len(table))] for table in tables], device=device)
