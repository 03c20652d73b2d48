"""The native forward's arithmetic on a CPU, in C++ (`cpp/`): weights in fp32 or bf16, everything else in fp32.

Weights are packed into panels that are read once for up to 12 tokens (6 without AVX-512), with the next panel on its
way from memory meanwhile. A step of 8 tokens then costs hardly more than one of 1 (`python -m shared.bench step-time`),
and bf16 halves what has to be read.
Letters: T tokens of the step, K inputs, N outputs, W outputs of a panel, Hq query heads, H KV heads, D head_dim.
"""

import torch
import torch.nn.functional as F

from phase08_paged_attention.huge_pages import Arena
from phase08_paged_attention.kernels.cpp_library import STORED_AS, cpp_library
from phase08_paged_attention.operations import HeadNorms, Linear, Rotation
from phase08_paged_attention.packed_batch import PackedBatch
from phase08_paged_attention.paged_kv_cache import PagedKVCache


class CppOperations:
    """Raises KernelUnavailable where the library cannot be compiled."""

    name = "cpp"
    dtype = torch.float32
    stored = (torch.float32, torch.bfloat16)  # dtypes of weights and pool

    def __init__(self) -> None:
        self.library = cpp_library()
        self.arena = Arena()

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        num_outputs, num_inputs = weight.shape
        width = self.library.panel_width()
        padded = F.pad(weight, (0, 0, 0, -num_outputs % width))  # [N rounded up, K]
        panels = padded.unflatten(0, (-1, width)).transpose(1, 2)  # [N / W, K, W]
        if weight.dtype == torch.bfloat16:  # outputs i and i + W / 2 share a word
            panels = panels.unflatten(2, (2, -1)).transpose(2, 3)  # [N / W, K, W / 2, 2]
        panels = self.arena.copy_of(panels)
        num_padded = len(padded)
        function = getattr(self.library, f"linear_{STORED_AS[weight.dtype]}")
        bias = None if bias is None else bias.float()

        def run(x: torch.Tensor) -> torch.Tensor:
            x = x.contiguous()  # [T, K]
            num_tokens = x.shape[0]
            y = torch.empty(num_tokens, num_padded)  # [T, N rounded up]
            num_threads = torch.get_num_threads()
            function(panels.data_ptr(), x.data_ptr(), y.data_ptr(), num_tokens, num_inputs, num_padded, num_threads)
            y = y if num_padded == num_outputs else y[:, :num_outputs]
            return y if bias is None else y.add_(bias)

        return run

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        num_threads = torch.get_num_threads()
        self.library.rms_norm(x.data_ptr(), weight.data_ptr(), y.data_ptr(), *x.shape, eps, num_threads)
        return y

    def place(
        self,
        qkv: torch.Tensor,
        rotation: Rotation,
        norms: HeadNorms | None,
        batch: PackedBatch,
        cache: PagedKVCache,
        layer: int,
    ) -> torch.Tensor:
        qkv = qkv.contiguous()  # [T, (Hq + 2 H) D]
        _, _, num_kv_heads, block_size, head_dim = cache.key.shape
        num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
        function = getattr(self.library, f"place_{STORED_AS[cache.key.dtype]}")
        function(
            qkv.data_ptr(),
            rotation.cos.data_ptr(),
            rotation.sin.data_ptr(),
            norms.query.data_ptr() if norms else None,
            norms.key.data_ptr() if norms else None,
            norms.eps if norms else 0.0,
            batch.slots.data_ptr(),
            cache.key[layer].data_ptr(),
            cache.value[layer].data_ptr(),
            qkv.shape[0],
            num_heads,
            num_kv_heads,
            head_dim,
            block_size,
            torch.get_num_threads(),
        )
        return qkv.view(qkv.shape[0], -1, head_dim)[:, :num_heads]  # [T, Hq, D]

    def silu_multiply(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate_up = gate_up.contiguous()  # [T, 2 I]
        num_tokens, double = gate_up.shape
        y = torch.empty(num_tokens, double // 2, dtype=torch.float32)
        num_threads = torch.get_num_threads()
        self.library.silu_multiply(gate_up.data_ptr(), y.data_ptr(), num_tokens, double // 2, num_threads)
        return y
