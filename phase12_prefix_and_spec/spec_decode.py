"""Verifying guesses in the pass that would have been run anyway, and making new ones.

    row       [ last | d1 d2 d3 ]      the last token and its drafts, run together
    logits      t1     t2 t3 t4        what the target takes after each of them
    accepted    t1 = d1, t2 = d2, t3 != d3  ->  t1 t2 t3 come out, d3 is rejected

Every token that comes out is the target's own choice, so guesses change the number of steps and nothing else.
K/V of rejected drafts needs no undoing: progress stops before it, and the next step overwrites it.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import torch

from phase08_paged_attention.model_runner import ModelRunner
from phase08_paged_attention.packed_batch import pack
from phase08_paged_attention.paged_kv_cache import PagedKVCache
from phase12_prefix_and_spec.acceptance import accepted_length
from phase12_prefix_and_spec.proposers import Proposer
from shared.prompt_logprobs import prompt_scorer
from shared.sampler import Sampler
from shared.sequence import Sequence
from shared.step import SampledToken, ScheduledSequence, StepPlan


class SpeculativeRunner(ModelRunner):
    """A ModelRunner whose rows may carry drafts, and whose last tokens carry new ones.

    num_speculative_tokens: most guesses per row and step.
    """

    def __init__(
        self,
        model: Any,
        sampler: Sampler,
        cache: PagedKVCache,
        block_tables: Mapping[str, Seq[int]],
        proposer: Proposer,
        num_speculative_tokens: int,
    ) -> None:
        super().__init__(model, sampler, cache, block_tables)
        self.proposer = proposer
        self.num_speculative_tokens = num_speculative_tokens

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> list[list[SampledToken]]:
        """Per row the tokens that come out: one, and one for each accepted draft; none for an unfinished prompt."""
        if not plan:
            return []
        scorers = {row: score for row, item in enumerate(plan.items) if (score := prompt_scorer(item))}
        whole_rows = scorers.keys() | {row for row, item in enumerate(plan.items) if item.draft}
        batch = pack(plan, self.block_tables, self.cache.block_size, self.cache.key.device, whole_rows)
        logits = self._forward(batch).split(batch.num_logits)  # per row [k, V]
        for row, score in scorers.items():
            score(logits[row])
        return self._verify(plan, logits)

    def release(self, seq: Sequence) -> None:
        self.proposer.release(seq)

    def _verify(self, plan: StepPlan, logits: Seq[torch.Tensor]) -> list[list[SampledToken]]:
        """Sample after every token of every row in one go, then keep each row's tokens up to the first wrong guess."""
        rows = [row for row, item in enumerate(plan.items) if item.is_sampled]
        tokens: list[list[SampledToken]] = [[] for _ in plan.items]
        if not rows:
            return tokens
        futures = [future for row in rows for future in _futures(plan.items[row])]
        per_row = [logits[row][-1 - len(plan.items[row].draft) :] for row in rows]  # [1 + drafts, V]
        sampled = iter(self.sampler.sample(torch.cat(per_row), futures))  # from [rows + drafts, V]
        for row in rows:
            item = plan.items[row]
            chosen = [next(sampled) for _ in range(1 + len(item.draft))]
            kept = chosen[: 1 + accepted_length(item.draft, [token.token_id for token in chosen])]
            tokens[row] = self._with_draft(item.seq, kept)
        return tokens

    def _with_draft(self, seq: Sequence, tokens: list[SampledToken]) -> list[SampledToken]:
        """The last token carries guesses at what comes after it."""
        token_ids = [*seq.token_ids, *(token.token_id for token in tokens)]
        draft = self.proposer.propose(seq, token_ids, self.num_speculative_tokens)
        return [*tokens[:-1], replace(tokens[-1], draft=tuple(draft))]


def _futures(item: ScheduledSequence) -> list[Sequence]:
    """The sequence as it is, and as it will be if the first guess is right, the first two, ...: what the sampler's
    penalties, minimum length and random numbers depend on."""
    seq = item.seq
    drafts = [item.draft[:count] for count in range(1, len(item.draft) + 1)]
    return [seq, *(replace(seq, token_ids=[*seq.token_ids, *draft]) for draft in drafts)]
