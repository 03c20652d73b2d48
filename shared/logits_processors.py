"""What a request adds to, scales in or bans from the model's logits, before anything is chosen.

In the order of transformers' `generate`: logit bias, repetition penalty, then the two penalties that
transformers does not have (OpenAI's presence and frequency; vLLM, too, takes them after repetition),
then what may not be chosen yet. Few entries of a row change, so only those are read and written.
Letters: B rows, V vocabulary, N changed entries.
"""

from collections import Counter
from collections.abc import Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch

from shared.sequence import Sequence

HIGHEST_LOGIT = 1e30  # a penalty of 1e-40 makes no larger one: infinity would become NaN in a softmax


@dataclass(slots=True)
class _Entries:
    """Scattered entries of the logits, no (row, token id) twice, and a value for each."""

    rows: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, row: int, token_ids: Collection[int], values: Collection[float]) -> None:
        self.rows += [row] * len(token_ids)
        self.token_ids += token_ids
        self.values += values

    def index_in(self, logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        index = torch.tensor([self.rows, self.token_ids], device=logits.device, dtype=torch.long)  # [2, N]
        return index.unbind()  # 2 x [N]

    def values_for(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.tensor(self.values, device=logits.device, dtype=logits.dtype)  # [N]


def process_logits(logits: torch.Tensor, seqs: Seq[Sequence]) -> torch.Tensor:
    """`logits` [B, V] as the requests of `seqs` change them, [B, V].

    Without a change these are the logits themselves; else a copy, in fp32 at least.
    """
    changed = [row for row, seq in enumerate(seqs) if _changes_logits(seq)]
    if not changed:
        return logits
    processed = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)  # [B, V]
    _add_bias(processed, seqs, changed)
    _penalize_repetition(processed, seqs, changed)
    _penalize_presence_and_frequency(processed, seqs, changed)
    _ban_end_tokens(processed, seqs, changed)
    return processed


def _changes_logits(seq: Sequence) -> bool:
    params = seq.params
    return bool(
        params.logit_bias
        or params.repetition_penalty != 1.0
        or params.presence_penalty
        or params.frequency_penalty
        or seq.num_output_tokens < params.min_tokens
    )


def _add_bias(logits: torch.Tensor, seqs: Seq[Sequence], rows: list[int]) -> None:
    bias = _Entries()
    for row in rows:
        if wanted := seqs[row].params.logit_bias:
            bias.add(row, wanted.keys(), wanted.values())
    logits[bias.index_in(logits)] += bias.values_for(logits)


def _penalize_repetition(logits: torch.Tensor, seqs: Seq[Sequence], rows: list[int]) -> None:
    """Toward "less likely" whatever the sign; prompt and output count (CTRL, section 4.1)."""
    seen = _Entries()
    for row in rows:
        if (penalty := seqs[row].params.repetition_penalty) != 1.0:
            token_ids = set(seqs[row].token_ids)
            seen.add(row, token_ids, [penalty] * len(token_ids))
    index = seen.index_in(logits)
    penalties = seen.values_for(logits).clamp_(min=torch.finfo(logits.dtype).tiny)  # [N]; by 0, -inf would become NaN
    old = logits[index]  # [N]
    new = torch.where(old < 0, old * penalties, old / penalties)  # [N]
    logits[index] = new.clamp_(max=HIGHEST_LOGIT)


def _penalize_presence_and_frequency(logits: torch.Tensor, seqs: Seq[Sequence], rows: list[int]) -> None:
    """OpenAI's formula: logit - presence - frequency * (times it was generated)."""
    seen = _Entries()
    for row in rows:
        params = seqs[row].params
        if params.presence_penalty or params.frequency_penalty:
            counts = Counter(seqs[row].output_token_ids)  # token id -> times
            costs = [params.presence_penalty + params.frequency_penalty * times for times in counts.values()]
            seen.add(row, counts.keys(), costs)
    logits[seen.index_in(logits)] -= seen.values_for(logits)


def _ban_end_tokens(logits: torch.Tensor, seqs: Seq[Sequence], rows: list[int]) -> None:
    """EOS and stop ids cannot be chosen before min_tokens; an EOS id may lie outside the vocabulary, as -1 does."""
    banned = _Entries()
    for row in rows:
        seq = seqs[row]
        if seq.num_output_tokens < seq.params.min_tokens:
            ends = {i for i in seq.eos_token_ids.union(seq.params.stop_token_ids) if 0 <= i < logits.shape[-1]}
            banned.add(row, ends, [-torch.inf] * len(ends))
    logits[banned.index_in(logits)] = banned.values_for(logits)
