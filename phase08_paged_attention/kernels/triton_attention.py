"""The in-place kernel for CUDA in Triton (`triton_kernel.py`). Not run on a GPU yet: exact under Triton's interpreter.

TRITON_INTERPRET=1, set before triton is loaded, runs it on a CPU, a program at a time: for tests.
"""

import os

import torch

from phase08_paged_attention.attention_kernel import Attend, AttentionOptions
from phase08_paged_attention.kernels.tiles import tiles_of
from phase08_paged_attention.kernels.unavailable import KernelUnavailable
from phase08_paged_attention.packed_batch import PackedBatch
from phase08_paged_attention.paged_kv_cache import PagedKVCache

STORED = (torch.float32, torch.float16, torch.bfloat16)
MAX_TILE = 16  # tokens of a row that share what is read
SPAN = 32  # positions taken at once
LEAST = 16  # rows and columns of the smallest matrix that Triton multiplies
NO_WINDOW = 2**62


class TritonAttention:
    """Computes in fp32 whatever is stored. Raises KernelUnavailable where Triton or a CUDA device is missing."""

    name = "triton"

    def __init__(self) -> None:
        if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
            raise KernelUnavailable("Triton needs a CUDA device, and there is none")
        try:
            import triton

            from phase08_paged_attention.kernels.triton_kernel import attend_tile
        except ImportError as error:
            raise KernelUnavailable(f"Triton cannot be loaded ({error})") from None
        self.attend_tile, self.power_of_2 = attend_tile, triton.next_power_of_2

    def prepare(self, batch: PackedBatch, cache: PagedKVCache) -> Attend:
        if cache.key.dtype not in STORED:
            raise ValueError(f'the triton kernel reads no {cache.key.dtype} pool: take attention_kernel="torch"')
        most = min(MAX_TILE, self.power_of_2(batch.longest_row))
        tiles = tiles_of(batch, most)  # [tiles, 4]
        tables = batch.block_tables.contiguous()  # [R, M]
        _, _, num_kv_heads, block_size, head_dim = cache.key.shape

        def attend_layer(layer: int, query: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
            q = query.contiguous()  # [T, Hq, D]
            out = torch.empty_like(q)
            group = q.shape[1] // num_kv_heads
            self.attend_tile[len(tiles), num_kv_heads](
                *(q, cache.key[layer], cache.value[layer], out, tables, tiles, tables.shape[1]),
                *(options.scale, options.window or NO_WINDOW, options.softcap or 0.0),
                H=num_kv_heads,
                G=group,
                D=head_dim,
                P=block_size,
                ROWS=max(LEAST, self.power_of_2(most * group)),
                WIDTH=max(LEAST, self.power_of_2(head_dim)),
                SPAN=SPAN,
            )
            return out

        return attend_layer
