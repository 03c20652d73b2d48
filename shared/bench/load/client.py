"""One streaming request, stamped as its bytes arrive."""

import json
from collections.abc import Callable
from typing import Any

import httpx

from shared.bench.load.observation import Observation, Piece
from shared.bench.load.sse import SseParser
from shared.bench.load.target import Ask, Target

Clock = Callable[[], float]  # seconds since the run began


class BadAnswer(Exception):
    """The server answered, and not with a whole stream; the message is short, so that it groups."""


def make_client(target: Target) -> httpx.AsyncClient:
    """As many connections as there are requests: a pool's limit would be a queue that nobody sees."""
    return httpx.AsyncClient(
        headers=target.headers,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        timeout=None,
        trust_env=not target.is_local,
    )


async def first_model(client: httpx.AsyncClient, target: Target) -> str | None:
    """The id of the first model that the server lists; None if it lists none, or does not answer."""
    try:
        response = await client.get(f"{target.base}/v1/models", timeout=10.0)
        return str(response.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return None


async def observe(client: httpx.AsyncClient, target: Target, ask: Ask, seen: Observation, clock: Clock) -> None:
    """Send the request and write into `seen` what comes of it. Raises nothing that a server can cause."""
    seen.sent = clock()
    try:
        await _stream(client, target, ask, seen, clock)
    except BadAnswer as error:
        seen.failure = str(error)
    except httpx.ConnectError:
        seen.failure = "connection refused"
    except httpx.HTTPError as error:
        seen.failure = f"connection broken ({type(error).__name__})"
    seen.ended = clock()


async def _stream(client: httpx.AsyncClient, target: Target, ask: Ask, seen: Observation, clock: Clock) -> None:
    async with client.stream("POST", target.endpoint, json=target.body(ask)) as response:
        if response.status_code != 200:
            raise BadAnswer(f"HTTP {response.status_code}")
        parser, reader, is_done = SseParser(), _EventReader(seen), False
        async for chunk in response.aiter_bytes():
            now = clock()
            for data in parser.feed(chunk):
                is_done = is_done or data.strip() == "[DONE]"
                if not is_done:
                    reader.read(data, now)
        if not (is_done or reader.has_finish_reason):
            raise BadAnswer("stream ended early")


class _EventReader:
    """What the events of one stream say, written into its observation."""

    def __init__(self, seen: Observation) -> None:
        self.has_finish_reason = False
        self._seen = seen
        self._usage_before = 0

    def read(self, data: str, now: float) -> None:
        try:
            event = json.loads(data)
        except json.JSONDecodeError:
            raise BadAnswer("event is not JSON") from None
        if not isinstance(event, dict):
            raise BadAnswer("event is not an object")
        if event.get("error"):
            raise BadAnswer("error in the stream")
        usage = (event.get("usage") or {}).get("completion_tokens")
        choice: dict[str, Any] = next(iter(event.get("choices") or []), {})
        self.has_finish_reason = self.has_finish_reason or choice.get("finish_reason") is not None
        self._note_piece(choice, usage, now)
        if usage is not None:
            self._seen.usage_tokens = self._usage_before = int(usage)

    def _note_piece(self, choice: dict[str, Any], usage: int | None, now: float) -> None:
        text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        ids = choice.get("token_ids")
        num_tokens = len(ids) if isinstance(ids, list) else None
        if num_tokens is None and usage is not None and choice:  # the counts so far, on every event
            num_tokens = int(usage) - self._usage_before
        if text or num_tokens:
            self._seen.pieces.append(Piece(now, num_tokens))
