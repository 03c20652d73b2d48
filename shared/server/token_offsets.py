"""Where tokens begin in a choice's text, in characters. Runs on the tokenizer's thread.

A token that goes on with a character begun by the one before it begins where that character does. A special
token that is left out of the text takes no room in it.
"""

import codecs
from collections.abc import Sequence as Seq

from shared.server.token_texts import TokenTexts
from shared.token_decoder import TokenDecoder


class OutputOffsets:
    """Of the tokens of one output, in order; `start`: characters of the choice's text before the first.

    It decodes as the engine does, but cares for no stop string: what is held back, or never goes out, counts
    as if it stood in the text. So an offset is the same in a stream as in a whole answer.
    """

    def __init__(self, texts: TokenTexts, prompt_token_ids: Seq[int], start: int) -> None:
        self._texts = texts
        self._decoder = None if texts.tokenizer is None else TokenDecoder(texts.tokenizer, prompt_token_ids)
        self._num_chars = start
        self._pending = b""  # of tokens whose text waits for the rest of a character

    def of(self, token_ids: Seq[int]) -> list[int]:
        return [self._next(token_id) for token_id in token_ids]

    def _next(self, token_id: int) -> int:
        own = self._texts.bytes_of(token_id) if self._texts.is_in_text(token_id) else b""
        offset = self._num_chars + _num_chars_before(own, self._pending)
        piece = "" if self._decoder is None else self._decoder.push(token_id)
        self._num_chars += len(piece)
        self._pending = b"" if piece else self._pending + own
        if _is_text(self._pending):  # nothing is incomplete: a special token, or a space that is dropped
            self._pending = b""
        return offset


def prompt_offsets(texts: TokenTexts, token_ids: Seq[int], text: str) -> list[int]:
    """Of a prompt's tokens in its text, which a client may have written otherwise than the tokens read.

    Special tokens count where they stand in it. Where a tokenizer changes what was written (upper case to lower),
    each token counts as long as it is.
    """
    data, place, num_chars = text.encode(), 0, 0  # place: in bytes
    counter = codecs.getincrementaldecoder("utf-8")()
    offsets = []
    for token_id in token_ids:
        offsets.append(num_chars)
        end = place + _num_bytes(texts, token_id, data, place)
        num_chars += len(counter.decode(data[place:end]))
        place = min(end, len(data))
    return offsets


def _num_bytes(texts: TokenTexts, token_id: int, data: bytes, place: int) -> int:
    """How many bytes of the text are this token's, from `place` on."""
    own = texts.bytes_of(token_id)
    for form in (own, own.decode(errors="replace").encode(), own.removeprefix(b" ")):
        if data.startswith(form, place):
            return len(form)
    return len(own) if texts.is_in_text(token_id) and _is_text(own) else 0


def _num_chars_before(own: bytes, pending: bytes) -> int:
    """Characters of `pending` before a token: all of them, but for one that the token's first byte goes on with."""
    goes_on = not own or own[0] & 0xC0 == 0x80
    return len(codecs.getincrementaldecoder("utf-8")("replace").decode(pending, final=not goes_on))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
