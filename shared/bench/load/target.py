"""Whom to ask, and how: the body of a request in OpenAI's form."""

import json
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

import httpx

from shared.errors import SetupError

Api = Literal["completions", "chat"]
PATHS: Mapping[str, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
ONE_STREAM: Mapping[str, Any] = {"stream": True, "n": 1}
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a workload: text, or token ids (completions only), and the most tokens to answer with."""

    prompt: str | Seq[int]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Target:
    """A server. url: up to where /v1 begins. model: the id it knows. api_key: sent as a bearer token.

    has_token_ids: ask for `return_token_ids`, which vLLM and PageServe know. extra: more fields of the body.
    timeout_s: for a whole request. Raises SetupError for a URL that is none, and for what cannot be sent.
    """

    url: str
    model: str = "default"
    api: Api = "completions"
    api_key: str | None = None
    has_token_ids: bool = False
    ignore_eos: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        parts = _checked_parts(self.url)
        if parts.username or parts.password:
            raise SetupError("--url holds a user or a password, which would be recorded: use --api-key-env")
        if self.api_key is not None and not _fits_a_header(self.api_key):
            raise SetupError("--api-key-env: the key must be visible ASCII without spaces around it, to fit a header")
        _check_sendable("--model", self.model)
        _check_sendable("--extra-body", dict(self.extra))
        _check_is_measurable(self.extra)

    @property
    def base(self) -> str:
        return self.url.rstrip("/").removesuffix("/v1")

    @property
    def endpoint(self) -> str:
        return self.base + PATHS[self.api]

    @property
    def is_local(self) -> bool:
        """On this machine, so no proxy is asked."""
        return urlsplit(self.url).hostname in LOOPBACK

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}

    def body(self, ask: Ask) -> dict[str, Any]:
        """Greedy and streamed, with the usage at the end. Raises SetupError for token ids as a chat."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": ask.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.api == "completions":
            body["prompt"] = ask.prompt if isinstance(ask.prompt, str) else list(ask.prompt)
        elif isinstance(ask.prompt, str):
            body["messages"] = [{"role": "user", "content": ask.prompt}]
        else:
            raise SetupError("a chat takes text: choose another --workload than tokens, or --api completions")
        if self.has_token_ids:
            body["return_token_ids"] = True
        if self.ignore_eos:
            body["ignore_eos"] = True
        return body | dict(self.extra)


def parse_extra(text: str) -> dict[str, Any]:
    """The value of --extra-body. Raises SetupError."""
    try:
        extra = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SetupError(f"--extra-body is not JSON ({error}): write something like '{{\"top_k\": 1}}'") from None
    if not isinstance(extra, dict):
        raise SetupError(f"--extra-body must be a JSON object, got {text}")
    return extra


def _check_is_measurable(extra: Mapping[str, Any]) -> None:
    """Times are those of one streamed completion."""
    for name, value in ONE_STREAM.items():
        if name in extra and extra[name] != value:
            raise SetupError(f"--extra-body: {name} has to stay {json.dumps(value)}, or there is nothing to time")


def _checked_parts(url: str) -> SplitResult:
    """Checked by all who will read it: the port's range, the host's name as DNS takes it, and what the client takes."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        is_address = is_address and not (parts.query or parts.fragment)  # a path could not follow
        (parts.hostname or "").encode("idna")
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        is_address = False
    if not is_address:
        raise SetupError(f"--url {url!r} is no address of a server: write http://127.0.0.1:8001")
    return parts


def _fits_a_header(key: str) -> bool:
    return bool(key) and key.isascii() and key.isprintable() and key == key.strip()


def _check_sendable(option: str, value: Any) -> None:
    """NaN, infinity and half a surrogate pair are read from JSON and cannot be written."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise SetupError(f"{option} cannot be sent as JSON ({error}): leave that out") from None
