"""Two ways to drive a server: by a schedule that waits for nobody, or each client after its own last answer."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from collections.abc import Sequence as Seq
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

from shared.bench.load.client import make_client, observe
from shared.bench.load.observation import Observation
from shared.bench.load.target import Ask, Target

Watch = Callable[[Seq[Observation]], None]
WATCH_S = 0.5  # between two looks at how far it is


def nobody_watches(_seen: Seq[Observation]) -> None:
    pass


async def open_loop(
    target: Target,
    asks: Seq[Ask],
    schedule: Seq[float],
    max_concurrency: int | None = None,
    watch: Watch = nobody_watches,
) -> list[Observation]:
    """Send each request at its moment, whatever has become of the others.

    max_concurrency: a cap on requests under way at once, as a client with few connections has it. Who waits for the
    cap is sent late; its schedule stays, so the wait is counted.
    """
    seen = [Observation(scheduled) for scheduled in schedule]
    limit: AbstractAsyncContextManager[None] = asyncio.Semaphore(max_concurrency) if max_concurrency else nullcontext()
    async with make_client(target) as client, watched(seen, watch):
        start = time.perf_counter()

        def clock() -> float:
            return time.perf_counter() - start

        async def send(ask: Ask, one: Observation) -> None:
            await asyncio.sleep(max(0.0, one.scheduled - clock()))
            async with limit:
                await within(target.timeout_s, observe(client, target, ask, one, clock), one, clock)

        async with asyncio.TaskGroup() as group:
            for ask, one in zip(asks, seen):
                group.create_task(send(ask, one))
    return seen


async def closed_loop(
    target: Target, asks: Seq[Ask], concurrency: int, watch: Watch = nobody_watches
) -> list[Observation]:
    """So many clients, each of which sends its next request when it has its answer: its schedule is its send."""
    seen: list[Observation] = []
    rest = iter(asks)
    async with make_client(target) as client, watched(seen, watch):
        start = time.perf_counter()

        def clock() -> float:
            return time.perf_counter() - start

        async def one_client() -> None:
            for ask in rest:  # shared: whoever is free takes the next
                seen.append(one := Observation(clock()))
                await within(target.timeout_s, observe(client, target, ask, one, clock), one, clock)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(asks))):
                group.create_task(one_client())
    return seen


async def within(seconds: float, work: Coroutine[Any, Any, None], one: Observation, clock: Callable[[], float]) -> None:
    """Run it; after so long, it has failed."""
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        one.failure, one.ended = f"no whole answer within {seconds:g} s", clock()


@asynccontextmanager
async def watched(seen: Seq[Observation], watch: Watch) -> AsyncIterator[None]:
    """Call `watch` now and then, and once at the end."""

    async def look() -> None:
        while True:
            watch(seen)
            await asyncio.sleep(WATCH_S)

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()
        watch(seen)
