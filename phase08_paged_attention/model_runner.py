"""Runs a plan in ONE forward pass: chunks and decodes of all sequences packed into a single row of tokens.

Letters: T tokens of the step, K of them whose logits are wanted, V vocabulary.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from typing import Any

import torch

from phase08_paged_attention.forward import Forward
from phase08_paged_attention.packed_batch import PackedBatch, pack
from phase08_paged_attention.paged_kv_cache import PagedKVCache
from shared.one_thread import one_thread
from shared.prompt_logprobs import prompt_scorer
from shared.sampler import Sampler
from shared.sequence import Sequence
from shared.step import SampledToken, StepPlan


class ModelRunner:
    """Owns the model and the pool (vLLM: `GPUModelRunner`).

    block_tables: sequence -> blocks; the scheduler's allocator keeps it, this only reads it.
    """

    def __init__(
        self, forward: Forward, sampler: Sampler, cache: PagedKVCache, block_tables: Mapping[str, Seq[int]]
    ) -> None:
        self.forward = forward
        self.sampler = sampler
        self.cache = cache
        self.block_tables = block_tables
        self._try_out()

    @property
    def model(self) -> Any:
        """Hugging Face's model; with a forward of our own, what is left of it."""
        return self.forward.model

    @property
    def implementation(self) -> Mapping[str, str]:
        """What is behind the names, for those who measure."""
        return self.forward.implementation

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> list[list[SampledToken]]:
        """The token sampled for each row; none where a row stops short of the last known token."""
        tokens: list[list[SampledToken]] = [[] for _ in plan.items]
        if not plan:
            return tokens
        scorers = {row: score for row, item in enumerate(plan.items) if (score := prompt_scorer(item))}
        batch = pack(plan, self.block_tables, self.cache.block_size, self.cache.key.device, scorers)
        logits = self._forward(batch)  # [K, V]
        if scorers:
            logits = _score_prompts(logits, batch, plan, scorers)
        rows = [row for row, item in enumerate(plan.items) if item.is_sampled]
        for row, token in zip(rows, self.sampler.sample(logits, [plan.items[row].seq for row in rows])):
            tokens[row].append(token)
        return tokens

    def release(self, seq: Sequence) -> None:
        """Nothing to do: what a sequence leaves in its blocks is overwritten by the next owner."""

    @torch.inference_mode()
    def _try_out(self) -> None:
        """One token through model and kernel: what one of them asks for and cannot have is refused now, by name."""
        device = self.cache.key.device
        zero, zero_one = torch.tensor([0], device=device), torch.tensor([0, 1], device=device)
        one_token = PackedBatch(
            token_ids=zero,
            positions=zero,
            slots=zero,
            rows=zero,
            row_starts=zero_one,
            context_lens=zero_one[1:],
            block_tables=zero[None],
            logit_index=zero,
            num_logits=[1],
            longest_row=1,
        )
        with one_thread():
            self._forward(one_token)

    def _forward(self, batch: PackedBatch) -> torch.Tensor:
        return self.forward(batch, self.cache)  # [K, V]


def _score_prompts(
    logits: torch.Tensor, batch: PackedBatch, plan: StepPlan, scorers: Mapping[int, Callable[[torch.Tensor], None]]
) -> torch.Tensor:
    """Hand the logits `[K, V]` of scored rows over; returns those to sample from, `[rows that sample, V]`."""
    per_row = logits.split(batch.num_logits)
    for row, score in scorers.items():
        score(per_row[row])
    sampled = [part[-1] for part, item in zip(per_row, plan.items) if item.is_sampled]
    return torch.stack(sampled) if sampled else logits[:0]
