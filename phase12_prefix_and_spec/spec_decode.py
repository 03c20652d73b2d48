"""Verifying guesses in the pass that would have been run anyway, and making new ones.

    row       [ last | d1 d2 d3 ]      the last token and its drafts, run together
    logits      t1     t2 t3 t4        what the target would take after each of them
    accepted    t1 = d1, t2 = d2, t3 != d3  ->  t1 t2 t3 come out, d3 is rejected

Which guesses stand is for `verification.py` to say; either way guesses change the number of steps and nothing else.
K/V of rejected drafts needs no undoing: progress stops before it, and the next step overwrites it.
"""

import time
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace

import torch

from phase08_paged_attention.forward import Forward
from phase08_paged_attention.model_runner import ModelRunner
from phase08_paged_attention.packed_batch import pack
from phase08_paged_attention.paged_kv_cache import PagedKVCache
from phase12_prefix_and_spec.acceptance import accepted_length
from phase12_prefix_and_spec.draft_length import DraftLength
from phase12_prefix_and_spec.proposers import Guesses, Outlook, Proposer
from phase12_prefix_and_spec.verification import DraftedRow, verify
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
        forward: Forward,
        sampler: Sampler,
        cache: PagedKVCache,
        block_tables: Mapping[str, Seq[int]],
        proposer: Proposer,
        draft_length: DraftLength,
    ) -> None:
        super().__init__(forward, sampler, cache, block_tables)
        self.proposer = proposer
        self.draft_length = draft_length
        self._guesses: dict[Sequence, Guesses] = {}  # sequence -> guesses at what comes next, verified or not

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
        rows = [row for row, item in enumerate(plan.items) if item.is_sampled]
        verified = verify(self.sampler, [self._drafted(plan.items[row], logits[row]) for row in rows])
        if all(item.is_decode for item in plan.items):
            seconds = time.perf_counter() - started
            self.draft_length.note_step(len(plan.items), plan.num_tokens, sum(map(len, verified)), seconds)
        tokens: list[list[SampledToken]] = [[] for _ in plan.items]
        for row, drafted in zip(rows, self._with_drafts([plan.items[row].seq for row in rows], verified)):
            tokens[row] = drafted
        return tokens

    def release(self, seq: Sequence) -> None:
        self.proposer.release(seq)
        self.draft_length.release(seq)
        self._guesses.pop(seq, None)

    def _drafted(self, item: ScheduledSequence, logits: torch.Tensor) -> DraftedRow:
        """logits: `[at least 1 + drafts, V]`, of the row's last tokens."""
        seq, num_drafts = item.seq, len(item.draft)
        drafts = [item.draft[:count] for count in range(1, num_drafts + 1)]
        futures = [seq, *(replace(seq, token_ids=[*seq.token_ids, *draft]) for draft in drafts)]
        drawn_from = self._guesses[seq].drawn_from if num_drafts else None
        kept = None if drawn_from is None else drawn_from[:num_drafts]  # the scheduler may have cut some off
        return DraftedRow(item.draft, logits[-1 - num_drafts :], futures, kept)

    def _with_drafts(self, seqs: Seq[Sequence], verified: Seq[list[SampledToken]]) -> list[list[SampledToken]]:
        """The last token of each row carries guesses at what comes after it."""
        outlooks, lengths = [], []
        for seq, tokens in zip(seqs, verified):
            new_ids = [token.token_id for token in tokens]
            self._judge(seq, new_ids)
            lengths.append(self.draft_length.choose(seq))
            num_made = self.draft_length.cap if self.proposer.is_free else lengths[-1]
            num_left = max(0, seq.max_num_tokens - len(seq.token_ids) - len(new_ids) - 1)
            outlooks.append(Outlook(seq, [*seq.token_ids, *new_ids], min(num_made, num_left)))
        self._guesses |= dict(zip(seqs, self.proposer.propose(outlooks)))
        return [
            [*tokens[:-1], replace(tokens[-1], draft=tuple(self._guesses[seq].token_ids[:length]))]
            for seq, tokens, length in zip(seqs, verified, lengths)
        ]

    def _judge(self, seq: Sequence, token_ids: list[int]) -> None:
        """How good the last guesses were, also those that were not verified."""
        guesses = self._guesses.get(seq, Guesses()).token_ids[: len(token_ids)]
        if guesses:
            num_right = accepted_length(guesses, token_ids)
            self.draft_length.note_guesses(seq, num_right, min(num_right + 1, len(guesses)))
