"""The text of one completion, let out as early as it is safe. Torch-free.

    tokens pushed   [ ..................................................... ]
    text            [ released ....... | may begin a stop string | no whole character yet ]

It does not know about EOS, limits or requests: whoever pushes decides what is pushed.
"""

from collections.abc import Sequence as Seq
from typing import Any

from shared.token_decoder import TokenDecoder


class TextStream:
    """Turns token ids into text that never has to be taken back, and ends it before a stop string.

    text: everything released so far. stopped: a stop string was completed.
    The string that is complete first counts, whatever the order of `stop`; of several that end at one
    character, the longest. So the text does not depend on how it was cut into tokens.
    Raises SetupError for a tokenizer that cannot stream.
    """

    def __init__(self, tokenizer: Any, stop: Seq[str] = (), prompt_token_ids: Seq[int] = ()) -> None:
        self.text = ""
        self.stopped = False
        self._stop = tuple(stop)
        self._held = ""  # decoded, but a stop string may begin with it
        self._decoder = TokenDecoder(tokenizer, prompt_token_ids)

    def push(self, token_id: int, *, check_stop: bool = True) -> str:
        """The text that may go out after this token; "" for ever once stopped.

        check_stop: False before min_tokens; a stop string that is completed by this token is text like any other.
        """
        return "" if self.stopped else self._take(self._decoder.push(token_id), check_stop)

    def finish(self) -> str:
        """The text still held back, for no token will follow."""
        if self.stopped:
            return ""
        released = self._take(self._decoder.finish(), check_stop=True)
        held, self._held = self._held, ""
        return released + self._release(held)

    def _take(self, piece: str, check_stop: bool) -> str:
        text = self._held + piece
        end = _stop_start(text, self._stop, len(self._held)) if check_stop else None
        if end is not None:
            self.stopped = True
            return self._release(text[:end])
        num_released = len(text) - _num_held(text, self._stop)
        self._held = text[num_released:]
        return self._release(text[:num_released])

    def _release(self, text: str) -> str:
        self.text += text
        return text


class NullTextStream:
    """Stands in where there is no tokenizer: tokens without text."""

    text = ""
    stopped = False

    def push(self, token_id: int, *, check_stop: bool = True) -> str:  # noqa: ARG002
        return ""

    def finish(self) -> str:
        return ""


def _stop_start(text: str, stop: Seq[str], num_seen: int) -> int | None:
    """Where the stop string begins that is complete first, after the first `num_seen` characters; None without one."""
    matches = []  # (end, start)
    for string in stop:
        start = text.find(string, max(0, num_seen - len(string) + 1))
        if start >= 0:
            matches.append((start + len(string), start))
    return min(matches)[1] if matches else None


def _num_held(text: str, stop: Seq[str]) -> int:
    """Length of the longest end of `text` that is a beginning, and not all, of a stop string."""
    longest = max((len(string) for string in stop), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        tail = text[-size:]
        if any(len(string) > size and string.startswith(tail) for string in stop):
            return size
    return 0
