"""Who guesses the next tokens: the text itself, here; or a small model, in `draft_model.py`. Torch-free.

A wrong guess costs time, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shared.sequence import Sequence

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Outlook:
    """A sequence that wants up to `num_tokens` guesses at what follows `token_ids`, which is all of it so far."""

    seq: Sequence
    token_ids: Seq[int]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Guesses:
    """drawn_from: `[guesses, V]`, the probabilities each was drawn from; None where they were not drawn at random."""

    token_ids: Seq[int] = ()
    drawn_from: torch.Tensor | None = None


class Proposer(Protocol):
    """Keeps what it knows per sequence until `release`.

    is_free: a guess costs nothing to make, only to verify.
    """

    is_free: bool

    def propose(self, outlooks: Seq[Outlook]) -> list[Guesses]:
        """Guesses for everybody who got a token in this step, in order."""

    def release(self, seq: Sequence) -> None: ...


class NgramProposer:
    """Looks the last few tokens up earlier in the sequence and copies what followed (prompt lookup, Saxena 2023).

    sizes: lengths of the last few tokens to look up, the longest match wins.
    """

    is_free = True

    def __init__(self, sizes: Seq[int] = (4, 3, 2)) -> None:
        self.sizes = sizes
        self._indexed: dict[Sequence, int] = {}  # sequence -> how many of its tokens are in its index
        self._ends: dict[Sequence, dict[tuple[int, ...], int]] = {}  # sequence -> n-gram -> where it last ended

    def propose(self, outlooks: Seq[Outlook]) -> list[Guesses]:
        return [Guesses(self._copy(outlook.seq, outlook.token_ids, outlook.num_tokens)) for outlook in outlooks]

    def release(self, seq: Sequence) -> None:
        self._indexed.pop(seq, None)
        self._ends.pop(seq, None)

    def _copy(self, seq: Sequence, token_ids: Seq[int], num_tokens: int) -> Seq[int]:
        ends = self._index(seq, token_ids)
        for size in self.sizes:
            end = ends.get(tuple(token_ids[-size:])) if len(token_ids) >= size else None
            if end is not None:
                return token_ids[end : end + num_tokens]
        return ()

    def _index(self, seq: Sequence, token_ids: Seq[int]) -> dict[tuple[int, ...], int]:
        """Every n-gram that something follows, so not the one at the very end."""
        ends = self._ends.setdefault(seq, {})
        for end in range(self._indexed.get(seq, 1), len(token_ids)):
            for size in self.sizes:
                if size <= end:
                    ends[tuple(token_ids[end - size : end])] = end
        self._indexed[seq] = len(token_ids)
        return ends
