"""Chooses the next token of each sequence from the logits: the one sampler of all phases.

    logits [B, V] -> process_logits -> most likely, or sampling_weights -> draw -> token ids
           └───────────────── token_logprobs (raw logits) ──────────────────────────┘

It keeps no state and reads no generator, so the same sequence gets the same token in any company.
Letters: B sequences, R of them sampled at random, V vocabulary.
"""

import math
from collections.abc import Sequence as Seq

import torch

from shared.logits_processors import process_logits
from shared.output import TokenLogprobs
from shared.sampling_weights import sampling_weights
from shared.sequence import Sequence
from shared.step import SampledToken
from shared.token_logprobs import token_logprobs
from shared.uniform import uniform


class Sampler:
    """Greedy or random choice, per sequence, in one batch (vLLM: `Sampler`)."""

    def sample(self, logits: torch.Tensor, seqs: Seq[Sequence]) -> list[SampledToken]:
        """The token at position `len(seq.token_ids)` of each of `seqs`.

        logits: [B, V], any device and floating dtype, a row per sequence; left as they are.
        """
        return self.report(logits, _choose(process_logits(logits, seqs), seqs), seqs)

    def report(self, logits: torch.Tensor, token_ids: list[int], seqs: Seq[Sequence]) -> list[SampledToken]:
        """Tokens that were chosen, each with the logprobs that its request wants. logits: [B, V], raw.

        A row of NaN, or with an infinite logit, has an error instead, and its neighbours are none the worse for it.
        """
        logprobs, errors = _wanted_logprobs(logits, token_ids, seqs), _errors(logits)
        return [
            SampledToken(token_id, logprobs.get(row), error=errors.get(row)) for row, token_id in enumerate(token_ids)
        ]


def draw(weights: torch.Tensor, uniforms: Seq[float]) -> torch.Tensor:
    """A token id per row, [R], at the point of the cumulated `weights` [R, V] where the row's uniform falls.

    In the order of token ids, not of likelihood: rounding that swaps two nearly equal tokens in rank
    does not swap them here. A token of weight 0 is never drawn: the sum does not step up at it.
    """
    cumulated = weights.cumsum(-1)  # [R, V]
    total = cumulated[:, -1:]  # [R, 1]
    points = torch.tensor(uniforms, dtype=weights.dtype, device=weights.device).unsqueeze(-1) * total  # [R, 1]
    points = points.minimum(total.nextafter(torch.zeros_like(total)))  # the product may round up to the total
    return first_above(points, cumulated, weights).squeeze(-1)


def first_above(points: torch.Tensor, cumulated: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Where `cumulated` [R, V] first exceeds `points` [R, 1], as token ids [R, 1].

    A GPU sums in parallel, and its sum can wobble by an ulp where the weight is 0. A row hit there,
    or one of NaN, takes its most likely token.
    """
    token_ids = torch.searchsorted(cumulated, points, right=True).clamp_(max=weights.shape[-1] - 1)  # [R, 1]
    is_possible = weights.gather(-1, token_ids) > 0  # [R, 1]
    if is_possible.all():
        return token_ids
    return torch.where(is_possible, token_ids, _most_likely(weights).unsqueeze(-1))


def _choose(logits: torch.Tensor, seqs: Seq[Sequence]) -> list[int]:
    """A token id per row of the processed `logits` [B, V]."""
    rows = [row for row, seq in enumerate(seqs) if not seq.params.is_greedy]
    if not rows:
        return _most_likely(logits).tolist()
    sampled = [seqs[row] for row in rows]
    weights = sampling_weights(_select(logits, rows), [seq.params for seq in sampled])  # [R, V]
    drawn = draw(weights, [uniform(seq.seed, seq.index, len(seq.token_ids)) for seq in sampled]).tolist()
    token_ids = drawn if len(rows) == len(seqs) else _most_likely(logits).tolist()
    for row, token_id in zip(rows, drawn):
        token_ids[row] = token_id
    return token_ids


def _wanted_logprobs(logits: torch.Tensor, token_ids: list[int], seqs: Seq[Sequence]) -> dict[int, TokenLogprobs]:
    """Row -> logprobs of its token, from the raw `logits` [B, V], for the rows that ask."""
    num_top = {row: n for row, seq in enumerate(seqs) if (n := seq.params.logprobs) is not None}  # row -> number
    if not num_top:
        return {}
    rows = list(num_top)
    taken = [token_ids[row] for row in rows]
    return dict(zip(rows, token_logprobs(_select(logits, rows), taken, list(num_top.values()))))


def _errors(logits: torch.Tensor) -> dict[int, str]:
    """Row -> what is wrong with its logits, where none of them is the highest. A sum costs 2 % of what `max` does."""
    doubtful = [row for row, total in enumerate(logits.sum(-1).tolist()) if not math.isfinite(total)]
    highest = {row: logits[row].max().item() for row in doubtful}
    return {
        row: f"the model's logits are {'NaN' if math.isnan(logit) else 'infinite'}"
        for row, logit in highest.items()
        if not math.isfinite(logit)
    }


def _most_likely(logits: torch.Tensor) -> torch.Tensor:
    """[B]; the first of equals. `max` does what `argmax` does, on a CPU faster: 3 times in bf16."""
    return logits.max(dim=-1).indices


def _select(logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """The given rows of [B, V], in ascending order; without a copy if it is all of them."""
    if len(rows) == len(logits):
        return logits
    return logits.index_select(0, torch.tensor(rows, device=logits.device))
