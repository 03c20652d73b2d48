"""Runs a plan one sequence at a time: a Hugging Face cache and a forward pass for each.

Honest about its cost: a step with eight sequences reads the model's weights eight times. Phase 8 reads them once.
Letters: T tokens of one sequence in this step, B sequences that are sampled, V vocabulary.
"""

from typing import Any

import torch
from transformers import DynamicCache

from shared.hf_forward import forward_sequence, new_cache
from shared.prompt_logprobs import prompt_scorer
from shared.sampler import Sampler
from shared.sequence import Sequence
from shared.step import SampledToken, ScheduledSequence, StepPlan


class SequenceRunner:
    """Owns the model and each sequence's K/V (vLLM: `ModelRunner`, which packs what this one loops over)."""

    def __init__(self, model: Any, sampler: Sampler) -> None:
        self.model = model
        self.sampler = sampler
        self.caches: dict[Sequence, DynamicCache] = {}  # sequence -> its K/V

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> list[list[SampledToken]]:
        """The token sampled for each row; none where a row stops short of the last known token."""
        logits = [self._forward(item) for item in plan.items]  # each [V]
        sampled_rows = [row for row, item in enumerate(plan.items) if item.is_sampled]
        tokens: list[list[SampledToken]] = [[] for _ in plan.items]
        if sampled_rows:
            batch = torch.stack([logits[row] for row in sampled_rows])  # [B, V]
            chosen = self.sampler.sample(batch, [plan.items[row].seq for row in sampled_rows])
            for row, token in zip(sampled_rows, chosen):
                tokens[row].append(token)
        return tokens

    def release(self, seq: Sequence) -> None:
        self.caches.pop(seq, None)

    def _forward(self, item: ScheduledSequence) -> torch.Tensor:
        cache = self.caches.setdefault(item.seq, new_cache())
        return forward_sequence(self.model, item.token_ids, cache, prompt_scorer(item))  # [V]
