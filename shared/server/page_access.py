"""Where the live page is on: over loopback, or where somebody has asked for it."""

import ipaddress

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import Scope

from shared.server.api_error import ApiError
from shared.server.settings import ServerSettings

FORWARDED = ("forwarded", "via", "x-real-ip")  # by a proxy on this machine, for somebody who may not be


def page_is_on(settings: ServerSettings, scope: Scope) -> bool:
    """Unless the settings say, what counts is the address at which this connection arrived."""
    if settings.live_page is not None:
        return settings.live_page
    is_forwarded = any(name in FORWARDED or name.startswith("x-forwarded-") for name in Headers(scope=scope))
    return _is_loopback((scope.get("server") or ("", None))[0]) and not is_forwarded


def check_page_is_on(settings: ServerSettings, http: Request) -> None:
    """Raises ApiError 404 where it is off."""
    if not page_is_on(settings, http.scope):
        message = "the live page is off here: it is served over loopback, or with --live-page"
        raise ApiError(404, message, code="page_off")


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
