"""Answers of /v1/completions. A whole choice and a streamed piece of one have the same shape."""

from typing import Any

from shared.output import StepOutput, TokenLogprobs
from shared.server.answer import Answer, Choice
from shared.server.bodies import CompletionBody
from shared.server.logprob_format import completion_logprobs
from shared.server.openai_format import Envelope
from shared.server.token_texts import TokenTexts

Logprobs = list[TokenLogprobs | None]


class CompletionFormat:
    def __init__(self, body: CompletionBody, model_name: str, texts: TokenTexts) -> None:
        self._envelope = Envelope(body, model_name, "text_completion", "text_completion")
        self._texts = texts
        self._has_echo = bool(body.echo)
        self._has_logprobs = body.logprobs is not None
        self._has_token_ids = bool(body.return_token_ids)

    @property
    def reads_tokens(self) -> bool:
        return self._has_logprobs

    def whole(self, answer: Answer) -> dict[str, Any]:
        return self._envelope.whole(answer, [self._whole_choice(choice) for choice in answer.choices])

    def piece(self, answer: Answer, choice: Choice, output: StepOutput) -> dict[str, Any]:
        if choice.is_first(output):
            return self._envelope.chunk(answer, self._whole_choice(choice))
        offset = len(self._echo(choice)) + len(choice.text) - len(output.text)
        shown = self._choice(choice, output.text, output.token_ids, output.logprobs or [], offset)
        return self._envelope.chunk(answer, shown)

    def last_pieces(self, answer: Answer) -> list[dict[str, Any]]:
        return self._envelope.last_chunks(answer)

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        """All there is of it: the prompt, where it is echoed, and what was generated."""
        prompt_ids = choice.prompt.token_ids if self._has_echo else []
        logprobs: Logprobs = [*choice.prompt_logprobs, *choice.logprobs]
        shown = self._choice(choice, self._echo(choice) + choice.text, [*prompt_ids, *choice.token_ids], logprobs, 0)
        if self._has_token_ids:
            shown |= {"token_ids": choice.token_ids, "prompt_token_ids": choice.prompt.token_ids}
        return shown

    def _choice(
        self, choice: Choice, text: str, token_ids: list[int], logprobs: Logprobs | list[TokenLogprobs], offset: int
    ) -> dict[str, Any]:
        shown: dict[str, Any] = {"index": choice.index, "text": text, "logprobs": None}
        if self._has_logprobs:
            shown["logprobs"] = completion_logprobs(self._texts, token_ids, logprobs, offset)
        if self._has_token_ids:
            shown["token_ids"] = token_ids
        return shown | {"finish_reason": choice.finish_reason}

    def _echo(self, choice: Choice) -> str:
        return choice.prompt.text or "" if self._has_echo else ""
