"""Every error in the shape that OpenAI's clients parse: {"error": {message, type, param, code}}."""

import math
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from shared.errors import EngineError, InvalidRequest, QueueFull
from shared.output import StepOutput
from shared.server.wire import ApiResponse

METHODS = ("GET", "HEAD", "POST")  # of all routes here
MAX_MESSAGE_CHARS = 500
MAX_PARAM_CHARS = 100  # a client may have made up the field
TYPES = {  # status -> type; any other below 500 is an invalid request
    401: "authentication_error",
    403: "permission_error",
    408: "timeout_error",
    500: "server_error",
    503: "service_unavailable",
    504: "timeout_error",
}


class ApiError(Exception):
    """An answer that is an error; raise it anywhere on the way to one."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = _cut(message, MAX_MESSAGE_CHARS)
        self.param = None if param is None else _cut(param, MAX_PARAM_CHARS)
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> ApiResponse:
        return ApiResponse(self.body(), self.status, self.headers)


class ClientGone(Exception):
    """The client hung up; nobody is left to answer."""


def unavailable(message: str, retry_after_s: float, code: str) -> ApiError:
    """503: not now, but maybe in `retry_after_s` seconds."""
    return ApiError(503, message, code=code, headers={"Retry-After": str(max(1, math.ceil(retry_after_s)))})


def internal_error() -> ApiError:
    """For what nobody foresaw; what it was is for the log alone."""
    return ApiError(500, "the server made a mistake; its log says more")


def failed(output: StepOutput) -> ApiError | None:
    """The error in a request's last output; None where it ended as it should."""
    if output.finish_reason == "error":
        return ApiError(500, f"a step of the engine failed: {_public(output)}", code="engine_error")
    if output.finish_reason == "timeout":
        return ApiError(504, "the request waited too long in the queue and was dropped", code="queue_timeout")
    if output.finish_reason == "abort":
        return unavailable("the request was dropped by the server", 1.0, "aborted")
    return None


def _public(output: StepOutput) -> str:
    """An exception that ended all requests of a step may speak of any of them: its text is for the log alone."""
    error = output.error or "unknown"
    return error if output.failed_alone else f"{error.partition(':')[0]}; the server's log says more"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + " ..."


def add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(InvalidRequest, _on_invalid_request)
    app.add_exception_handler(QueueFull, _on_queue_full)
    app.add_exception_handler(EngineError, _on_engine_error)
    app.add_exception_handler(RequestValidationError, _on_wrong_type)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientGone, _on_client_gone)


def _answer(http: Request, error: ApiError) -> ApiResponse:
    """The log gets the field's name; the message may have a piece of the prompt in it."""
    http.state.record.reason = error.code or f"refused: {error.param or 'body'}"
    return error.response()


async def _on_api_error(http: Request, error: Any) -> ApiResponse:
    return _answer(http, error)


async def _on_invalid_request(http: Request, error: Any) -> ApiResponse:
    """A route may have left `field_names` in the request: the engine's word for a field -> the client's."""
    param = getattr(http.state, "field_names", {}).get(error.param, error.param)
    message = f"{param}: {str(error).removeprefix(f'{error.param}: ')}"
    return _answer(http, ApiError(400, message, param=param, code=error.code))


async def _on_queue_full(http: Request, error: Any) -> ApiResponse:
    return _answer(http, unavailable(str(error), error.retry_after_s, "queue_full"))


async def _on_engine_error(http: Request, error: Any) -> ApiResponse:
    """The engine takes no requests; a step that fails is told by the request's last output."""
    return _answer(http, unavailable(str(error), 1.0, "engine_failed"))


async def _on_client_gone(http: Request, _: Any) -> ApiResponse:
    return _answer(http, ApiError(499, "the client hung up", code="disconnect"))


async def _on_http_exception(http: Request, error: Any) -> ApiResponse:
    """Starlette's own: an unknown route, a method that the route does not have, a body that cannot be parsed."""
    message, code, headers = str(error.detail), None, error.headers
    if error.status_code == 404:
        message, code = f"there is no route {http.method} {http.url.path}; see /docs", "not_found"
    elif error.status_code == 405:
        headers = {"Allow": ", ".join(_methods(http))}
        message = f"there is no {http.method} {http.url.path}; this path takes {headers['Allow']}"
    return _answer(http, ApiError(error.status_code, message, code=code, headers=headers))


def _methods(http: Request) -> list[str]:
    """Of all routes with this path; Starlette's own answer knows the first one's only."""
    scopes = {method: {**http.scope, "method": method} for method in METHODS}
    routes = http.app.routes
    return [name for name, scope in scopes.items() if any(route.matches(scope)[0] is Match.FULL for route in routes)]


async def _on_wrong_type(http: Request, error: Any) -> ApiResponse:
    """The first field of the wrong type is named."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        reason = f"the body is no JSON: {first.get('ctx', {}).get('error', first['msg'])}"
    elif not path:
        reason = "the body must be a JSON object, sent with content-type: application/json"
    else:
        return _answer(http, ApiError(400, f"{'.'.join(path)}: {first['msg']}", param=path[0]))
    return _answer(http, ApiError(400, reason))
