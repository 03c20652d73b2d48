"""What the answers of the two OpenAI routes have in common: the envelope, the usage, the token ids."""

from collections.abc import Sequence as Seq
from typing import Any

from shared.server.answer import Answer, Choice
from shared.server.bodies import OpenAIBody, StreamOptions


class Envelope:
    """kind, chunk_kind: the `object` of a whole answer and of a streamed chunk."""

    def __init__(self, body: OpenAIBody, model_name: str, kind: str, chunk_kind: str) -> None:
        options = body.stream_options or StreamOptions()
        self._model_name = model_name
        self._kind = kind
        self._chunk_kind = chunk_kind
        self._has_usage = bool(options.include_usage)
        self._has_running_usage = bool(options.continuous_usage_stats)
        self._has_token_ids = bool(body.return_token_ids)

    def whole(self, answer: Answer, choices: Seq[Any]) -> dict[str, Any]:
        return self._envelope(answer, self._kind, choices) | {"usage": answer.usage}

    def chunk(self, answer: Answer, choice: Any) -> dict[str, Any]:
        """A piece of one choice."""
        chunk = self._envelope(answer, self._chunk_kind, [choice])
        if self._has_running_usage or self._has_usage:
            chunk["usage"] = answer.usage if self._has_running_usage else None
        return chunk

    def last_chunks(self, answer: Answer) -> list[dict[str, Any]]:
        if not self._has_usage:
            return []
        return [self._envelope(answer, self._chunk_kind, []) | {"usage": answer.usage}]

    def token_ids(self, choice: Choice, token_ids: list[int], *, is_first: bool) -> dict[str, Any]:
        """Of a choice or a piece of one, where they are asked for; the prompt's come once per choice."""
        if not self._has_token_ids:
            return {}
        return {"token_ids": token_ids} | ({"prompt_token_ids": choice.prompt.token_ids} if is_first else {})

    def _envelope(self, answer: Answer, kind: str, choices: Seq[Any]) -> dict[str, Any]:
        return {
            "id": answer.answer_id,
            "object": kind,
            "created": answer.created,
            "model": self._model_name,
            "choices": list(choices),
        }
