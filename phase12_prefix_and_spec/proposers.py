"""Who guesses the next tokens: the text itself (n-gram), or a small model. A wrong guess costs time only."""

from collections.abc import Sequence as Seq
from typing import Any, Protocol

from transformers import DynamicCache

from shared.hf_forward import drop_last, forward_sequence, new_cache
from shared.sequence import Sequence


class Proposer(Protocol):
    """Keeps what it knows per sequence until `release`.

    is_free: a guess costs nothing to make, only to verify.
    """

    is_free: bool

    def propose(self, seq: Sequence, token_ids: Seq[int], num_tokens: int) -> list[int]:
        """Up to `num_tokens` guesses at what follows `token_ids`, which is all of the sequence so far."""

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

    def propose(self, seq: Sequence, token_ids: Seq[int], num_tokens: int) -> list[int]:
        ends = self._index(seq, token_ids)
        for size in self.sizes:
            end = ends.get(tuple(token_ids[-size:])) if len(token_ids) >= size else None
            if end is not None:
                return list(token_ids[end : end + num_tokens])
        return []

    def release(self, seq: Sequence) -> None:
        self._indexed.pop(seq, None)
        self._ends.pop(seq, None)

    def _index(self, seq: Sequence, token_ids: Seq[int]) -> dict[tuple[int, ...], int]:
        """Every n-gram that something follows, so not the one at the very end."""
        ends = self._ends.setdefault(seq, {})
        for end in range(self._indexed.get(seq, 1), len(token_ids)):
            for size in self.sizes:
                if size <= end:
                    ends[tuple(token_ids[end - size : end])] = end
        self._indexed[seq] = len(token_ids)
        return ends


class DraftModelProposer:
    """A smaller model of the same family decodes ahead, greedily (Leviathan et al., ICML 2023).

    Its vocabulary may be padded to another size: guesses the target has no row for are cut, and a sequence with
    tokens that the draft has no row for is not guessed at.
    """

    is_free = False

    def __init__(self, model: Any, target_vocab_size: int) -> None:
        self.model = model.eval()
        self.target_vocab_size = target_vocab_size
        self.vocab_size: int = model.get_input_embeddings().num_embeddings
        self._caches: dict[Sequence, DynamicCache] = {}
        self._seen: dict[Sequence, list[int]] = {}  # sequence -> tokens whose K/V is in its cache

    def propose(self, seq: Sequence, token_ids: Seq[int], num_tokens: int) -> list[int]:
        limit = int(self.model.config.get_text_config().max_position_embeddings)
        if max(token_ids) >= self.vocab_size or len(token_ids) + num_tokens > limit:
            return []
        uncomputed = self._roll_back(seq, token_ids)
        guesses: list[int] = []
        while len(guesses) < num_tokens:
            logits = forward_sequence(self.model, uncomputed, self._caches[seq])  # [V]
            self._seen[seq] += uncomputed
            guess = int(logits.argmax())
            if guess >= self.target_vocab_size:
                break
            guesses.append(guess)
            uncomputed = [guess]
        return guesses

    def release(self, seq: Sequence) -> None:
        self._caches.pop(seq, None)
        self._seen.pop(seq, None)

    def _roll_back(self, seq: Sequence, token_ids: Seq[int]) -> list[int]:
        """Keep the K/V of what turned out right; returns the tokens still to run, at least the last one."""
        cache, seen = self._caches.setdefault(seq, new_cache()), self._seen.setdefault(seq, [])
        num_kept = 0
        while num_kept < min(len(seen), len(token_ids) - 1) and seen[num_kept] == token_ids[num_kept]:
            num_kept += 1
        drop_last(cache, len(seen) - num_kept)
        del seen[num_kept:]
        return list(token_ids[num_kept:])
