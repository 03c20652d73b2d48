"""One line of JSON per POST: id, tokens, times, reason. And an id for every answer."""

import json
import logging
import re
import secrets
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from fastapi import Request
from prometheus_client import Counter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.server.answer import Answer
from shared.server.api_error import internal_error

log = logging.getLogger("pageserve.requests")

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")  # a client's own id is taken over if it fits a header and a log line
MAX_ROUTE_CHARS = 200
MAX_CLIENT_CHARS = 64  # a proxy on this machine may name it, and so may whoever else is on this machine


@dataclass(slots=True)
class RequestRecord:
    """What is logged of a request; times in milliseconds, null where it did not come so far.

    request_id: the client's `X-Request-Id` or one of ours; it goes back in the header of that name.
    answer_id: what the body calls it, and the stem of the engine's request ids, which nobody else can choose.
    """

    request_id: str
    route: str
    client: str
    status: int | None = None
    answer_id: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reason: str | None = None  # finish reasons, or what went wrong
    queue_ms: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    started: float = field(default_factory=time.perf_counter)

    def note(self, answer: Answer) -> None:
        """Take over what has come of the request: all of it, or what there was when it ended."""
        usage = answer.usage
        self.answer_id = answer.answer_id
        self.prompt_tokens, self.completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        self.reason = self.reason or ",".join(choice.finish_reason or "disconnect" for choice in answer.choices)
        if answer.metrics:
            first = answer.metrics[0]
            self.queue_ms, self.ttft_ms, self.tpot_ms = ms(first.queue_s), ms(first.ttft_s), ms(first.tpot_s)

    def line(self) -> str:
        """Strict JSON in ASCII: whatever a client sent, it is one line and no terminal obeys it."""
        fields = {name: value for name, value in asdict(self).items() if name != "started"}
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        return json.dumps({"time": now, **fields, "total_ms": ms(time.perf_counter() - self.started)})


def ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)


def record_of(http: Request) -> RequestRecord:
    return http.state.record


class RequestLog:
    """The outermost middleware: also the last place where something unforeseen becomes a 500 of OpenAI's shape."""

    def __init__(self, app: ASGIApp, count: Counter) -> None:
        self._app = app
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        record = _new_record(scope)
        scope.setdefault("state", {})["record"] = record

        async def send_stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", record.request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_stamped)
        except Exception as error:
            log.exception("request %s", record.request_id)
            record.reason = type(error).__name__
            if record.status is None:
                await internal_error().response()(scope, receive, send_stamped)
        finally:
            self._count.labels(_route(scope), record.status).inc()
            if scope["method"] == "POST":
                log.info("%s", record.line())
        return None


def _route(scope: Scope) -> str:
    """The route's pattern: paths that nobody serves may not become labels."""
    return getattr(scope.get("route"), "path", "none")


def _new_record(scope: Scope) -> RequestRecord:
    given: dict[bytes, Any] = dict(scope["headers"])
    wanted = given.get(b"x-request-id", b"").decode("latin-1")
    request_id = wanted if REQUEST_ID.fullmatch(wanted) else f"req-{secrets.token_hex(8)}"
    client = (scope.get("client") or ("", 0))[0][:MAX_CLIENT_CHARS]
    return RequestRecord(request_id, scope["path"][:MAX_ROUTE_CHARS], client)
