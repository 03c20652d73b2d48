"""How the kernels share a step's attention out: among threads, or among a GPU's programs."""

import torch

from phase08_paged_attention.packed_batch import PackedBatch


def tiles_of(batch: PackedBatch, most: int) -> torch.Tensor:
    """Up to `most` successive tokens of one row each, so that a block read once serves several queries.

    Returns `[tiles, 4]` int64: a tile's row, its first token in the packed row, that token's position, how many tokens.
    """
    if batch.longest_row == 1:  # decodes: a tile each, and no number that a GPU would have to be asked for
        return torch.stack([batch.rows, batch.rows, batch.positions, torch.ones_like(batch.rows)], dim=1)
    lengths = batch.row_starts.diff()  # [R]
    num_tiles = -(lengths // -most)  # [R]
    rows = torch.arange(len(lengths), device=lengths.device).repeat_interleave(num_tiles)  # [tiles]
    places = torch.arange(len(rows), device=rows.device)  # [tiles]
    offsets = (places - (num_tiles.cumsum(0) - num_tiles)[rows]) * most  # [tiles], within the row
    first = batch.row_starts[rows] + offsets
    return torch.stack([rows, first, batch.positions[first], (lengths[rows] - offsets).clamp(max=most)], dim=1)
