"""What every attention kernel offers. They give the same numbers; they differ in where they run and how they read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from phase08_paged_attention.packed_batch import PackedBatch
from phase08_paged_attention.paged_kv_cache import PagedKVCache


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """scale: of the scores. window: how many positions a query sees, its own included; None for all before it.

    softcap: scores are bent to `softcap * tanh(score / softcap)` (Gemma 2); None for not.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None


Attend = Callable[[int, torch.Tensor, AttentionOptions], torch.Tensor]


class AttentionKernel(Protocol):
    name: str

    def prepare(self, batch: PackedBatch, cache: PagedKVCache) -> Attend:
        """Called once per step; what it returns is called once per layer, when the step's K/V of it is written.

        (layer, query `[T, Hq, D]`, options) -> `[T, Hq, D]`, in the query's dtype.
        Slots past a row's context must not be read: anything may be in them.
        """
