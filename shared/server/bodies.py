"""What clients may send, as the OpenAPI schema shows it.

Types are checked here, strictly (true is no number, "10" no count). What a value may be is checked once for
all ways into the engine, by `shared.request`. null is the same as leaving a field out.
"""

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, WithJsonSchema
from pydantic_core import PydanticCustomError

from shared.errors import InvalidRequest
from shared.request import MAX_N, MAX_TOP_LOGPROBS, SamplingParams
from shared.server.api_error import ApiError


def as_digits(name: Any) -> Any:
    """The name of a JSON field, which is always text. pydantic would take "1_0", " 10" and "10.0" for 10, too."""
    if isinstance(name, str) and not re.fullmatch("0|[1-9][0-9]{0,18}", name):
        raise PydanticCustomError("token_id", "must be a token id, a whole number from 0")
    return name


Count = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
Flag = Annotated[bool, Strict()]
Text = Annotated[str, Strict()]
TokenId = Annotated[int, BeforeValidator(as_digits)]

TOKEN_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
ONE_PROMPT = {"oneOf": [{"type": "string", "minLength": 1}, TOKEN_IDS]}
PROMPTS = {
    "oneOf": [
        {"type": "string", "minLength": 1},
        TOKEN_IDS,
        {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
        {"type": "array", "items": TOKEN_IDS, "minItems": 1},
    ]
}
PART = {"type": "object", "properties": {"type": {"const": "text"}, "text": {"type": "string"}}}
MESSAGES = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role", "content"],
        "properties": {
            "role": {"enum": ["system", "developer", "user", "assistant"]},
            "content": {
                "oneOf": [{"type": "string"}, {"type": "array", "items": PART | {"required": ["type", "text"]}}]
            },
        },
    },
}

IGNORED = frozenset(  # they do not change what is generated
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",
    }
)
NEUTRAL: Mapping[str, tuple[Any, ...]] = {  # not offered, but these values ask for nothing
    "best_of": (1,),
    "suffix": ("",),
    "use_beam_search": (False,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "echo": (False,),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "early_stopping": (False,),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
}
LOGPROBS = "alternatives to report per token; 0: the chosen one only"
SAMPLING_FIELDS = frozenset(f.name for f in fields(SamplingParams))


def shown(description: str, **limits: float) -> Any:
    """An optional field; the limits are for the schema's readers, `shared.request` checks them."""
    return Field(default=None, description=description, json_schema_extra=dict(limits))


class SamplingBody(BaseModel):
    """The fields that every generating route shares."""

    model_config = ConfigDict(extra="allow")

    max_tokens: Count | None = shown("most tokens to generate per choice", minimum=1)
    temperature: Number | None = shown("0 is greedy, the default on every route", minimum=0)
    top_p: Number | None = shown("keep the most likely tokens that make up this much", minimum=0, maximum=1)
    top_k: Count | None = shown("keep this many of the most likely tokens; 0 or -1 keeps all", minimum=-1)
    min_p: Number | None = shown("keep tokens at least this likely, relative to the likeliest", minimum=0, maximum=1)
    seed: Count | None = shown("the same seed gives the same tokens, whoever else is served")
    repetition_penalty: Number | None = shown("of tokens seen in prompt or output", exclusiveMinimum=0)
    presence_penalty: Number | None = shown("of tokens generated before", minimum=-2, maximum=2)
    frequency_penalty: Number | None = shown("the same, once per occurrence", minimum=-2, maximum=2)
    logit_bias: dict[TokenId, Number] | None = shown("token id -> added to its logit, -100 to 100")
    min_tokens: Count | None = shown("do not end before this many tokens", minimum=0)
    stop: Text | list[Text] | None = shown("the text ends before any of these")
    stop_token_ids: list[Count] | None = shown("ids that end the output")
    ignore_eos: Flag | None = shown("go on past the end of the answer")
    n: Count | None = shown("choices per prompt", minimum=1, maximum=MAX_N)
    stream: Flag | None = shown("server-sent events, a piece at a time")
    cache_salt: Text | None = shown("requests with different salts never share cached K/V", minLength=1)
    truncate_prompt_tokens: Count | None = Field(default=None, ge=1, description="keep a prompt's last tokens only")

    def check_offered(self) -> None:
        """Raises ApiError, in the client's own words, for a field that is neither offered nor asks for nothing."""
        for name, value in (self.model_extra or {}).items():
            if value is not None and name not in IGNORED and value not in NEUTRAL.get(name, ()):
                raise ApiError(400, f"{name}: is not offered by this server; leave it out", param=name)

    def sampling_params(self, **changes: Any) -> SamplingParams:
        """changes: what the route has worked out itself; None leaves the default. Raises ApiError, InvalidRequest."""
        self.check_offered()
        given = {name: getattr(self, name, None) for name in SAMPLING_FIELDS} | changes
        return SamplingParams(**{name: value for name, value in given.items() if value is not None})

    def one_of(self, *names: str) -> tuple[str, int | None]:
        """A count that goes by several names: the name that was used, and the value."""
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if len(set(given.values())) > 1:
            raise InvalidRequest(next(iter(given)), f"give one of {' and '.join(given)}, not both")
        return next(iter(given.items()), (names[0], None))


class GenerateBody(SamplingBody):
    """`POST /generate`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"prompt": "Explain paged attention in one sentence.", "max_new_tokens": 64, "stream": True}]
        }
    )

    prompt: Annotated[Any, WithJsonSchema(ONE_PROMPT)]
    max_new_tokens: Count | None = shown("the same as max_tokens", minimum=1)
    logprobs: Count | None = shown(LOGPROBS, minimum=0, maximum=MAX_TOP_LOGPROBS)


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    include_usage: Flag | None = shown("a last chunk with the token counts")
    continuous_usage_stats: Flag | None = shown("the counts so far on every chunk")
    include_obfuscation: Flag | None = shown("ignored")


class OpenAIBody(SamplingBody):
    """What the two OpenAI routes share."""

    model: Text | None = shown("an id from /v1/models; the served model if left out")
    max_completion_tokens: Count | None = shown("the same as max_tokens", minimum=1)
    stream_options: StreamOptions | None = None
    return_token_ids: Flag | None = shown("token_ids and prompt_token_ids in each choice")

    def check_stream_options(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options", "only goes with stream: true")


class CompletionBody(OpenAIBody):
    """`POST /v1/completions`."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}]}
    )

    prompt: Annotated[Any, WithJsonSchema(PROMPTS)]
    echo: Flag | None = Field(
        default=None, description="the prompt before the completion; with logprobs, the prompt's too"
    )
    logprobs: Count | None = shown(LOGPROBS, minimum=0, maximum=MAX_TOP_LOGPROBS)


class ChatBody(OpenAIBody):
    """`POST /v1/chat/completions`."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 64}]}
    )

    messages: Annotated[Any, WithJsonSchema(MESSAGES)]
    logprobs: Flag | None = shown("report each token's logprob")
    top_logprobs: Count | None = Field(
        default=None, description="alternatives to report per token; needs logprobs: true"
    )
