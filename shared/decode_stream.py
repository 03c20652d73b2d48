"""A `DecodeStream` that goes on from a text, whatever the version of tokenizers. Torch-free."""

from collections.abc import Sequence as Seq
from typing import Any, Protocol

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what incomplete UTF-8 decodes to


class Stream(Protocol):
    def step(self, tokenizer: Any, token_id: int, /) -> str | None: ...


def new_stream(tokenizer: Tokenizer, token_ids: Seq[int]) -> Stream:
    """Goes on after these ids, whose text is out; special tokens are left out."""
    try:
        return DecodeStream(ids=list(token_ids), skip_special_tokens=True)
    except TypeError:
        return OlderDecodeStream(tokenizer, token_ids)


class OlderDecodeStream:
    """The same for tokenizers before 0.22, where a `DecodeStream` can only begin with an empty text.

    Keeps the ids of the last piece that came out, for what a token reads as can depend on the one before it.
    """

    def __init__(self, tokenizer: Tokenizer, token_ids: Seq[int]) -> None:
        self._token_ids = list(token_ids)
        self._num_out = len(self._token_ids)  # of them, whose text is out
        self._text_out = self._decode(tokenizer)

    def step(self, tokenizer: Tokenizer, token_id: int) -> str | None:
        """The text that this id completes, if any. Raises ValueError where text that is out now reads differently."""
        self._token_ids.append(token_id)
        text = self._decode(tokenizer)
        if len(text) <= len(self._text_out) or text.endswith(REPLACEMENT):
            return None
        if not text.startswith(self._text_out):
            raise ValueError("Invalid prefix")
        piece = text[len(self._text_out) :]
        del self._token_ids[: self._num_out]
        self._num_out, self._text_out = len(self._token_ids), self._decode(tokenizer)
        return piece

    def _decode(self, tokenizer: Tokenizer) -> str:
        return tokenizer.decode(self._token_ids, skip_special_tokens=True)
