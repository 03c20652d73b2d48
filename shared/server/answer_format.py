"""What a route has to know to write an answer down, whole or in pieces."""

from typing import Any, Protocol

from shared.output import StepOutput
from shared.server.answer import Answer, Choice


class AnswerFormat(Protocol):
    """One per request. Knows the shape of the JSON; knows nothing of engines, sockets or errors."""

    @property
    def reads_tokens(self) -> bool:
        """True if it turns ids into text, which is done on the tokenizer's thread."""

    def piece(self, answer: Answer, choice: Choice, output: StepOutput) -> dict[str, Any]:
        """The event for one step's output, which has been added to `choice`."""

    def last_pieces(self, answer: Answer) -> list[dict[str, Any]]:
        """What follows after the last output."""

    def whole(self, answer: Answer) -> dict[str, Any]:
        """The body where nothing is streamed."""
