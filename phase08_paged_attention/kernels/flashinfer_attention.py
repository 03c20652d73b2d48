"""FlashInfer's attention over pages, for CUDA, where it is installed (`pip install flashinfer-python`).

Its pages are ours: `[N, H, P, D]`, which it calls HND. Before the first layer of a step it plans how the work is shared
out among the GPU's processors, from block tables that lie one after the other (CSR) where ours are padded.
Not run on a GPU yet: what it is handed is checked on a CPU, against a stand-in that reads it as the manual says.

Letters: R rows of the step, N blocks, P tokens per block, H KV heads, D head_dim, T tokens.
"""

from typing import Any, NamedTuple

import torch

from phase08_paged_attention.attention_kernel import Attend, AttentionOptions
from phase08_paged_attention.kernels.unavailable import KernelUnavailable
from phase08_paged_attention.packed_batch import PackedBatch
from phase08_paged_attention.paged_kv_cache import PagedKVCache

HEAD_DIMS = (64, 128, 256)
WORKSPACE_BYTES = 128 * 2**20  # what FlashInfer recommends, for the sums of contexts that several processors share


class FlashInferAttention:
    """fp16 and bf16, head_dim 64, 128 or 256. Raises KernelUnavailable without a CUDA device or FlashInfer."""

    name = "flashinfer"

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise KernelUnavailable("FlashInfer needs a CUDA device, and there is none")
        try:
            from flashinfer import BatchPrefillWithPagedKVCacheWrapper
        except ImportError as error:
            raise KernelUnavailable(f"FlashInfer cannot be loaded ({error}): pip install flashinfer-python") from None
        self._make_planner = BatchPrefillWithPagedKVCacheWrapper
        self._planners: dict[AttentionOptions, Any] = {}  # layers with a window have a plan of their own
        self._workspace: torch.Tensor | None = None

    def prepare(self, batch: PackedBatch, cache: PagedKVCache) -> Attend:
        _, _, num_kv_heads, block_size, head_dim = cache.key.shape
        pages = block_lists(batch, block_size)
        planned: set[AttentionOptions] = set()

        def attend_layer(layer: int, query: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
            q = query.to(cache.key.dtype).contiguous()  # [T, Hq, D]
            planner = self._planner(options, q.device)
            if options not in planned:
                planner.plan(
                    *(batch.row_starts.int(), pages.starts, pages.blocks, pages.last_lens),
                    *(q.shape[1], num_kv_heads, head_dim, block_size),
                    causal=True,  # by absolute position: a row's last token sees all of its context
                    sm_scale=options.scale,
                    window_left=-1 if options.window is None else options.window - 1,  # it does not count the query
                    logits_soft_cap=options.softcap,
                    q_data_type=q.dtype,
                )
                planned.add(options)
            return planner.run(q, (cache.key[layer], cache.value[layer])).to(query.dtype)

        return attend_layer

    def _planner(self, options: AttentionOptions, device: torch.device) -> Any:
        if self._workspace is None:
            self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        if options not in self._planners:
            self._planners[options] = self._make_planner(self._workspace, "HND", backend="fa2")
        return self._planners[options]


class BlockLists(NamedTuple):
    """All int32. starts: `[R + 1]`, where each row's blocks begin in `blocks`. blocks: `[starts[-1]]`.

    last_lens: `[R]`, positions in each row's last block, 1 to P.
    """

    starts: torch.Tensor
    blocks: torch.Tensor
    last_lens: torch.Tensor


def block_lists(batch: PackedBatch, block_size: int) -> BlockLists:
    """The block tables without their padding, and without blocks past a row's context."""
    counts = -(batch.context_lens // -block_size)  # [R]
    places = torch.arange(batch.block_tables.shape[1], device=counts.device)  # [M]
    is_used = places < counts[:, None]  # [R, M]
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])  # [R + 1]
    last_lens = batch.context_lens - (counts - 1) * block_size  # [R]
    return BlockLists(starts.int(), batch.block_tables[is_used].int(), last_lens.int())
