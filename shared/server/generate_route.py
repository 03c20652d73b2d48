"""`POST /generate`: the engine's own words for everything, token ids and times included."""

from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from shared.errors import InvalidRequest
from shared.server.bodies import GenerateBody
from shared.server.generate_format import GenerateFormat
from shared.server.prompt_input import encode_prompts
from shared.server.route_docs import GENERATE_EVENTS, GenerateAnswer, generating
from shared.server.service import Job, Service


def generate_route(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/generate", summary="Go on from a prompt", responses=generating(GenerateAnswer, GENERATE_EVENTS))
    async def generate(body: GenerateBody, http: Request) -> Response:
        limit_name, max_tokens = body.one_of("max_new_tokens", "max_tokens")
        http.state.field_names = {"prompt_token_ids": "prompt", "max_tokens": limit_name}
        _check_is_one(body.prompt)
        job = Job(
            id_prefix="gen",
            encode=partial(encode_prompts, prompt=body.prompt, keep_last=body.truncate_prompt_tokens),
            params=body.sampling_params(max_tokens=max_tokens),
            format=GenerateFormat(),
            is_streamed=bool(body.stream),
            has_own_length=max_tokens is not None,
            cache_salt=body.cache_salt,
        )
        return await service.answer(http, job)

    return router


def _check_is_one(prompt: object) -> None:
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        raise InvalidRequest("prompt", "this route takes one prompt; /v1/completions takes several")
