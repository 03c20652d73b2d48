"""What an engine does, for every page that watches: encoded once, a batch at a time, and lost rather than late.

engine's thread --> Tap --> (event loop, 20 times a second) Encoder --> a bounded buffer per watcher --> GET /events

While nobody watches there is no tap, and nothing is done at all. All methods are for the event loop.
"""

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from shared.engine import Engine
from shared.server.api_error import ApiError, unavailable
from shared.server.generation import Generation
from shared.server.wire import sse_event
from shared.trace.encode import Encoder, Record, to_line
from shared.trace.tap import Tap

MAX_WATCHERS = 8
BATCH_EVERY_S = 0.05
PING_EVERY_S = 15.0
PING = b": ping\n\n"
MAX_PENDING_CHARS = 1 << 20  # that a watcher may be behind; a step of 32 sequences has about a thousand

log = logging.getLogger(__name__)


class Watcher:
    """One page. watcher_id: a secret of whoever reads this stream; who names it may send requests, and pause."""

    def __init__(self, max_pending_chars: int = MAX_PENDING_CHARS) -> None:
        self.watcher_id = secrets.token_urlsafe(16)
        self.num_lost = 0  # records that were dropped since the last batch
        self._max_pending_chars = max_pending_chars
        self._pending: deque[str] = deque()
        self._num_records = 0
        self._num_chars = 0
        self._has_changed = asyncio.Event()
        self._is_closed = False
        self._followed: set[asyncio.Task[None]] = set()

    def put(self, lines: list[str]) -> None:
        """Add records. Whoever is too far behind loses all that waits, and is told so."""
        text = ",".join(lines)
        self._pending.append(text)
        self._num_records += len(lines)
        self._num_chars += len(text)
        if self._num_chars > self._max_pending_chars:
            self.num_lost += self._num_records
            self._empty()
        self._has_changed.set()

    async def next(self) -> str | None:
        """Everything that waits, as records with commas between; "" after a while without any, None at the end."""
        try:
            async with asyncio.timeout(PING_EVERY_S):
                while not (self._pending or self.num_lost or self._is_closed):
                    self._has_changed.clear()
                    await self._has_changed.wait()
        except TimeoutError:
            return ""
        if self._is_closed:
            return None
        text = ",".join(self._pending)
        self._empty()
        return text

    def follow(self, request_id: str, generation: Generation) -> None:
        """Show the outputs of a request that was sent from this page; it ends when the page is gone."""
        task = asyncio.ensure_future(self._relay(request_id, generation))
        self._followed.add(task)
        task.add_done_callback(self._followed.discard)

    def close(self) -> None:
        self._is_closed = True
        self._has_changed.set()
        for task in self._followed:
            task.cancel()

    async def _relay(self, request_id: str, generation: Generation) -> None:
        try:
            async for _, output in generation:
                record = {"kind": "text", "id": request_id, "text": output.text, "tokens": output.token_ids}
                self.put([to_line(record)])
        except ApiError as error:
            detail = {"status": error.status, "code": error.code, "message": error.message}
            self.put([to_line({"kind": "error", "id": request_id, **detail})])
        finally:
            generation.close()

    def _empty(self) -> None:
        self._pending.clear()
        self._num_records = self._num_chars = 0


class LiveFeed:
    """All watchers of one engine. about: what the first record says of it (title, model)."""

    def __init__(self, engine: Engine, **about: Any) -> None:
        self._engine = engine
        self._about = about
        self._watchers: dict[str, Watcher] = {}  # id -> watcher
        self._tap: Tap | None = None
        self._encoder = Encoder(time.perf_counter())
        self._pump: asyncio.Task[None] | None = None

    @property
    def can_pause(self) -> bool:
        """An engine without a step loop (phase 1) has nothing to pause."""
        return hasattr(self._engine, "thread")

    @property
    def is_watched(self) -> bool:
        return bool(self._watchers)

    def watcher(self, watcher_id: str) -> Watcher:
        """Raises ApiError for one that is not there (any more)."""
        if (found := self._watchers.get(watcher_id)) is None:
            raise ApiError(409, "nobody watches under this id; open /events again", param="watcher", code="no_watcher")
        return found

    def join(self) -> Watcher:
        """Raises ApiError 503 where enough pages watch already."""
        if len(self._watchers) >= MAX_WATCHERS:
            raise unavailable(f"{MAX_WATCHERS} pages watch already; close one", 5.0, "too_many_watchers")
        watcher = Watcher()
        self._watchers[watcher.watcher_id] = watcher
        if self._tap is None:
            self._tap = Tap(self._engine)
            self._tap.open()
            self._pump = asyncio.ensure_future(self._run(self._tap))
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """The last one to go takes the pause along: nobody would be left to end it."""
        watcher.close()
        if self._watchers.pop(watcher.watcher_id, None) is not None and not self._watchers:
            self._stop()

    async def events(self, watcher: Watcher) -> AsyncIterator[bytes]:
        """Server-sent events, each a list of records; the first has the state as it is now."""
        yield sse_event([self._start(watcher)])
        while (text := await watcher.next()) is not None:
            if watcher.num_lost:
                count, watcher.num_lost = watcher.num_lost, 0
                yield sse_event([{"kind": "lost", "count": count}, self._start(watcher)])
            yield b"data: [" + text.encode() + b"]\n\n" if text else PING

    def set_pace(self, *, is_paused: bool, seconds_per_step: float) -> None:
        """Everybody sees that somebody has paused the engine. Raises ApiError where it cannot be."""
        self._thread().set_pace(is_paused=is_paused, seconds_per_step=seconds_per_step)
        for watcher in self._watchers.values():
            watcher.put([to_line({"kind": "pace", **self._pace()})])

    def step_once(self) -> None:
        self._thread().step_once()

    def close(self) -> None:
        """Send every page away; an endless stream would hold up the server's end."""
        for watcher in list(self._watchers.values()):
            self.leave(watcher)

    def _thread(self) -> Any:
        if not self.can_pause:
            raise ApiError(409, "this engine has no step loop to pause; phases from 2 on have", code="cannot_pause")
        return self._engine.thread  # type: ignore[attr-defined]

    def _pace(self) -> Record:
        if not self.can_pause:
            return {"is_paused": False, "seconds_per_step": 0.0}
        pace = self._thread().pace
        return {"is_paused": pace.is_paused, "seconds_per_step": pace.seconds_per_step}

    def _start(self, watcher: Watcher) -> Record:
        start = self._encoder.start(self._engine, **self._about)
        return start | {"watcher": watcher.watcher_id, "can_pause": self.can_pause, "pace": self._pace()}

    async def _run(self, tap: Tap) -> None:
        """While somebody watches: take what there is, write it down once, hand it to everyone."""
        try:
            while True:
                lines = [to_line(self._encoder.encode(raw)) for raw in tap.take()]
                if lines:
                    lines.append(to_line({"kind": "now", "at": self._encoder.now()}))
                    for watcher in self._watchers.values():
                        watcher.put(lines)
                await asyncio.sleep(BATCH_EVERY_S)
        except Exception:
            log.exception("the live page's feed broke; every page is sent away")
            self.close()

    def _stop(self) -> None:
        if self._tap is not None:
            self._tap.close()
            self._tap = None
        if self._pump is not None:
            self._pump.cancel()
            self._pump = None
        if self.can_pause:
            self._thread().set_pace()
