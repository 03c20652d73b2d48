"""A coroutine run to its end by code that is not one itself, wherever that code runs."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_to_end(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, also from a notebook's cell: where a loop runs already, on a thread with a loop of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main)
    return _on_a_thread(main)


def _on_a_thread(main: Coroutine[Any, Any, T]) -> T:
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()

    async def told() -> T:
        task = asyncio.ensure_future(main)
        begun.set_result((asyncio.get_running_loop(), task))
        return await task

    with ThreadPoolExecutor(1) as pool:  # leaving it waits for the thread
        answer = pool.submit(asyncio.run, told())
        try:
            return answer.result()
        except KeyboardInterrupt:  # the waiting was interrupted: end what is waited for
            loop, task = begun.result()
            loop.call_soon_threadsafe(task.cancel)
            raise
