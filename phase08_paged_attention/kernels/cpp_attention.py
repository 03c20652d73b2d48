"""The in-place kernel for CPUs in C++ (`cpp/attention.h`): the fastest one where there is a compiler."""

import torch

from phase08_paged_attention.attention_kernel import Attend, AttentionOptions
from phase08_paged_attention.kernels.cpp_library import STORED_AS, cpp_library
from phase08_paged_attention.kernels.tiles import tiles_of
from phase08_paged_attention.packed_batch import PackedBatch
from phase08_paged_attention.paged_kv_cache import PagedKVCache


class CppAttention:
    """Raises KernelUnavailable where the library cannot be compiled."""

    name = "cpp"

    def __init__(self) -> None:
        self.library = cpp_library()

    def prepare(self, batch: PackedBatch, cache: PagedKVCache) -> Attend:
        function = getattr(self.library, f"attend_{STORED_AS[cache.key.dtype]}")
        computed = torch.float64 if cache.key.dtype == torch.float64 else torch.float32
        tiles = tiles_of(batch, self.library.max_tile())  # [tiles, 4]
        tables = batch.block_tables.contiguous()  # [R, M]
        _, _, num_kv_heads, block_size, head_dim = cache.key.shape
        num_threads = torch.get_num_threads()

        def attend_layer(layer: int, query: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
            num_tokens, num_heads, _ = query.shape
            q = query.to(computed)  # [T, Hq, D], heads next to each other, rows at any distance
            out = torch.empty(query.shape, dtype=computed)
            function(
                q.data_ptr(),
                cache.key[layer].data_ptr(),
                cache.value[layer].data_ptr(),
                out.data_ptr(),
                tables.data_ptr(),
                tiles.data_ptr(),
                len(tiles),
                q.stride(0) if num_tokens > 1 else 0,
                num_kv_heads,
                num_heads // num_kv_heads,
                head_dim,
                block_size,
                tables.shape[1],
                options.scale,
                options.softcap or 0.0,
                options.window or 0,
                num_threads,
            )
            return out.to(query.dtype)

        return attend_layer
