"""Where K/V lives: one pool for all layers, cut into blocks.

    slot = block_table[position // block_size] * block_size + position % block_size

Letters: L layers, N blocks, P tokens per block (block_size), H KV heads, D head_dim, T tokens.
"""

import math
from collections.abc import Sequence as Seq
from typing import Any

import torch

from phase08_paged_attention.huge_pages import HUGE_PAGE, zero_bytes
from shared.kv_sizing import head_dim, num_kv_heads


class PagedKVCache:
    """Two tensors, `[L, N, H, P, D]` each (vLLM keeps one such pair per layer).

    A block's tokens lie next to each other head by head: a kernel that works on one KV head reads a block of it as
    one piece (4 KiB for 16 tokens of 64 floats).
    Zeros, and not what was in memory before: a masked weight of 0 times NaN would be NaN. On a CPU the system hands
    out the pages as they are first written. (Tests fill the pool with NaN, so that whatever reads a slot before it
    is written shows at once.)
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_layers, num_blocks, num_kv_heads, block_size, head_dim)
        self.block_size = block_size
        self.key = zeros(shape, dtype, device)  # [L, N, H, P, D]
        self.value = zeros(shape, dtype, device)  # [L, N, H, P, D]

    @classmethod
    def for_model(cls, model: Any, num_blocks: int, block_size: int) -> "PagedKVCache":
        """Sized by the model's config: the config's head_dim, which need not be hidden_size / heads."""
        return cls(
            num_layers=int(model.config.get_text_config().num_hidden_layers),
            num_blocks=num_blocks,
            block_size=block_size,
            num_kv_heads=num_kv_heads(model.config),
            head_dim=head_dim(model.config),
            dtype=model.dtype,
            device=model.device,
        )

    @property
    def num_bytes(self) -> int:
        return self.key.nbytes + self.value.nbytes

    def write(self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """slots: `[T]`. key, value: `[T, H, D]`."""
        blocks, places = slots // self.block_size, slots % self.block_size  # [T] each
        self.key[layer][blocks, :, places] = key.to(self.key.dtype)
        self.value[layer][blocks, :, places] = value.to(self.value.dtype)

    def read(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of `slots` `[B, S]`, copied out of the pool head by head: `[B, H, S, D]` each."""
        blocks, places = (slots // self.block_size)[:, None], (slots % self.block_size)[:, None]  # [B, 1, S]
        heads = torch.arange(self.key.shape[2], device=slots.device)[:, None]  # [H, 1]
        return self.key[layer][blocks, heads, places], self.value[layer][blocks, heads, places]


def zeros(shape: Seq[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """As torch.zeros, which writes every byte on a CPU; here large ones are written as they are first used."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or num_bytes < HUGE_PAGE:
        return torch.zeros(tuple(shape), dtype=dtype, device=device)
    return zero_bytes(num_bytes).view(dtype).view(tuple(shape))
