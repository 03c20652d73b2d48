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
        return self._envelope.whole(answer, [self._whole_choice(choice) for choice in answer.choices])

    def piece(self, answer: Answer, choice: Choice, output: StepOutput) -> dict[str, Any]:
        delta = {"role": "assistant"} if choice.is_first(output) else {}
        if output.text or delta:
            delta["content"] = output.text
        shown = {"delta": delta} | self._envelope.token_ids(choice, output.token_ids, is_first=choice.is_first(output))
        return self._envelope.chunk(answer, self._choice(choice, shown, output.logprobs or []))

    def last_pieces(self, answer: Answer) -> list[dict[str, Any]]:
        return self._envelope.last_chunks(answer)

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        message = {"role": "assistant", "content": choice.text}
        shown = {"message": message} | self._envelope.token_ids(choice, choice.token_ids, is_first=True)
        return self._choice(choice, shown, choice.logprobs)

    def _choice(self, choice: Choice, shown: dict[str, Any], logprobs: list[TokenLogprobs]) -> dict[str, Any]:
        return {
            "index": choice.index,
            **shown,
            "logprobs": chat_logprobs(self._texts, logprobs) if self._has_logprobs else None,
            "finish_reason": choice.finish_reason,
        }
