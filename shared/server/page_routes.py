"""The live page itself: `/` and its scripts, styles and recordings under `/page/`. Plain files; nothing in them is
secret, so they need no key: a browser that opens an address has none to send.

No script, style or picture comes from elsewhere, and none stands in the document itself: the policy forbids both.
"""

from collections.abc import Mapping
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import Response

from shared.server.api_error import ApiError
from shared.server.page_access import check_page_is_on
from shared.server.settings import ServerSettings

FOLDER = Path(__file__).parent / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".jsonl": "application/x-ndjson",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def page_files(folder: Path = FOLDER) -> dict[str, Path]:
    """Path below `/page/` -> file. What is not in here is not served."""
    found = [path for path in sorted(folder.rglob("*")) if path.suffix in TYPES]
    return {path.relative_to(folder).as_posix(): path for path in found}


def page_routes(settings: ServerSettings, more: Mapping[str, Path] | None = None) -> APIRouter:
    """more: further files, such as a recording to replay."""
    router = APIRouter(include_in_schema=False)
    files = page_files() | dict(more or {})

    @router.head("/page/{name:path}")
    @router.get("/page/{name:path}")
    async def asset(name: str, http: Request) -> Response:
        check_page_is_on(settings, http)
        if name not in files:
            raise ApiError(404, f"the page has no file {name!r}", code="not_found")
        return file_response(files[name])

    return router


def front_page() -> Response:
    return file_response(FOLDER / "index.html")


def file_response(path: Path) -> Response:
    return Response(path.read_bytes(), media_type=TYPES[path.suffix], headers=HEADERS)
