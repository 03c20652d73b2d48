"""`POST /v1/chat/completions`: a conversation, through the model's chat template."""

from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from shared.errors import InvalidRequest
from shared.server.bodies import ChatBody
from shared.server.chat_format import ChatFormat
from shared.server.models_route import check_model
from shared.server.prompt_input import encode_messages
from shared.server.route_docs import CHAT_EVENTS, ChatAnswer, generating
from shared.server.service import Job, Service


def chat_route(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions", summary="Answer a conversation", responses=generating(ChatAnswer, CHAT_EVENTS))
    async def chat(body: ChatBody, http: Request) -> Response:
        check_model(service, body.model)
        body.check_stream_options()
        limit_name, max_tokens = body.one_of("max_completion_tokens", "max_tokens")
        http.state.field_names = {
            "prompt_token_ids": "messages",
            "max_tokens": limit_name,
            "logprobs": "top_logprobs",
        }
        job = Job(
            id_prefix="chatcmpl",
            encode=partial(encode_messages, messages=body.messages, keep_last=body.truncate_prompt_tokens),
            params=body.sampling_params(
                max_tokens=service.settings.default_chat_tokens if max_tokens is None else max_tokens,
                logprobs=_num_logprobs(body),
            ),
            format=ChatFormat(body, service.model_name, service.texts),
            is_streamed=bool(body.stream),
            has_own_length=max_tokens is not None,
            cache_salt=body.cache_salt,
        )
        return await service.answer(http, job)

    return router


def _num_logprobs(body: ChatBody) -> int | None:
    """The engine's `logprobs`: how many alternatives, or None for no logprobs at all."""
    if not body.logprobs:
        if body.top_logprobs:
            raise InvalidRequest("top_logprobs", "needs logprobs: true")
        return None
    return body.top_logprobs or 0
