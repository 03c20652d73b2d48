"""Does this server answer requests? What it says is what the next request would get.

    serving --a step failed, or a completion did and then a probe--> failed --a probe got its token--> serving
    serving --a step takes longer than `stuck_step_s`--> stuck --it ends--> serving
    serving, failed or stuck --SIGTERM--> draining, for good

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
    """run: calls a function on another thread; the event loop may not wait for `engine.submit`.

    stuck_step_s: seconds that one step of the engine's thread may take.
    """

    def __init__(self, engine: Engine, mailbox: Mailbox, run: Run, stuck_step_s: float) -> None:
        self.failure: str | None = None  # why nobody is served just now
        self._doubt: str | None = None  # what failed alone: everybody is served until a probe fails as well
        self.is_draining = False
        self._engine = engine
        self._mailbox = mailbox
        self._run = run
        self._stuck_step_s = stuck_step_s
        self._recovery: asyncio.Task[None] | None = None

    def check(self) -> None:
        """Raises ApiError 503 where a new request would not be served."""
        if self.is_draining:
            raise unavailable("the server is shutting down", 5.0, "shutting_down")
        if self.failure is not None:
            message = "the engine failed and has not recovered yet; the server's log says more"
            raise unavailable(message, 1.0, "engine_failed")
        if (seconds := self._step_seconds()) > self._stuck_step_s:
            raise unavailable(f"the engine has been in one step for {seconds:.0f} s", 5.0, "engine_stuck")

    def saw(self, output: StepOutput) -> None:
        """Every output of every request comes by here."""
        if output.finish_reason == "error":
            self.fail(output.error or "a step failed", is_sure=not output.failed_alone)
        elif output.token_ids:
            self.failure = self._doubt = None

    def fail(self, reason: str, *, is_sure: bool = True) -> None:
        """Serve nobody until a probe gets through; or, not being sure, only once it does not."""
        if reason != self.failure:
            log.error("the engine failed: %s", reason)
        self._doubt = reason
        if is_sure:
            self.failure = reason
        if self._recovery is None or self._recovery.done():
            self._recovery = asyncio.ensure_future(self._recover())

    def close(self) -> None:
        if self._recovery is not None:
            self._recovery.cancel()

    def _step_seconds(self) -> float:
        """Phase 1 has no thread that steps."""
        thread = getattr(self._engine, "thread", None)
        return 0.0 if thread is None else thread.step_seconds()

    async def _recover(self) -> None:
        for delay in itertools.chain(PROBE_DELAYS_S, itertools.repeat(PROBE_DELAYS_S[-1])):
            await asyncio.sleep(delay)
            if self._doubt is None or await self._probe():
                log.warning("the engine serves again")
                self.failure = self._doubt = None
                return
            self.failure = self.failure or self._doubt

    async def _probe(self) -> bool:
        """True if the engine gives a token for a token."""
        answered: asyncio.Future[StepOutput] = asyncio.get_running_loop().create_future()

        def take(output: StepOutput) -> None:
            if not answered.done():
                answered.set_result(output)

        try:
            submit = partial(self._engine.submit, is_patient=True)  # a full queue is no illness
            await self._run(submit, PROBE, partial(self._mailbox.post, take))
            return bool((await answered).token_ids)
        except Exception as error:  # it refuses even this, e.g. because it is closed
            self.failure = str(error)
            return False
