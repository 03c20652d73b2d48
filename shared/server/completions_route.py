"""`POST /v1/completions`: one or several prompts, each a text or token ids."""

from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from shared.server.bodies import CompletionBody
from shared.server.completion_format import CompletionFormat
from shared.server.models_route import check_model
from shared.server.prompt_input import count_prompts, encode_prompts
from shared.server.route_docs import COMPLETION_EVENTS, CompletionAnswer, generating
from shared.server.service import Job, Service


def completions_route(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post(
        "/v1/completions", summary="Go on from prompts", responses=generating(CompletionAnswer, COMPLETION_EVENTS)
    )
    async def completions(body: CompletionBody, http: Request) -> Response:
        check_model(service, body.model)
        body.check_stream_options()
        limit_name, max_tokens = body.one_of("max_tokens", "max_completion_tokens")
        http.state.field_names = {
            "prompt_token_ids": "prompt",
            "max_tokens": limit_name,
            "prompt_logprobs": "logprobs",
        }
        job = Job(
            id_prefix="cmpl",
            encode=partial(encode_prompts, prompt=body.prompt, keep_last=body.truncate_prompt_tokens),
            params=body.sampling_params(max_tokens=max_tokens, prompt_logprobs=body.logprobs if body.echo else None),
            format=CompletionFormat(body, service.model_name, service.texts),
            is_streamed=bool(body.stream),
            has_own_length=max_tokens is not None,
            num_prompts=count_prompts(body.prompt),
            is_echoed=bool(body.echo),
            cache_salt=body.cache_salt,
        )
        return await service.answer(http, job)

    return router
