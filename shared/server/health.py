"""Does this server answer requests? What it says is what the next request would get.

    serving --a step failed--> failed --a probe got its token--> serving
    serving or failed --SIGTERM--> draining, for good

The engine itself survives a failed step, but cannot know whether the next one would work. So the server
finds out with a request of its own, one token long, before it lets anybody else in again.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from shared.engine import Engine
from shared.output import StepOutput
from shared.request import Request, SamplingParams
from shared.server.api_error import unavailable
from shared.server.mailbox import Mailbox

log = logging.getLogger(__name__)

PROBE_DELAYS_S = (0.05, 0.5, 1.0, 2.0, 5.0, 10.0)  # before each probe; the last one again and again
PROBE = Request([0], SamplingParams(max_tokens=1, ignore_eos=True))

Run = Callable[..., Coroutine[Any, Any, Any]]


class Health:
    """run: calls a function on another thread; the event loop may not wait for `engine.submit`."""

    def __init__(self, engine: Engine, mailbox: Mailbox, run: Run) -> None:
        self.failure: str | None = None  # why nobody is served just now
        self.is_draining = False
        self._engine = engine
        self._mailbox = mailbox
        self._run = run
        self._recovery: asyncio.Task[None] | None = None

    def check(self) -> None:
        """Raises ApiError 503 where a new request would not be served."""
        if self.is_draining:
            raise unavailable("the server is shutting down", 5.0, "shutting_down")
        if self.failure is not None:
            raise unavailable(f"the engine failed and has not recovered yet: {self.failure}", 1.0, "engine_failed")

    def saw(self, output: StepOutput) -> None:
        """Every output of every request comes by here."""
        if output.finish_reason == "error":
            self.fail(output.error or "a step failed")
        elif output.token_ids:
            self.failure = None

    def fail(self, reason: str) -> None:
        """Serve nobody until a probe gets through."""
        self.failure = reason
        if self._recovery is None or self._recovery.done():
            self._recovery = asyncio.ensure_future(self._recover())

    def close(self) -> None:
        if self._recovery is not None:
            self._recovery.cancel()

    async def _recover(self) -> None:
        for delay in itertools.chain(PROBE_DELAYS_S, itertools.repeat(PROBE_DELAYS_S[-1])):
            await asyncio.sleep(delay)
            if self.failure is None or await self._probe():
                log.warning("the engine serves again")
                self.failure = None
                return

    async def _probe(self) -> bool:
        """True if the engine gives a token for a token."""
        answered: asyncio.Future[StepOutput] = asyncio.get_running_loop().create_future()

        def take(output: StepOutput) -> None:
            if not answered.done():
                answered.set_result(output)

        try:
            await self._run(self._engine.submit, PROBE, partial(self._mailbox.post, take))
            return bool((await answered).token_ids)
        except Exception as error:  # it refuses even this, e.g. because it is closed
            self.failure = str(error)
            return False
