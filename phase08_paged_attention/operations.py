"""The arithmetic between the attentions, as the native forward asks for it: in plain PyTorch, on any device.

`kernels/cpp_operations.py` offers the same for fp32 and bf16 weights on a CPU.
Letters: T tokens of the step, C hidden size, Hq query heads, H KV heads, D head_dim, K inputs, N outputs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from phase08_paged_attention.packed_batch import PackedBatch
from phase08_paged_attention.paged_kv_cache import PagedKVCache

Linear = Callable[[torch.Tensor], torch.Tensor]  # [T, K] -> [T, N]


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Qwen3 normalizes each head of q and k. query, key: weights `[D]`."""

    query: torch.Tensor
    key: torch.Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class Rotation:
    """cos, sin: `[T, D / 2]`, of each token's position."""

    cos: torch.Tensor
    sin: torch.Tensor


class Operations(Protocol):
    """dtype: what hidden states are computed in."""

    name: str
    dtype: torch.dtype

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """A linear layer with its weight `[N, K]` as the operations want it; the original can be thrown away."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """`[T, C]` -> `[T, C]`."""

    def place(
        self,
        qkv: torch.Tensor,
        rotation: Rotation,
        norms: HeadNorms | None,
        batch: PackedBatch,
        cache: PagedKVCache,
        layer: int,
    ) -> torch.Tensor:
        """Rotate q and k by their positions, write k and v `[T, H, D]` to their slots, return q `[T, Hq, D]`.

        qkv: `[T, (Hq + 2 H) D]`, all heads of q, then of k, then of v; may be overwritten.
        """

    def silu_multiply(self, gate_up: torch.Tensor) -> torch.Tensor:
        """`[T, 2 I]`, gate and up next to each other -> silu(gate) * up, `[T, I]`."""


class TorchOperations:
    name = "torch"

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        return lambda x: F.linear(x, weight, bias)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        wide = x.float()  # fp64, too: Hugging Face does
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return normed.to(x.dtype) * weight

    def place(
        self,
        qkv: torch.Tensor,
        rotation: Rotation,
        norms: HeadNorms | None,
        batch: PackedBatch,
        cache: PagedKVCache,
        layer: int,
    ) -> torch.Tensor:
        _, _, num_kv_heads, _, head_dim = cache.key.shape
        heads = qkv.unflatten(-1, (-1, head_dim))  # [T, Hq + 2 H, D]
        num_heads = heads.shape[1] - 2 * num_kv_heads
        q, k, v = heads.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
        if norms is not None:
            q = self.rms_norm(q, norms.query, norms.eps)
            k = self.rms_norm(k, norms.key, norms.eps)
        cache.write(layer, batch.slots, _rotate(k, rotation), v)
        return _rotate(q, rotation)

    def silu_multiply(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)  # [T, I] each
        return F.silu(gate) * up


def _rotate(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Turn the pair (x[d], x[d + D / 2]) by the d-th angle. x: `[T, heads, D]`."""
    a, b = x.chunk(2, dim=-1)  # [T, heads, D / 2] each
    cos, sin = rotation.cos.unsqueeze(1), rotation.sin.unsqueeze(1)  # [T, 1, D / 2]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
