"""Answers of /v1/completions. A whole choice and a streamed piece of one have the same shape."""

from typing import Any

from shared.output import StepOutput, TokenLogprobs
from shared.server.answer import Answer, Choice
from shared.server.bodies import CompletionBody
from shared.server.logprob_format import completion_logprobs
from shared.server.openai_format import Envelope
from shared.server.token_offsets import OutputOffsets, prompt_offsets
from shared.server.token_texts import TokenTexts

Logprobs = list[TokenLogprobs | None]


class CompletionFormat:
    def __init__(self, body: CompletionBody, model_name: str, texts: TokenTexts) -> None:
        self._envelope = Envelope(body, model_name, "text_completion", "text_completion")
        self._texts = texts
        self._has_echo = bool(body.echo)
        self._has_logprobs = body.logprobs is not None
        self._offsets: dict[int, OutputOffsets] = {}  # by choice

    @property
    def reads_tokens(self) -> bool:
        return self._has_logprobs

    def whole(self, answer: Answer) -> dict[str, Any]:
        return self._envelope.whole(answer, [self._whole_choice(choice) for choice in answer.choices])

    def piece(self, answer: Answer, choice: Choice, output: StepOutput) -> dict[str, Any]:
        if choice.is_first(output):
            return self._envelope.chunk(answer, self._whole_choice(choice))
        shown = self._choice(choice, output.text, output.token_ids, output.logprobs or [])
        shown |= self._envelope.token_ids(choice, output.token_ids, is_first=False)
        return self._envelope.chunk(answer, shown)

    def last_pieces(self, answer: Answer) -> list[dict[str, Any]]:
        return self._envelope.last_chunks(answer)

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        """All there is of it: the prompt, where it is echoed, and what was generated."""
        echo, echoed_ids = self._echo(choice)
        logprobs: Logprobs = [*choice.prompt_logprobs, *choice.logprobs]
        shown = self._choice(choice, echo + choice.text, [*echoed_ids, *choice.token_ids], logprobs)
        return shown | self._envelope.token_ids(choice, choice.token_ids, is_first=True)

    def _choice(
        self, choice: Choice, text: str, token_ids: list[int], logprobs: Logprobs | list[TokenLogprobs]
    ) -> dict[str, Any]:
        shown: dict[str, Any] = {"index": choice.index, "text": text, "logprobs": None}
        if self._has_logprobs:
            shown["logprobs"] = completion_logprobs(
                self._texts, token_ids, logprobs, self._text_offsets(choice, token_ids)
            )
        return shown | {"finish_reason": choice.finish_reason}

    def _text_offsets(self, choice: Choice, token_ids: list[int]) -> list[int]:
        """Of the next tokens of a choice, the first time those of the echoed prompt among them."""
        if choice.index in self._offsets:
            return self._offsets[choice.index].of(token_ids)
        echo, echoed_ids = self._echo(choice)
        self._offsets[choice.index] = OutputOffsets(self._texts, choice.prompt.token_ids, len(echo))
        of_output = self._offsets[choice.index].of(token_ids[len(echoed_ids) :])
        return [*prompt_offsets(self._texts, echoed_ids, echo), *of_output]

    def _echo(self, choice: Choice) -> tuple[str, list[int]]:
        return (choice.prompt.text or "", choice.prompt.token_ids) if self._has_echo else ("", [])
