"""A plain handler never notices that its client is gone; this one does."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from shared.server.api_error import ClientGone

T = TypeVar("T")


async def until_disconnect(http: Request, work: Coroutine[Any, Any, T]) -> T:
    """The work's result; if the client hangs up first, the work is cancelled and ClientGone raised."""
    task = asyncio.ensure_future(work)
    hang_up = asyncio.ensure_future(_wait_for_hang_up(http))
    try:
        await asyncio.wait({task, hang_up}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        hang_up.cancel()


async def _wait_for_hang_up(http: Request) -> None:
    """The body has been read, so the next message is the end."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
