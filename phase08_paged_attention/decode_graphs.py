"""Decode steps of a few fixed sizes, recorded once and replayed: an option on CUDA (`--cuda-graphs`).

A step of one token per sequence is hundreds of small kernels, and starting each of them from Python takes longer than
running it. A recorded graph starts them all at once, but always the same ones on the same memory. So each size has
tensors of its own that a step's numbers are copied into, and a step between two sizes is filled up with copies of its
first row: they write the same K/V to the same slot, and nobody reads their logits.
Steps with a piece of a prompt, or with guesses to verify, run as ever.

Exact on a CPU, where a "recording" runs the same tensors again. Not run on a GPU yet.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from phase08_paged_attention.packed_batch import PackedBatch
from phase08_paged_attention.paged_kv_cache import PagedKVCache

if TYPE_CHECKING:
    from phase08_paged_attention.forward import Forward

Run = Callable[[], torch.Tensor]
Record = Callable[[Run], Run]  # what is run once -> what runs it again, into the same memory


@dataclass(frozen=True, slots=True)
class Graph:
    """inputs: of one size, filled anew for each step. replay: the logits of all its rows, until the next replay."""

    inputs: PackedBatch
    replay: Run


class DecodeGraphs:
    """A forward that replays decodes. max_rows, max_blocks: of a step and of a sequence; longer steps run as ever."""

    def __init__(self, forward: "Forward", max_rows: int, max_blocks: int, record: Record) -> None:
        self.forward = forward
        self.model = forward.model
        self.kernel = forward.kernel
        self.sizes = [1, 2, 4, *range(8, max_rows + 8, 8)]
        self.max_blocks = max_blocks
        self._record = record
        self._graphs: dict[int, Graph] = {}

    @property
    def implementation(self) -> Mapping[str, str]:
        return {**self.forward.implementation, "decode": "graphs"}

    def __call__(self, batch: PackedBatch, cache: PagedKVCache) -> torch.Tensor:
        num_rows = len(batch.context_lens)
        is_decode = batch.longest_row == 1 and len(batch.logit_index) == num_rows
        if not is_decode or num_rows > self.sizes[-1] or batch.block_tables.shape[1] > self.max_blocks:
            return self.forward(batch, cache)
        size = next(size for size in self.sizes if size >= num_rows)
        if size not in self._graphs:
            self._graphs[size] = self._recorded(size, batch, cache)
        graph = self._graphs[size]
        _fill(graph.inputs, batch)
        return graph.replay()[:num_rows]  # [R, V]

    def _recorded(self, size: int, batch: PackedBatch, cache: PagedKVCache) -> Graph:
        inputs = _empty(size, self.max_blocks, batch.token_ids.device)
        _fill(inputs, batch)  # the recording may run, and must then write what this step writes
        return Graph(inputs, self._record(lambda: self.forward(inputs, cache)))


def _empty(size: int, max_blocks: int, device: torch.device) -> PackedBatch:
    each = torch.arange(size, device=device)
    new = each.new_zeros
    return PackedBatch(
        token_ids=new(size),
        positions=new(size),
        slots=new(size),
        rows=each,
        row_starts=torch.arange(size + 1, device=device),
        context_lens=new(size),
        block_tables=new(size, max_blocks),
        logit_index=each,
        num_logits=[1] * size,
        longest_row=1,
    )


def _fill(inputs: PackedBatch, batch: PackedBatch) -> None:
    """Copy the batch's rows, then its first one up to the inputs' size. Old blocks past a table's end are not read."""
    num_rows = len(batch.context_lens)
    for name in ("token_ids", "positions", "slots", "context_lens"):
        to, values = getattr(inputs, name), getattr(batch, name)
        to[:num_rows] = values
        to[num_rows:] = values[0]
    width = batch.block_tables.shape[1]
    inputs.block_tables[:num_rows, :width] = batch.block_tables
    inputs.block_tables[num_rows:, :width] = batch.block_tables[0]


def cuda_graph(run: Run) -> Run:
    """Run it once beside the recording, for what is compiled and allocated at first; then record it."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run()

    def replay() -> torch.Tensor:
        graph.replay()
        return output

    return replay
