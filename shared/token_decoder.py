"""Token ids in, text out, one token at a time. Torch-free.

A character can take several tokens, and what a token reads as can depend on the one before it
(SentencePiece drops the space at the beginning of a text). It knows nothing of stop strings.
"""

from collections.abc import Sequence as Seq
from typing import Any

from tokenizers import Tokenizer

from shared.decode_stream import REPLACEMENT, Stream, new_stream
from shared.errors import SetupError

FIRST_CONTEXT_TOKENS = 8


class TokenDecoder:
    """Decodes incrementally; the pieces joined are how the ids read after the prompt, special tokens left out.

    tokenizer: a transformers tokenizer with a `backend_tokenizer`; SetupError for any other.
    """

    def __init__(self, tokenizer: Any, prompt_token_ids: Seq[int] = ()) -> None:
        self._tokenizer = _backend_of(tokenizer)
        self._token_ids = self._context(prompt_token_ids)  # then the tokens pushed
        self._num_chars = len(self._decode(self._token_ids))  # of their text that are out, the prompt's included
        self._is_behind = False
        self._stream = self._new_stream()

    def push(self, token_id: int) -> str:
        """What can be read now that could not be read before: maybe nothing, maybe several characters."""
        self._token_ids.append(token_id)
        try:
            piece = self._stream.step(self._tokenizer, token_id)
        except Exception as error:  # of no class of its own
            if "Invalid prefix" not in str(error):
                raise
            return self._restart()
        self._is_behind = piece is None
        self._num_chars += len(piece or "")
        return piece or ""

    def finish(self) -> str:
        """The rest: the bytes of a character that stayed incomplete."""
        return self._rest() if self._is_behind else ""

    def _restart(self) -> str:
        """Go on after text that came out reads differently now.

        It takes a tokenizer with byte tokens (SentencePiece's <0x0A>) and a model that writes bytes
        that are no UTF-8: then the whole run of bytes, a line break among them, turns into U+FFFD.
        """
        self._stream = self._new_stream()
        return self._rest()

    def _rest(self) -> str:
        rest = self._decode(self._token_ids)[self._num_chars :]
        self._num_chars += len(rest)
        self._is_behind = False
        return rest

    def _new_stream(self) -> Stream:
        return new_stream(self._tokenizer, self._token_ids)

    def _context(self, prompt_token_ids: Seq[int]) -> list[int]:
        """The end of the prompt that the output goes on from: text (if there is any) of whole characters, else []."""
        size = FIRST_CONTEXT_TOKENS
        while True:
            tail = list(prompt_token_ids[-size:])
            is_all = size >= len(prompt_token_ids)
            text = self._decode(tail)
            if (text or is_all) and not text.endswith(REPLACEMENT):
                return tail
            if is_all:
                return []
            size *= 2

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)


def _backend_of(tokenizer: Any) -> Tokenizer:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        kind = type(tokenizer).__name__
        raise SetupError(f"{kind} has no backend_tokenizer, which streaming needs: pass a PreTrainedTokenizerFast")
    return backend
