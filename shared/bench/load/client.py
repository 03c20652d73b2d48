"""One streaming request, stamped as its bytes arrive."""

import json
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from shared.bench.load.observation import Observation, Piece
from shared.bench.load.sse import SseParser
from shared.bench.load.target import Ask, Target

Clock = Callable[[], float]  # seconds since the run began
MOST_TOKENS = 1_000_000  # of one answer; what claims more is no count
UNKNOWN_SHAPE = "event of an unknown shape"
TEXT_FIELDS = ("content", "reasoning_content", "reasoning")  # of a chat's delta: thinking is output, too
BAD_ENDS = ("error", "abort", "timeout")  # finish reasons of answers that are not whole


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
    except (httpx.HTTPError, ValueError, LookupError, TypeError, RecursionError):
        return None


async def observe(client: httpx.AsyncClient, target: Target, ask: Ask, seen: Observation, clock: Clock) -> None:
    """Send the request and write into `seen` what comes of it. Raises nothing that a server can cause."""
    seen.sent = clock()
    try:
        await _stream(client, target, ask, seen, clock)
    except BadAnswer as error:
        seen.failure = str(error)
    except httpx.ConnectError as error:
        seen.failure = _why_not_connected(error)
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
        self._has_running_usage = True  # until a piece comes without one: then a usage is the total

    def read(self, data: str, now: float) -> None:
        """Raises BadAnswer for what is no event of OpenAI's."""
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            raise BadAnswer("event is not JSON") from None
        if not isinstance(event, dict):
            raise BadAnswer("event is not an object")
        if event.get("error") or event.get("object") == "error":
            raise BadAnswer("error in the stream")
        usage = _count(_object(event.get("usage")).get("completion_tokens"))
        choices = event.get("choices") or []
        if not isinstance(choices, list):
            raise BadAnswer(UNKNOWN_SHAPE)
        if choices:
            self._read_choice(_object(choices[0]), usage, now)
        if usage is not None:
            self._seen.usage_tokens = self._usage_before = usage

    def _read_choice(self, choice: dict[str, Any], usage: int | None, now: float) -> None:
        delta = _object(choice.get("delta"))
        text = choice.get("text") or any(delta.get(name) for name in TEXT_FIELDS)
        num_tokens = self._num_tokens(choice, usage)
        if text or num_tokens:
            self._seen.pieces.append(Piece(now, num_tokens))
            self._has_running_usage = self._has_running_usage and usage is not None
        if (reason := choice.get("finish_reason")) in BAD_ENDS:
            raise BadAnswer(f"ended with {reason!r}")
        self.has_finish_reason = self.has_finish_reason or reason is not None

    def _num_tokens(self, choice: dict[str, Any], usage: int | None) -> int | None:
        """What this event brought, where that can be told."""
        if isinstance(ids := choice.get("token_ids"), list):
            return len(ids)
        if usage is None or usage < self._usage_before or not self._has_running_usage:
            return None
        return usage - self._usage_before


def _object(value: Any) -> dict[str, Any]:
    """A field that is an object, or is not there."""
    if value is not None and not isinstance(value, dict):
        raise BadAnswer(UNKNOWN_SHAPE)
    return value or {}


def _count(value: Any) -> int | None:
    """None for what is no number of tokens: such a server does not tell."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS
    return value if is_count else None


def _why_not_connected(error: BaseException) -> str:
    """What is at the root: this machine may be the one that cannot connect."""
    for cause in _causes(error):
        if isinstance(cause, socket.gaierror):
            return "no such host"
        if isinstance(cause, ssl.SSLError):
            return "no TLS connection"
        if isinstance(cause, OSError) and cause.errno is not None:
            return os.strerror(cause.errno).lower()
    return "no connection"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what it came from, and so on; of several at once (a host with several addresses), the first."""
    while error is not None:
        yield error
        group = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
        error = group[0] if group else error.__cause__ or error.__context__
