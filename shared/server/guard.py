"""Who may talk to this server at all: asked of every request before its body is read.

A page from elsewhere can make a browser on this machine send requests here. Its own name resolved to
this address (DNS rebinding) shows in Host; a form or a script that posts across sites shows in Origin.
A script, picture or frame that only gets something has no Origin, but browsers say Sec-Fetch-Site.
"""

import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from shared.server.api_error import ApiError
from shared.server.page_access import page_is_on
from shared.server.settings import ServerSettings

OPEN_PATHS = ("/health",)  # without a key: load balancers have none
OWN_SITES = ("same-origin", "none")  # none: typed in, or a bookmark
PAGE_PATHS = ("/", "/page/")  # nor has a browser that opens the page; the page asks for it, and sends it with /events


class Guard:
    """ASGI middleware: 403 for a wrong Host or Origin, 401 for a wrong key, 400 for a body with two lengths."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._settings = settings
        self._hosts = {"localhost", *(name.lower() for name in settings.allowed_hosts)}
        self._key = None if settings.api_key is None else settings.api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(scope)
            except ApiError as error:
                scope["state"]["record"].reason = error.code
                return await error.response()(scope, receive, send)
        return await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        _check_has_one_length(headers)
        host = headers.get("host", "").lower()
        own_name = (scope.get("server") or ("", None))[0].lower()
        if host and not self._is_allowed(_name(host), own_name):
            message = f"this server does not go by the name of {_name(host)!r}; allow it with --allowed-host"
            raise ApiError(403, message, code="host_not_allowed")
        origin = headers.get("origin")
        if origin is not None and not self._is_own(origin.lower(), host):
            raise ApiError(403, f"requests from pages of {origin!r} are not answered", code="origin_not_allowed")
        if origin is None and _is_from_elsewhere(headers):
            raise ApiError(403, "requests from pages of other sites are not answered", code="origin_not_allowed")
        if self._key is not None and not self._is_open(scope):
            self._check_key(headers.get("authorization", ""), self._key)

    def _is_open(self, scope: Scope) -> bool:
        path = scope["path"]
        is_page = path == PAGE_PATHS[0] or path.startswith(PAGE_PATHS[1])
        return path in OPEN_PATHS or (is_page and page_is_on(self._settings, scope))

    def _is_allowed(self, name: str, own_name: str) -> bool:
        """An IP address cannot be rebound; `own_name` is where the connection arrived."""
        return "*" in self._hosts or name in self._hosts or name == own_name or _is_address(name)

    def _is_own(self, origin: str, host: str) -> bool:
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return bool(parts.netloc) and (parts.netloc == host or (parts.hostname or "") in self._hosts - {"localhost"})

    def _check_key(self, authorization: str, wanted: bytes) -> None:
        scheme, _, key = authorization.partition(" ")
        given = key.strip(" \t").encode("latin-1")  # headers are decoded as latin-1
        is_right = hmac.compare_digest(given, wanted)
        if scheme.lower() != "bearer" or not is_right:
            how = {"WWW-Authenticate": "Bearer"}
            message = "send the server's key as `Authorization: Bearer <key>`"
            raise ApiError(401, message, code="invalid_api_key", headers=how)


def _check_has_one_length(headers: Headers) -> None:
    """A proxy that goes by the other one would take part of the body for another client's request (RFC 9112, 6.1)."""
    if "content-length" in headers and "transfer-encoding" in headers:
        message = "a request has Content-Length or Transfer-Encoding, not both"
        raise ApiError(400, message, code="invalid_http", headers={"Connection": "close"})


def _is_from_elsewhere(headers: Headers) -> bool:
    """What another site's page loads or frames. A link that a person follows to here is a person's doing."""
    is_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return headers.get("sec-fetch-site", OWN_SITES[0]) not in OWN_SITES and not is_link


def _name(host: str) -> str:
    """A Host header without its port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
