"""A small server for the page and one recording, on this machine only; there is no engine behind it."""

import sys
import webbrowser
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import Response
from prometheus_client import CollectorRegistry, Counter

from shared.errors import SetupError
from shared.server.api_error import add_error_handlers
from shared.server.graceful_server import address, bind
from shared.server.guard import Guard
from shared.server.page_routes import front_page, page_routes
from shared.server.request_log import RequestLog
from shared.server.settings import ServerSettings
from shared.trace.recording import read_recording

HOST = "127.0.0.1"
SUFFIX = ".jsonl"


def replay_app(recordings: dict[str, Path]) -> FastAPI:
    """The page with these recordings beside its own. recordings: name -> file."""
    settings = ServerSettings(live_page=True)
    app = FastAPI(title="PageServe, recordings", openapi_url=None)
    app.include_router(page_routes(settings, {f"recordings/{name}": path for name, path in recordings.items()}))

    @app.get("/")
    async def root(_: Request) -> Response:
        return front_page()

    add_error_handlers(app)
    app.add_middleware(Guard, settings=settings)
    count = Counter("answers", "by route and status", ["route", "status"], registry=CollectorRegistry())
    app.add_middleware(RequestLog, count=count)
    return app


def replay(path: Path, port: int, *, opens_browser: bool) -> None:
    """Serve until Ctrl-C. Raises SetupError for a file that is no recording, or a port that is taken."""
    read_recording(path)
    if path.suffix != SUFFIX:
        raise SetupError(f"{path}: the page wants a name that ends in {SUFFIX}; rename it")
    listener = bind(HOST, port)
    config = uvicorn.Config(replay_app({path.name: path.resolve()}), http="h11", ws="none", log_config=None)
    server = uvicorn.Server(config)
    url = f"{address(listener)}/#replay=/page/recordings/{quote(path.name)}"
    print(f"{path} is replayed on {url} (Ctrl-C ends it)", file=sys.stderr, flush=True)
    if opens_browser:
        webbrowser.open(url)
    with suppress(KeyboardInterrupt):  # how it is meant to end
        server.run(sockets=[listener])
