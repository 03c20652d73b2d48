"""The application: the same for every phase, wired here.

client -> RequestLog -> Guard -> BodyLimit -> routes -> Service -> engine
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from shared.engine import Engine
from shared.server.api_error import add_error_handlers
from shared.server.body_limit import BodyLimit
from shared.server.chat_route import chat_route
from shared.server.completions_route import completions_route
from shared.server.generate_route import generate_route
from shared.server.guard import Guard
from shared.server.live_routes import live_routes
from shared.server.models_route import models_route
from shared.server.page_routes import page_routes
from shared.server.request_log import RequestLog
from shared.server.service import Service
from shared.server.settings import ServerSettings
from shared.server.status_routes import status_routes
from shared.server.wire import ApiResponse


def create_app(engine: Engine, tokenizer: Any, model_name: str, **limits: Any) -> FastAPI:
    """An ASGI application that serves `engine`, which stays the caller's: close it when the server is gone.

    tokenizer: of the model, or None; then prompts are token ids. limits: the fields of ServerSettings.
    Raises InvalidConfig for a limit that makes no sense.
    """
    settings = ServerSettings(**limits)
    service = Service(engine, tokenizer, model_name, settings)
    app = FastAPI(
        title="PageServe",
        version="1",
        default_response_class=ApiResponse,
        lifespan=_lifespan(service),
        redirect_slashes=False,
    )
    app.state.service = service
    for route in (generate_route, completions_route, chat_route, models_route, status_routes, live_routes):
        app.include_router(route(service))
    app.include_router(page_routes(settings))
    add_error_handlers(app)
    app.add_middleware(BodyLimit, settings=settings)
    app.add_middleware(Guard, settings=settings)
    app.add_middleware(RequestLog, count=service.metrics.http_requests)
    return app


def _lifespan(service: Service) -> Any:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.open()
        try:
            yield
        finally:
            service.close()

    return lifespan
