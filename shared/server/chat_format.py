"""Answers of /v1/chat/completions: whole messages, or deltas of them."""

from typing import Any

from shared.output import StepOutput, TokenLogprobs
from shared.server.answer import Answer, Choice
from shared.server.bodies import ChatBody
from shared.server.logprob_format import chat_logprobs
from shared.server.openai_format import Envelope
from shared.server.token_texts import TokenTexts


class ChatFormat:
    def __init__(self, body: ChatBody, model_name: str, texts: TokenTexts) -> None:
        self._envelope = Envelope(body, model_name, "chat.completion", "chat.completion.chunk")
        self._texts = texts
        self._has_logprobs = bool(body.logprobs)

    @property
    def reads_tokens(self) -> bool:
        return self._has_logprobs

    def whole(self, answer: Answer) -> dict[str, Any]:
        return self._envelope.whole(
            answer,
            [
                self._choice(choice, "message", {"role": "assistant", "content": choice.text}, choice.logprobs)
                for choice in answer.choices
            ],
        )

    def piece(self, answer: Answer, choice: Choice, output: StepOutput) -> dict[str, Any]:
        delta = {"role": "assistant"} if choice.is_first(output) else {}
        if output.text or delta:
            delta["content"] = output.text
        return self._envelope.chunk(answer, self._choice(choice, "delta", delta, output.logprobs or []))

    def last_pieces(self, answer: Answer) -> list[dict[str, Any]]:
        return self._envelope.last_chunks(answer)

    def _choice(
        self, choice: Choice, content_name: str, content: dict[str, str], logprobs: list[TokenLogprobs]
    ) -> dict[str, Any]:
        return {
            "index": choice.index,
            content_name: content,
            "logprobs": chat_logprobs(self._texts, logprobs) if self._has_logprobs else None,
            "finish_reason": choice.finish_reason,
        }
