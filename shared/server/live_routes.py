"""What the live page asks of the server: `GET /events`, and `/live/...` to send requests, pause and step.

Answered only where the page is on. A request is the sender's own: nobody else's stream has its text or its tokens.
"""

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, Strict

from shared.request import SamplingParams
from shared.server.api_error import ApiError
from shared.server.bodies import Count, Flag, Text
from shared.server.event_stream import EventStream
from shared.server.generate_format import GenerateFormat
from shared.server.page_access import check_page_is_on
from shared.server.prompt_input import encode_messages, encode_prompts
from shared.server.request_log import record_of
from shared.server.service import Job, Service

MAX_SECONDS_PER_STEP = 10.0


class SendBody(BaseModel):
    """A prompt from the page. is_chat: through the chat template."""

    model_config = ConfigDict(extra="forbid")

    watcher: Text
    prompt: Text
    max_tokens: Count = 64
    is_chat: Flag = False


class PaceBody(BaseModel):
    """Both at once: a paused engine keeps its slow motion."""

    model_config = ConfigDict(extra="forbid")

    watcher: Text
    action: Literal["set", "step"]
    is_paused: Flag = False
    seconds_per_step: Annotated[float, Strict(), Field(ge=0, le=MAX_SECONDS_PER_STEP, allow_inf_nan=False)] = 0.0


def live_routes(service: Service) -> APIRouter:
    on = Depends(partial(check_page_is_on, service.settings))
    router = APIRouter(include_in_schema=False, dependencies=[on])
    feed = service.live

    @router.get("/events")
    async def events(http: Request) -> Response:
        """A script can ask for this type, an image or a form of another site cannot: it would take a place here."""
        if "text/event-stream" not in http.headers.get("accept", ""):
            raise ApiError(406, "this is a stream: send `Accept: text/event-stream`", code="not_acceptable")
        service.health.check()
        watcher = feed.join()
        return EventStream(feed.events(watcher), on_end=partial(feed.leave, watcher))

    @router.get("/live/about")
    async def about() -> dict[str, Any]:
        tokenizer = service.tokenizer.tokenizer
        return {
            "title": service.settings.title,
            "model": service.model_name,
            "can_pause": feed.can_pause,
            "can_send": tokenizer is not None,
            "can_chat": bool(getattr(tokenizer, "chat_template", None)),
        }

    @router.post("/live/send")
    async def send(body: SendBody, http: Request) -> dict[str, str]:
        """202 in spirit: what comes of it is shown on the sender's stream. 503 where the queue is full."""
        watcher = feed.watcher(body.watcher)
        http.state.field_names = {"prompt_token_ids": "prompt"}
        answer_id, generation = await service.send(_job(body))
        record_of(http).answer_id = answer_id
        watcher.follow(answer_id, generation)
        return {"id": answer_id}

    @router.post("/live/pace")
    async def pace(body: PaceBody) -> dict[str, bool]:
        feed.watcher(body.watcher)
        if body.action == "step":
            feed.step_once()
        else:
            feed.set_pace(is_paused=body.is_paused, seconds_per_step=body.seconds_per_step)
        return {"ok": True}

    return router


def _job(body: SendBody) -> Job:
    messages = [{"role": "user", "content": body.prompt}]
    return Job(
        id_prefix="page",
        encode=partial(encode_messages, messages=messages)
        if body.is_chat
        else partial(encode_prompts, prompt=body.prompt),
        params=SamplingParams(max_tokens=body.max_tokens),
        format=GenerateFormat(),
        is_streamed=True,
        has_own_length="max_tokens" in body.model_fields_set,
    )
