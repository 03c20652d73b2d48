"""Answers of /generate, the native route: token ids beside the text, and the engine's own times."""

from typing import Any

from shared.output import StepOutput, TokenLogprobs
from shared.server.answer import Answer, Choice
from shared.server.request_log import ms


class GenerateFormat:
    reads_tokens = False

    def whole(self, answer: Answer) -> dict[str, Any]:
        """With one choice, its fields stand at the top; with several, in `outputs`."""
        choices = [self._choice(choice) for choice in answer.choices]
        shown = choices[0] if len(choices) == 1 else {"outputs": choices}
        return {"id": answer.answer_id, **shown, **self._figures(answer)}

    def piece(self, answer: Answer, choice: Choice, output: StepOutput) -> dict[str, Any]:
        shown: dict[str, Any] = {"token_ids": output.token_ids, "text": output.text}
        if output.logprobs is not None:
            shown["logprobs"] = [_logprobs(entry) for entry in output.logprobs]
        return shown if len(answer.choices) == 1 else {"index": choice.index} | shown

    def last_pieces(self, answer: Answer) -> list[dict[str, Any]]:
        reasons = [choice.finish_reason for choice in answer.choices]
        reason = reasons[0] if len(reasons) == 1 else reasons
        return [{"done": True, "id": answer.answer_id, "finish_reason": reason, **self._figures(answer)}]

    def _choice(self, choice: Choice) -> dict[str, Any]:
        shown: dict[str, Any] = {"index": choice.index, "token_ids": choice.token_ids, "text": choice.text}
        if choice.logprobs:
            shown["logprobs"] = [_logprobs(entry) for entry in choice.logprobs]
        return shown | {"finish_reason": choice.finish_reason}

    def _figures(self, answer: Answer) -> dict[str, Any]:
        """Milliseconds from the request's arrival at the engine; tpot_ms is null below two tokens."""
        (metrics,) = answer.metrics
        return {"ttft_ms": ms(metrics.ttft_s), "tpot_ms": ms(metrics.tpot_s), "usage": answer.usage}


def _logprobs(entry: TokenLogprobs) -> dict[str, Any]:
    return {"token_id": entry.token_id, "logprob": entry.logprob, "top": entry.top}
