"""What a server allows: its limits, its key, its names. Torch-free."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.config import check_count, check_real
from shared.errors import InvalidConfig

COUNTS = ("max_body_bytes", "max_sequences", "default_chat_tokens", "window")
SECONDS = ("body_timeout_s", "stuck_step_s", "slo_ttft_s", "slo_tpot_s")
HOST_NAME = re.compile(r"[A-Za-z0-9._-]+|\*")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """`create_app` takes each of these by keyword.

    max_body_bytes: largest request body; body_timeout_s: seconds in which it has to arrive.
    max_sequences: most completions one HTTP request may ask for, prompts times n.
    stuck_step_s: seconds that one step of the engine may take before /health calls it stuck.
    default_chat_tokens: a chat's max_tokens where it names none (the other routes: SamplingParams' default).
    api_key: if given, every route but /health wants `Authorization: Bearer <api_key>`.
    allowed_hosts: bare names under which the server may be reached, beside localhost and addresses; "*" is any.
    slo_ttft_s, slo_tpot_s: seconds that /metrics/summary holds requests against.
    live_page: serve the page that shows the engine at work; None: only to connections that arrive over loopback.
    title: what the page calls this engine.
    window: how many of the last values the summary's percentiles are taken over.

    The limits on prompt, queue, n, stop strings and logprobs are the engine's own.
    Raises InvalidConfig, which names the setting.
    """

    max_body_bytes: int = 1 << 20
    body_timeout_s: float = 10.0
    stuck_step_s: float = 60.0
    max_sequences: int = 128
    default_chat_tokens: int = 1024
    api_key: str | None = field(default=None, repr=False)
    allowed_hosts: Sequence[str] = ()
    slo_ttft_s: float = 2.0
    slo_tpot_s: float = 0.1
    window: int = 4096
    live_page: bool | None = None
    title: str = "PageServe"

    def __post_init__(self) -> None:
        self._check_hosts()
        for name in COUNTS:
            check_count(name, getattr(self, name), low=1)
        for name in SECONDS:
            check_real(name, getattr(self, name))
        if self.live_page not in (True, False, None):
            raise InvalidConfig(f"live_page: must be true, false or nothing, got {self.live_page!r}")
        if self.api_key is not None:
            self._check_key(self.api_key)

    def _check_key(self, key: str) -> None:
        if not isinstance(key, str) or key != key.strip() or not key.isprintable():
            raise InvalidConfig("api_key: must be printable text without spaces around it, to fit into a header")
        if not key:
            raise InvalidConfig("api_key: is empty; leave it out to serve without a key")

    def _check_hosts(self) -> None:
        """A name that no Host header can match would lock its clients out without a word."""
        hosts = self.allowed_hosts
        wrong = [hosts] if isinstance(hosts, str) else [name for name in hosts if not _is_host_name(name)]
        if wrong:
            how = 'bare names such as models.example.org, without scheme or port, or "*"; addresses need no entry'
            raise InvalidConfig(f"allowed_hosts: must be a list of {how}; got {wrong[0]!r}")


def _is_host_name(name: object) -> bool:
    return isinstance(name, str) and HOST_NAME.fullmatch(name) is not None
