"""One step's tokens in one row, and where each of them leaves and finds K/V. Built once per step, for all layers.

    plan      req-1 decode 1 · req-2 decode 1 · req-3 chunk of 4
    packed    [ d | d | c c c c ]                       T = 6 tokens, no padding
    rows      [ 0 | 1 | 2 2 2 2 ]                       whose token it is

Letters: T tokens of the step, R rows of its plan (one per sequence), M most blocks of a row, K tokens whose logits are
wanted.
"""

import itertools
from collections.abc import Container, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from shared.step import StepPlan


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """What one forward pass runs.

    token_ids, positions, slots, rows: `[T]`; slots are where their K/V goes, rows whose they are.
    row_starts: `[R + 1]`, where each row's tokens begin in the packed one, and T.
    context_lens: `[R]`, positions whose K/V is there once this step's is written.
    block_tables: `[R, M]`, padded with 0; only the blocks that hold a row's context may be read.
    logit_index: `[K]`, the tokens whose logits are wanted: the last of each row that samples, and all of a row whose
    prompt is scored. num_logits: how many of the K each row of the plan has, in order.
    longest_row: tokens of the row that has most, here and not on the device: asking a GPU for it would wait for it.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    rows: torch.Tensor
    row_starts: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    logit_index: torch.Tensor
    num_logits: list[int]
    longest_row: int


def pack(
    plan: StepPlan,
    block_tables: Mapping[str, Seq[int]],
    block_size: int,
    device: torch.device,
    scored_rows: Container[int] = (),
) -> PackedBatch:
    """block_tables: sequence -> blocks, with room for the plan's tokens. scored_rows: where all logits are wanted."""
    lengths = [item.num_run_tokens for item in plan.items]
    starts = [0, *itertools.accumulate(lengths)]
    wanted = [
        range(start if row in scored_rows else end - item.is_sampled, end)
        for row, (start, end, item) in enumerate(zip(starts, starts[1:], plan.items))
    ]
    row_starts = torch.tensor(starts)  # [R + 1]
    num_computed = torch.tensor([item.num_computed_tokens for item in plan.items])  # [R]
    tables = _padded([block_tables[item.seq.name] for item in plan.items])  # [R, M]
    rows = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))  # [T]
    positions = torch.arange(starts[-1]) - (row_starts[:-1] - num_computed)[rows]  # [T]
    return PackedBatch(
        token_ids=torch.tensor([*itertools.chain(*(item.run_token_ids for item in plan.items))], device=device),
        positions=positions.to(device),
        slots=slots_of(tables, rows, positions, block_size).to(device),
        rows=rows.to(device),
        row_starts=row_starts.to(device),
        context_lens=(num_computed + row_starts.diff()).to(device),
        block_tables=tables.to(device),
        logit_index=torch.tensor([*itertools.chain(*wanted)], dtype=torch.long, device=device),  # [K]
        num_logits=[len(indices) for indices in wanted],
        longest_row=max(lengths),
    )


def slots_of(block_tables: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, block_size: int) -> torch.Tensor:
    """Where the K/V of each position is. block_tables: `[R, M]`. rows, positions: of one shape, which is returned."""
    # BEGIN SOLUTION 8.1
    return block_tables[rows, positions // block_size] * block_size + positions % block_size
    # END SOLUTION


def _padded(tables: Seq[Seq[int]]) -> torch.Tensor:
    longest = max(map(len, tables))
    return torch.tensor([[*table, *[0] * (longest - len(table))] for table in tables])
