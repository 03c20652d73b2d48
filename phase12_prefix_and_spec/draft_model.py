"""A smaller model of the same family decodes ahead (Leviathan et al., ICML 2023), for all sequences of a step together.

    target's view    token_ids  [ prompt ... | generated ]
    draft's view     token_ids  [ prompt ... | generated | g1 g2 g3 ]      num_computed_tokens: the draft's own progress

It is phase 8's runner once more, with a pool and an allocator of its own and another sampler. What turned out wrong is
undone by the progress number; what the target took without the draft having run it (all guesses right, or none wanted)
is caught up with, in chunks. Whoever is not in the step was preempted, and its K/V here is dropped.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F

from phase08_paged_attention.forward import make_forward
from phase08_paged_attention.model_runner import ModelRunner
from phase08_paged_attention.paged_kv_cache import PagedKVCache
from phase12_prefix_and_spec.prefix_cache import Allocator
from phase12_prefix_and_spec.proposers import Guesses, Outlook
from shared.config import EngineConfig
from shared.errors import InvalidConfig
from shared.input_processor import model_max_len
from shared.logits_processors import process_logits
from shared.sampler import Sampler, draw
from shared.sampling_weights import probabilities
from shared.sequence import Sequence
from shared.step import SampledToken, ScheduledSequence, StepPlan
from shared.uniform import uniform

MAX_PADDING = 1024  # rows by which embeddings of one vocabulary may differ: padding to a handy size


@dataclass(slots=True)
class Guess(SampledToken):
    """drawn_from: `[V]`, None where the guess was not drawn at random."""

    drawn_from: torch.Tensor | None = None


class GuessSampler(Sampler):
    """Guesses as the target will choose: with the request's settings, and for a seeded one with its random number.

    Unseeded requests take a number that the target does not use: rejection sampling wants guesses that do not depend
    on what they are verified with.
    """

    def __init__(self, target_vocab_size: int) -> None:
        self.target_vocab_size = target_vocab_size

    def sample(self, logits: torch.Tensor, seqs: Seq[Sequence]) -> list[SampledToken]:
        """logits: `[B, V of the draft]`. Returns a Guess for each row."""
        logits = F.pad(
            logits, (0, self.target_vocab_size - logits.shape[-1]), value=-torch.inf
        )  # [B, V], cut or filled
        rows = [row for row, seq in enumerate(seqs) if seq.params.seed is None and not seq.params.is_greedy]
        others = [row for row in range(len(seqs)) if row not in rows]
        chosen = super().sample(logits[others], [seqs[row] for row in others])
        guesses = {row: Guess(token.token_id) for row, token in zip(others, chosen)}
        return [guesses[row] for row in range(len(seqs))] if not rows else self._with_drawn(logits, seqs, rows, guesses)

    def _with_drawn(
        self, logits: torch.Tensor, seqs: Seq[Sequence], rows: list[int], guesses: dict[int, Guess]
    ) -> list[SampledToken]:
        drawing = [seqs[row] for row in rows]
        drawn_from = probabilities(process_logits(logits[rows], drawing), [seq.params for seq in drawing])  # [R, V]
        token_ids = draw(drawn_from, [uniform(seq.seed, seq.index, len(seq.token_ids), "draft") for seq in drawing])
        guesses |= {row: Guess(id_, drawn_from=q) for row, id_, q in zip(rows, token_ids.tolist(), drawn_from)}
        return [guesses[row] for row in range(len(seqs))]


class DraftModelProposer:
    """allocator: of the draft's own pool. A pass runs no more tokens than a step may: catching up stalls nobody.

    Raises InvalidConfig where the draft's vocabulary is another one.
    """

    is_free = False

    def __init__(self, model: Any, target: Any, config: EngineConfig, allocator: Allocator) -> None:
        self.vocab_size, target_vocab_size = (m.get_input_embeddings().num_embeddings for m in (model, target))
        if abs(self.vocab_size - target_vocab_size) > MAX_PADDING:
            raise InvalidConfig(
                f"draft_model: embeds {self.vocab_size:,} tokens and the model {target_vocab_size:,}, so their "
                "vocabularies differ; take a smaller model of the same family"
            )
        self.max_model_len = model_max_len(model) or int(config.max_model_len)
        self.allocator = allocator
        self.budget_tokens = int(config.prefill_budget_tokens)
        cache = PagedKVCache.for_model(model, allocator.num_blocks, allocator.block_size)
        forward = make_forward(model.eval(), config)
        self.runner = ModelRunner(forward, GuessSampler(target_vocab_size), cache, allocator.block_tables)
        self._views: dict[Sequence, Sequence] = {}  # the target's view -> the draft's

    def propose(self, outlooks: Seq[Outlook]) -> list[Guesses]:
        """A pass for each guess, all sequences in it; the first pass also catches up."""
        self._drop_all_but({outlook.seq for outlook in outlooks})
        made: dict[Sequence, list[Guess]] = {outlook.seq: [] for outlook in outlooks}
        views = {self._view(outlook): outlook for outlook in outlooks if self._can_guess(outlook)}
        while plan := self._plan(views):
            wanting_more: dict[Sequence, Outlook] = {}
            rows = cast("list[list[Guess]]", self.runner.execute(plan))  # as its sampler makes them
            for item, guesses in zip(plan.items, rows):
                outlook = views[item.seq]
                self._take(item, guesses, is_first=not made[outlook.seq])
                made[outlook.seq] += guesses
                if guesses and len(made[outlook.seq]) < outlook.num_tokens:
                    wanting_more[item.seq] = outlook
            views = wanting_more
        return [_joined(guesses) for guesses in made.values()]

    def release(self, seq: Sequence) -> None:
        if seq in self._views:
            self.allocator.free(self._views.pop(seq).name)

    def _drop_all_but(self, seqs: set[Sequence]) -> None:
        for seq in [seq for seq in self._views if seq not in seqs]:  # in order: a set's would differ from run to run
            self.release(seq)

    def _can_guess(self, outlook: Outlook) -> bool:
        """Whether the draft has a row for each token, and a position for each guess."""
        fits = len(outlook.token_ids) + outlook.num_tokens <= self.max_model_len
        return outlook.num_tokens > 0 and fits and max(outlook.token_ids) < self.vocab_size

    def _view(self, outlook: Outlook) -> Sequence:
        """The draft's view brought up to date: wrong guesses are taken back, by the progress number alone."""
        view = self._views.get(outlook.seq) or self._new_view(outlook)
        old, new = view.token_ids, list(outlook.token_ids)
        num_right = next(num for num in range(min(len(old), len(new)), -1, -1) if old[:num] == new[:num])
        view.num_computed_tokens = min(view.num_computed_tokens, num_right, len(new) - 1)
        view.token_ids = new
        return view

    def _new_view(self, outlook: Outlook) -> Sequence:
        """It begins after what the draft's own pool still knows of it, and reports no logprobs."""
        params = replace(outlook.seq.params, logprobs=None, prompt_logprobs=None)
        view = replace(
            outlook.seq,
            request=replace(outlook.seq.request, params=params),
            token_ids=list(outlook.token_ids),
            prompt_logprobs=[None],
        )
        view.num_computed_tokens = self.allocator.match_prefix(view)
        self._views[outlook.seq] = view
        return view

    def _plan(self, views: Iterable[Sequence]) -> StepPlan:
        """What is not computed yet, as far as budget and pool go; who finds no room makes no guess in this step."""
        plan, budget = StepPlan(), self.budget_tokens
        for view in views:
            num_tokens = min(view.num_uncomputed_tokens, budget)
            end = view.num_computed_tokens + num_tokens
            if num_tokens and self.allocator.can_hold(view.name, end):
                self.allocator.ensure_capacity(view.name, end)
                plan.items.append(ScheduledSequence.next_tokens(view, num_tokens))
                budget -= num_tokens
        return plan

    def _take(self, item: ScheduledSequence, guesses: list[Guess], *, is_first: bool) -> None:
        """Only before the first guess is all that was computed true, and may be published."""
        item.seq.num_computed_tokens += item.num_tokens
        if is_first:
            self.allocator.register_computed_blocks(item.seq)
        item.seq.token_ids += [guess.token_id for guess in guesses]


def _joined(guesses: list[Guess]) -> Guesses:
    drawn_from = [guess.drawn_from for guess in guesses if guess.drawn_from is not None]
    return Guesses([guess.token_id for guess in guesses], torch.stack(drawn_from) if drawn_from else None)
