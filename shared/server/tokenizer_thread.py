"""The one thread that encodes prompts and reads tokens, so that the event loop never does."""

import asyncio
import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class TokenizerThread:
    """Runs work on a thread of its own, first come, first served.

    tokenizer: copied, for a fast tokenizer may not be reconfigured by one thread while another reads
    with it ("Already borrowed"), and the engine's thread decodes with the original. None if there is none.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = copy.deepcopy(tokenizer)
        self._executor: ThreadPoolExecutor | None = None

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        """What `work(*args)` returns or raises. Cancelling the wait does not stop work that has begun."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pageserve-tokenizer")
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *args)

    def close(self) -> None:
        """End the thread after the work in hand; the next `run` starts another."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None
