"""What has come of one HTTP request so far: its choices, their tokens and times."""

import secrets
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TypedDict

from shared.output import RequestMetrics, StepOutput, TokenLogprobs
from shared.server.prompt_input import EncodedPrompt


class PromptTokensDetails(TypedDict):
    """cached_tokens: prompt tokens whose K/V came from the prefix cache."""

    cached_tokens: int


class Usage(TypedDict):
    """Counts in tokens; the EOS or stop id counts, as in the engine."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


@dataclass(slots=True)
class Choice:
    """One completion of one prompt. index: over all prompts, n after n."""

    index: int
    prompt: EncodedPrompt
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    finish_reason: str | None = None

    def is_first(self, output: StepOutput) -> bool:
        """Nothing had come before this output, which has been added."""
        return len(self.token_ids) == len(output.token_ids)

    def add(self, output: StepOutput) -> None:
        self.token_ids += output.token_ids
        self.text += output.text
        self.logprobs += output.logprobs or []
        self.prompt_logprobs = output.prompt_logprobs or self.prompt_logprobs
        self.finish_reason = output.finish_reason


@dataclass(slots=True)
class Answer:
    """answer_id: what the client sees, and the stem of the engine's request ids."""

    answer_id: str
    created: int = field(default_factory=lambda: int(time.time()))
    prompts: Seq[EncodedPrompt] = ()
    choices: list[Choice] = field(default_factory=list)
    metrics: list[RequestMetrics] = field(default_factory=list)  # of the prompts that are done
    cached_tokens: dict[int, int] = field(default_factory=dict)  # prompt -> how many of its tokens were cached

    @classmethod
    def with_prefix(cls, prefix: str) -> "Answer":
        return cls(f"{prefix}-{secrets.token_hex(12)}")

    def expect(self, prompts: Seq[EncodedPrompt], n: int) -> None:
        """Room for `n` choices of each prompt."""
        self.prompts = prompts
        self.choices = [Choice(index, prompts[index // n]) for index in range(len(prompts) * n)]

    def add(self, number: int, output: StepOutput) -> Choice:
        """Take in an output of prompt `number`; the choice it went to."""
        choice = self.choices[number * (len(self.choices) // len(self.prompts)) + output.index]
        choice.add(output)
        self.cached_tokens[number] = output.num_cached_tokens
        if output.metrics is not None:
            self.metrics.append(output.metrics)
        return choice

    @property
    def usage(self) -> Usage:
        num_prompt = sum(len(prompt.token_ids) for prompt in self.prompts)
        num_output = sum(len(choice.token_ids) for choice in self.choices)
        return Usage(
            prompt_tokens=num_prompt,
            completion_tokens=num_output,
            total_tokens=num_prompt + num_output,
            prompt_tokens_details={"cached_tokens": sum(self.cached_tokens.values())},
        )
