"""Verifying guesses in the pass that would have been run anyway, and making new ones.

    row       [ last | d1 d2 d3 ]      the last token and its drafts, run together
    logits      t1     t2 t3 t4        what the target takes after each of them
    accepted    t1 = d1, t2 = d2, t3 != d3  ->  t1 t2 t3 come out, d3 is rejected

Every token that comes out is the target's own choice, so guesses change the number of steps and nothing else.
K/V of rejected drafts needs no undoing: progress stops before it, and the next step overwrites it.
"""

import time
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import torch

from phase08_paged_attention.model_runner import ModelRunner
from phase08_paged_attention.packed_batch import pack
from phase08_paged_attention.paged_kv_cache import PagedKVCache
from phase12_prefix_and_spec.acceptance import accepted_length
from phase12_prefix_and_spec.draft_length import DraftLength
from phase12_prefix_and_spec.proposers import Proposer
from shared.prompt_logprobs import prompt_scorer
from shared.sampler import Sampler
from shared.sequence import Sequence
from shared.step import SampledToken, ScheduledSequence, StepPlan


class SpeculativeRunner(ModelRunner):
    """A ModelRunner whose rows may carry drafts, and whose last tokens carry new ones.

    draft_length: how many guesses are verified per row and step.
    """

    def __init__(
        self,
        model: Any,
        sampler: Sampler,
        cache: PagedKVCache,
        block_tables: Mapping[str, Seq[int]],
        proposer: Proposer,
        draft_length: DraftLength,
    ) -> None:
        super().__init__(model, sampler, cache, block_tables)
        self.proposer = proposer
        self.draft_length = draft_length
        self._guesses: dict[Sequence, list[int]] = {}  # sequence -> guesses at what comes next, verified or not

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> list[list[SampledToken]]:
        """Per row the tokens that come out: one, and one for each accepted draft; none for an unfinished prompt."""
        if not plan:
            return []
        started = time.perf_counter()
        scorers = {row: score for row, item in enumerate(plan.items) if (score := prompt_scorer(item))}
        whole_rows = scorers.keys() | {row for row, item in enumerate(plan.items) if item.draft}
        batch = pack(plan, self.block_tables, self.cache.block_size, self.cache.key.device, whole_rows)
        logits = self._forward(batch).split(batch.num_logits)  # per row [k, V]
        for row, score in scorers.items():
            score(logits[row])
        tokens = self._verify(plan, logits)
        if all(item.is_decode for item in plan.items):
            seconds = time.perf_counter() - started
            self.draft_length.note_step(len(plan.items), plan.num_tokens, sum(map(len, tokens)), seconds)
        return [self._with_draft(item.seq, row) if row else row for item, row in zip(plan.items, tokens)]

    def release(self, seq: Sequence) -> None:
        self.proposer.release(seq)
        self.draft_length.release(seq)
        self._guesses.pop(seq, None)

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
            tokens[row] = kept
        return tokens

    def _with_draft(self, seq: Sequence, tokens: list[SampledToken]) -> list[SampledToken]:
        """The last token carries guesses at what comes after it."""
        new_ids = [token.token_id for token in tokens]
        self._judge(seq, new_ids)
        num_verified = self.draft_length.choose(seq)
        num_made = self.draft_length.cap if self.proposer.is_free else num_verified
        self._guesses[seq] = self.proposer.propose(seq, [*seq.token_ids, *new_ids], num_made)
        return [*tokens[:-1], replace(tokens[-1], draft=tuple(self._guesses[seq][:num_verified]))]

    def _judge(self, seq: Sequence, token_ids: list[int]) -> None:
        """How good the last guesses were, also those that were not verified."""
        guesses = self._guesses.get(seq, [])[: len(token_ids)]
        if guesses:
            num_right = accepted_length(guesses, token_ids)
            self.draft_length.note_guesses(seq, num_right, min(num_right + 1, len(guesses)))


def _futures(item: ScheduledSequence) -> list[Sequence]:
    """The sequence as it is, and as it will be if the first guess is right, the first two, ...: what the sampler's
    penalties, minimum length and random numbers depend on."""
    seq = item.seq
    drafts = [item.draft[:count] for count in range(1, len(item.draft) + 1)]
    return [seq, *(replace(seq, token_ids=[*seq.token_ids, *draft]) for draft in drafts)]
