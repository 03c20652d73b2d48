"""How single tokens read, for logprobs. Runs on the tokenizer's thread.

A token alone may be part of a character, or begin with a space that a tokenizer drops when it decodes
a token by itself: what is shown is the token's own bytes.
"""

import json
from functools import lru_cache
from typing import Any

BYTE_TOKEN_LENGTH = len("<0x0A>")


class TokenTexts:
    """tokenizer: a fast one, or None: then a token reads "token_id:8"."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        decoder = getattr(backend, "decoder", None)
        self._decoder = json.loads(decoder.__getstate__()) if decoder is not None else {}
        self._special = {*getattr(tokenizer, "all_special_ids", ()), *_special_ids(backend)}
        self._known: dict[int, bytes] = {}

    def text_of(self, token_id: int) -> str:
        """Whole characters as they are; OpenAI's `bytes:\\xe2\\x80` for a part of one."""
        data = self.bytes_of(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def is_in_text(self, token_id: int) -> bool:
        """False for a special token, and for an id that the tokenizer does not know."""
        return token_id not in self._special and bool(self._piece(token_id))

    def bytes_of(self, token_id: int) -> bytes:
        if token_id not in self._known:
            self._known[token_id] = self._read(token_id)
        return self._known[token_id]

    def _read(self, token_id: int) -> bytes:
        piece = self._piece(token_id)
        if not piece:
            return f"token_id:{token_id}".encode()
        kinds = str(self._decoder)
        if token_id in self._special:
            return piece.encode()
        if "ByteLevel" in kinds and all(char in _byte_of_char() for char in piece):
            return bytes(_byte_of_char()[char] for char in piece)
        if "ByteFallback" in kinds and len(piece) == BYTE_TOKEN_LENGTH and piece.startswith("<0x"):
            return bytes([int(piece[3:5], 16)])
        if "Metaspace" in kinds or "▁" in kinds:
            return piece.replace("▁", " ").encode()
        return self.tokenizer.decode([token_id], skip_special_tokens=False).encode()

    def _piece(self, token_id: int) -> str | None:
        return self.tokenizer and self.tokenizer.convert_ids_to_tokens(token_id)


def _special_ids(backend: Any) -> list[int]:
    """What decoding leaves out; a tokenizer may have more of them than it has names for ("bos_token")."""
    added = {} if backend is None else backend.get_added_tokens_decoder()
    return [token_id for token_id, token in added.items() if token.special]


@lru_cache(maxsize=1)
def _byte_of_char() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}
