"""Cases for attention kernels, judged by the plain kernel in fp64.

TRITON_INTERPRET=1 python -m tests.attention_cases      the Triton kernel on its cases: prints case -> error
"""

import json
import random
import sys
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import torch

from phase08_paged_attention.attention_kernel import Attend, AttentionKernel, AttentionOptions
from phase08_paged_attention.gather_attention import GatherAttention
from phase08_paged_attention.packed_batch import PackedBatch, pack
from phase08_paged_attention.paged_kv_cache import PagedKVCache
from shared.step import ScheduledSequence, StepPlan
from tests.fakes import make_sequence

CPU = torch.device("cpu")
LAYER, NUM_LAYERS = 1, 2
NUM_UNUSED_BLOCKS = 3

Row = tuple[int, int]  # context once its tokens are written, tokens run


@dataclass(frozen=True)
class Case:
    rows: tuple[Row, ...]
    head_dim: int = 16
    group: int = 3
    num_kv_heads: int = 2
    block_size: int = 16
    window: int | None = None
    softcap: float | None = None
    stored: torch.dtype = torch.float32
    query: torch.dtype = torch.float32

    @property
    def options(self) -> AttentionOptions:
        return AttentionOptions(self.head_dim**-0.5, self.window, self.softcap)


def around_edges(block_size: int) -> tuple[Row, ...]:
    """Decodes, verifications of 5 tokens and chunks in one batch, whose contexts end just before, at and after the
    edge of a block, and of what a kernel takes at once."""
    edges = sorted({block_size, 2 * block_size, 5 * block_size, 64, 128})
    contexts = sorted({edge + step for edge in edges for step in (-1, 0, 1)} - {0})
    decodes = [(context, 1) for context in contexts]
    verifications = [(context, 5) for context in contexts[::3] if context >= 5] + [(5, 5)]
    chunks = [(17, 17), (40, 40), (64 + block_size, 23), (130, 33), (66, 16)]
    mixed = [*decodes, *verifications, *chunks]
    random.Random(block_size).shuffle(mixed)
    return tuple(mixed)


def batch_of(rows: Seq[Row], block_size: int, seed: int = 0, device: torch.device = CPU) -> tuple[PackedBatch, int]:
    """The packed batch over shuffled block tables, and how many blocks the pool has; some belong to nobody."""
    counts = [-(context // -block_size) for context, _ in rows]
    num_blocks = sum(counts) + NUM_UNUSED_BLOCKS
    free = random.Random(seed).sample(range(num_blocks), num_blocks)
    tables = {f"s{i}": [free.pop() for _ in range(count)] for i, count in enumerate(counts)}
    items = []
    for name, (context, num_tokens) in zip(tables, rows):
        seq = make_sequence(context, name=name)
        seq.num_computed_tokens = context - num_tokens
        items.append(ScheduledSequence.next_tokens(seq, num_tokens))
    return pack(StepPlan(items), tables, block_size, device), num_blocks


def filled_cache(case: Case, batch: PackedBatch, num_blocks: int, generator: torch.Generator) -> PagedKVCache:
    """Numbers in the slots that hold context, and NaN in all others, of other layers too."""
    cache = PagedKVCache(
        num_layers=NUM_LAYERS,
        num_blocks=num_blocks,
        block_size=case.block_size,
        num_kv_heads=case.num_kv_heads,
        head_dim=case.head_dim,
        dtype=case.stored,
        device=batch.rows.device,
    )
    cache.key.fill_(float("nan"))
    cache.value.fill_(float("nan"))
    for context, table in zip(batch.context_lens.tolist(), batch.block_tables):
        positions = torch.arange(context, device=table.device)
        slots = table[positions // case.block_size] * case.block_size + positions % case.block_size
        key, value = torch.randn(2, context, case.num_kv_heads, case.head_dim, generator=generator)
        cache.write(LAYER, slots, key.to(slots.device), value.to(slots.device))
    return cache


def prepared(case: Case, device: torch.device = CPU) -> tuple[PackedBatch, PagedKVCache, torch.Tensor]:
    """Batch, filled pool, and query `[T, Hq, D]`."""
    batch, num_blocks = batch_of(case.rows, case.block_size, device=device)
    generator = torch.Generator().manual_seed(0)
    cache = filled_cache(case, batch, num_blocks, generator)
    query = torch.randn(len(batch.rows), case.num_kv_heads * case.group, case.head_dim, generator=generator)
    return batch, cache, query.to(device, case.query)


def expected(case: Case, batch: PackedBatch, cache: PagedKVCache, query: torch.Tensor) -> torch.Tensor:
    """What the plain kernel says in fp64, where softmax and sums are as good as exact."""
    return GatherAttention().prepare(batch, cache)(LAYER, query.double(), case.options)


def largest_error(kernel: AttentionKernel, case: Case, device: torch.device = CPU) -> float:
    """Of any number that comes out; outputs are about 1. Infinite where NaN comes out."""
    batch, cache, query = prepared(case, device)
    got = kernel.prepare(batch, cache)(LAYER, query, case.options)
    assert (got.dtype, got.shape) == (query.dtype, query.shape)
    error = (got.double() - expected(case, batch, cache, query)).abs()
    return float(error.nan_to_num(nan=float("inf")).max())


TINY = ((1, 1), (7, 1), (8, 1), (9, 1), (12, 5), (33, 2))  # the interpreter takes 10 ms a span
TRITON_CASES = {
    "plain": Case(TINY, block_size=8),
    "blocks of 1": Case(((3, 1), (33, 2)), block_size=1),
    "blocks of 3": Case(TINY, block_size=3),
    "odd head": Case(TINY, head_dim=3, group=1),
    "wide head": Case(((9, 1), (33, 3)), head_dim=80, group=4),
    "8 per group": Case(((33, 1), (32, 3)), group=8, num_kv_heads=1),
    "window of 1": Case(TINY, block_size=8, window=1),
    "window of 5": Case(TINY, block_size=8, window=5),
    "wide window": Case(((40, 12), (36, 5)), block_size=7, window=30),
    "softcap": Case(TINY, softcap=2.0),
    "chunk": Case(((40, 35), (20, 1)), group=2, num_kv_heads=1),
    "bf16 pool": Case(TINY, stored=torch.bfloat16),
    "fp16": Case(TINY, stored=torch.float16, query=torch.float16),
}


def main() -> None:
    from phase08_paged_attention.kernels.triton_attention import TritonAttention

    torch.set_num_threads(1)
    kernel = TritonAttention()
    errors = {name: largest_error(kernel, case) for name, case in TRITON_CASES.items()}
    errors["one position too many"] = largest_error(OffByOne(kernel, 1), TRITON_CASES["plain"])
    json.dump(errors, sys.stdout)


class OffByOne:
    """A kernel with a planted fault: it takes every token for the one before, or after, it."""

    name = "off by one"

    def __init__(self, kernel: AttentionKernel, by: int) -> None:
        self.kernel, self.by = kernel, by

    def prepare(self, batch: PackedBatch, cache: PagedKVCache) -> Attend:
        moved = replace(batch, positions=batch.positions + self.by, context_lens=batch.context_lens + self.by)
        return self.kernel.prepare(moved, cache)


if __name__ == "__main__":
    main()
