"""The in-place kernel for CPUs without a compiler (`numba_kernel.py`): decodes and short rows; chunks are gathered."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F

from phase08_paged_attention.attention_kernel import Attend, AttentionOptions
from phase08_paged_attention.gather_attention import SHORT, GatherAttention
from phase08_paged_attention.kernels.tiles import tiles_of
from phase08_paged_attention.kernels.unavailable import KernelUnavailable
from phase08_paged_attention.packed_batch import PackedBatch
from phase08_paged_attention.paged_kv_cache import PagedKVCache

STORED = (torch.float32, torch.float64, torch.bfloat16)
SAFE_LAYERS = ("omp", "tbb")  # several threads may use them at once; with "workqueue" that ends the process
NO_WINDOW = 2**62


class NumbaAttention:
    """Raises KernelUnavailable where Numba is missing, or has no thread-safe layer."""

    name = "numba"

    def __init__(self) -> None:
        self.numba = start_threads()
        from phase08_paged_attention.kernels.numba_kernel import attend

        self.attend = attend

    def prepare(self, batch: PackedBatch, cache: PagedKVCache) -> Attend:
        """Rows over SHORT tokens are gathered and given to SDPA, which blocks them better: 30 layers on two cores take
        124 ms against 310 for 512 tokens on none before them, 77 against 281 for 128 on 896, 10 against 25 for 32 on
        224 (SmolLM2-135M's heads, fp32)."""
        if cache.key.dtype not in STORED:
            raise ValueError(f'the numba kernel reads no {cache.key.dtype} pool: take attention_kernel="torch"')
        is_chunk = batch.row_starts.diff() > SHORT  # [R]
        tiles = tiles_of(batch, SHORT)  # [tiles, 4]
        attend_short = self._in_place(batch, cache, tiles[~is_chunk[tiles[:, 0]]])
        chunk_tokens = is_chunk[batch.rows].nonzero().flatten()
        if not len(chunk_tokens):
            return attend_short
        attend_chunks = GatherAttention().prepare(rows_of(batch, is_chunk), cache)

        def attend_layer(layer: int, query: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
            out = attend_short(layer, query, options)
            out[chunk_tokens] = attend_chunks(layer, query[chunk_tokens], options)
            return out

        return attend_layer

    def _in_place(self, batch: PackedBatch, cache: PagedKVCache, tiles: torch.Tensor) -> Attend:
        """Leaves what is in no tile as it comes."""
        computed = torch.float64 if cache.key.dtype == torch.float64 else torch.float32
        key, value = (as_numpy(pool) for pool in (cache.key, cache.value))  # [L, N, H, P, D]
        tables, tasks = batch.block_tables.numpy(), tiles.numpy()
        num_workers = min(torch.get_num_threads(), self.numba.config.NUMBA_NUM_THREADS)

        def attend_layer(layer: int, query: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
            q = query.detach().to(computed).contiguous()  # [T, Hq, D]
            out = torch.empty_like(q)
            if len(tasks):
                bounds = (options.scale, options.window or NO_WINDOW, options.softcap or 0.0)
                before = self.numba.get_num_threads()
                self.numba.set_num_threads(num_workers)
                self.attend(q.numpy(), key[layer], value[layer], out.numpy(), tables, tasks, bounds, num_workers)
                self.numba.set_num_threads(before)
            return out.to(query.dtype)

        return attend_layer


def as_numpy(pool: torch.Tensor) -> Any:
    """The same memory; numpy has no bf16, so its bits."""
    return (pool.view(torch.uint16) if pool.dtype == torch.bfloat16 else pool).numpy()


def rows_of(batch: PackedBatch, chosen: torch.Tensor) -> PackedBatch:
    """chosen: `[R]`. Without the choice of logits, which attention has no use for."""
    tokens = chosen[batch.rows].nonzero().flatten()
    lengths = batch.row_starts.diff()[chosen]
    return replace(
        batch,
        token_ids=batch.token_ids[tokens],
        positions=batch.positions[tokens],
        slots=batch.slots[tokens],
        rows=torch.arange(len(lengths)).repeat_interleave(lengths),
        row_starts=F.pad(lengths.cumsum(0), (1, 0)),
        context_lens=batch.context_lens[chosen],
        block_tables=batch.block_tables[chosen],
        logit_index=tokens[:0],
        num_logits=[0] * len(lengths),
    )


@lru_cache(maxsize=1)
def start_threads() -> Any:
    """numba, with threads that several callers may use at once. Its settings, and torch's, are left as they were.

    They are chosen once per process, by whoever needs them first. Torch is loaded by then, so "omp" finds its OpenMP.
    """
    try:
        import numba
    except ImportError as error:
        raise KernelUnavailable(f"Numba cannot be loaded ({error})") from None
    settings: Any = numba.config
    chosen, num_threads = settings.THREADING_LAYER, torch.get_num_threads()
    for layer in SAFE_LAYERS:
        settings.THREADING_LAYER = layer
        try:
            numba.set_num_threads(numba.get_num_threads())  # starts them
            break
        except ValueError:
            continue
        finally:
            settings.THREADING_LAYER = chosen
            torch.set_num_threads(num_threads)  # Numba's OpenMP layer sets it to all cores
    else:
        raise KernelUnavailable(f"Numba has none of its thread-safe layers here ({', '.join(SAFE_LAYERS)})")
    if numba.threading_layer() not in SAFE_LAYERS:
        raise KernelUnavailable(f"Numba already runs on its threading layer {numba.threading_layer()!r}")
    return numba
