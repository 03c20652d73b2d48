"""What the OpenAPI schema says about answers. The routes build them by hand; a test holds them to these models."""

from typing import Any, Literal

from pydantic import BaseModel

Responses = dict[int | str, dict[str, Any]]


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """Every error, on every route."""

    error: ErrorDetail


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class UsageCounts(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class GenerateChoice(BaseModel):
    index: int = 0
    token_ids: list[int]
    text: str
    logprobs: list[dict[str, Any]] | None = None
    finish_reason: str


class GenerateAnswer(BaseModel):
    """With n = 1 the one choice's fields stand here; with more, `outputs` has a choice each."""

    id: str
    index: int | None = None
    token_ids: list[int] | None = None
    text: str | None = None
    logprobs: list[dict[str, Any]] | None = None
    finish_reason: str | None = None
    outputs: list[GenerateChoice] | None = None
    ttft_ms: float | None
    tpot_ms: float | None
    usage: UsageCounts


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length"]
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class CompletionAnswer(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageCounts


class ChatMessage(BaseModel):
    role: Literal["assistant"]
    content: str


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length"]
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class ChatAnswer(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageCounts


ERRORS: Responses = {
    "4XX": {"model": ErrorAnswer, "description": "What is wrong with the request; `param` names the field"},
    "5XX": {"model": ErrorAnswer, "description": "500 a step failed; 503 not now; 504 waited too long in the queue"},
}
EVENT = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
METRICS_TEXT: Responses = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus' exposition format"}
}


def generating(answer: type[BaseModel], events: str) -> Responses:
    """A route that answers with `answer`, or with server-sent events that look like `events`."""
    stream = {"text/event-stream": {"schema": EVENT, "example": events}}
    return {200: {"model": answer, "content": stream, "description": "JSON, or events with stream: true"}} | ERRORS


GENERATE_EVENTS = """\
data: {"token_ids":[7042],"text":" Paris"}

data: {"done":true,"id":"gen-5f...","finish_reason":"length","ttft_ms":41.2,"tpot_ms":null,"usage":{...}}

data: [DONE]
"""
COMPLETION_EVENTS = """\
data: {"id":"cmpl-5f...","object":"text_completion",...,"choices":[{"index":0,"text":" Paris",...}]}

data: [DONE]
"""
CHAT_EVENTS = """\
data: {"id":"chatcmpl-5f...",...,"choices":[{"index":0,"delta":{"role":"assistant","content":"Hi"},...}]}

data: [DONE]
"""
