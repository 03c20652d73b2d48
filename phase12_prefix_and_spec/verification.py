"""Which guesses stand, and which token follows them. Two rules; under both, guesses change how many steps it takes
and not how likely an answer is.

    equality    the target chooses its own token at every place; a guess stands where it equals that token. For greedy
                and seeded requests, whose tokens are fixed, and for guesses that nobody drew (n-gram: q is 1 at the
                guess, and there rejection sampling comes to the same).
    rejection   a guess x, drawn from q, stands with probability min(1, p(x) / q(x)); the token in place of one that
                falls is drawn from (p - q)+, what q has too little of. What comes out is distributed as p
                (Leviathan et al., ICML 2023, appendix A.1):

                    min(p, q)  +  P(rejected) * (p - q)+ / sum (p - q)+   =   p        since P(rejected) = sum (p - q)+

Letters: k drafts of a row, N drafts of all rows, R rows, V vocabulary.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from phase12_prefix_and_spec.acceptance import accepted_draws, accepted_length
from shared.logits_processors import process_logits
from shared.sampler import Sampler, draw
from shared.sampling_weights import probabilities
from shared.sequence import Sequence
from shared.step import SampledToken
from shared.uniform import uniform


@dataclass(frozen=True, slots=True)
class DraftedRow:
    """A row of the plan and its guesses.

    logits: `[1 + k, V]`, after the last known token and after each guess.
    futures: the sequence as it is, and as it will be if the first guess stands, the first two, ...: what penalties,
    minimum length and random numbers depend on.
    drawn_from: `[k, V]`, the probabilities that each guess was drawn from; None where nobody drew it.
    """

    draft: Seq[int]
    logits: torch.Tensor
    futures: Seq[Sequence]
    drawn_from: torch.Tensor | None = None


def verify(sampler: Sampler, rows: Seq[DraftedRow]) -> list[list[SampledToken]]:
    """Per row what comes out: the guesses that stand, and one token more."""
    equal = iter(_by_equality(sampler, [row for row in rows if row.drawn_from is None]))
    drawn = iter(_by_rejection(sampler, [row for row in rows if row.drawn_from is not None]))
    return [next(equal if row.drawn_from is None else drawn) for row in rows]


def _by_equality(sampler: Sampler, rows: Seq[DraftedRow]) -> list[list[SampledToken]]:
    """Sample after every token of every row in one go, then keep each row's tokens up to the first wrong guess."""
    if not rows:
        return []
    futures = [future for row in rows for future in row.futures]
    sampled = iter(sampler.sample(torch.cat([row.logits for row in rows]), futures))  # from [R + N, V]
    kept = []
    for row in rows:
        chosen = [next(sampled) for _ in row.futures]
        kept.append(chosen[: 1 + accepted_length(row.draft, [token.token_id for token in chosen])])
    return kept


def _by_rejection(sampler: Sampler, rows: Seq[DraftedRow]) -> list[list[SampledToken]]:
    if not rows:
        return []
    token_ids = choose_by_rejection(rows, [target_probabilities(row) for row in rows])
    return [sampler.report(row.logits[: len(ids)], ids, row.futures[: len(ids)]) for row, ids in zip(rows, token_ids)]


def target_probabilities(row: DraftedRow) -> torch.Tensor:
    """p, `[1 + k, V]`: what the target would draw from after each token of the row."""
    return probabilities(process_logits(row.logits, row.futures), [row.futures[0].params] * len(row.futures))


def choose_by_rejection(rows: Seq[DraftedRow], target: Seq[torch.Tensor]) -> list[list[int]]:
    """Per row the token ids that come out. target: p of each row, `[1 + k, V]`."""
    guesses = torch.tensor([guess for row in rows for guess in row.draft], device=target[0].device)  # [N]
    p = torch.cat([of_row[:-1] for of_row in target]).gather(1, guesses.unsqueeze(1))  # [N, 1]
    q = torch.cat([_drawn_from(row) for row in rows]).gather(1, guesses.unsqueeze(1))  # [N, 1]
    chances = iter(zip(p.squeeze(1).tolist(), q.squeeze(1).tolist()))
    counts = []
    for row in rows:
        uniforms = [uniform(seq.seed, seq.index, len(seq.token_ids), "accept") for seq in row.futures]
        of_target, of_draft = zip(*(next(chances) for _ in row.draft))
        counts.append(accepted_draws(of_target, of_draft, uniforms))
    weights = [left_over(of_row, _drawn_from(row), count) for row, of_row, count in zip(rows, target, counts)]
    stops = [row.futures[count] for row, count in zip(rows, counts)]
    last = draw(torch.stack(weights), [uniform(seq.seed, seq.index, len(seq.token_ids)) for seq in stops])  # [R]
    return [[*row.draft[:count], token] for row, count, token in zip(rows, counts, last.tolist())]


def left_over(target: torch.Tensor, drawn_from: torch.Tensor, num_accepted: int) -> torch.Tensor:
    """What the token after `num_accepted` guesses is drawn from, `[V]`: (p - q)+, or p where no guess fell.

    target: `[1 + k, V]`. drawn_from: `[k, V]`. Where rounding (or a NaN) leaves nothing of (p - q)+, it is p as well.
    """
    p = target[num_accepted]
    if num_accepted == len(drawn_from):
        return p
    rest = (p - drawn_from[num_accepted]).clamp(min=0)
    return torch.where(rest.sum() > 0, rest, p)


def _drawn_from(row: DraftedRow) -> torch.Tensor:
    assert row.drawn_from is not None
    return row.drawn_from
