"""What every driver does: load its peer, then serve, in JSON lines over standard input and output.

    start   the first argument: {"model": folder, "dtype": "float32", "num_threads": 2}
    ready   {"versions": {...}, "settings": {...}, "implementation": {...}}
    to do   {"requests": [{"prompt_token_ids": [5, 9], "max_tokens": 8}, ...]}
    done    {"seconds": 1.5, "answers": [{"token_ids": [...], "token_times": [...]}, ...]}
    failed  {"failed": "what went wrong"}, in place of ready or done

Times are seconds since the requests were handed to the peer. It knows no peer, and needs the standard library only.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Options:
    """model: a folder in Hugging Face's layout, or what the peer makes of it. dtype: float32 or bfloat16.

    is_eager: without compiling, for a peer that otherwise does.
    """

    model: str
    dtype: str
    num_threads: int
    is_eager: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """Greedy, and exactly `max_tokens` tokens."""

    prompt_token_ids: list[int]
    max_tokens: int


@dataclass(slots=True)
class Transcript:
    """The tokens of each job as they come out. The clock starts when it is made."""

    jobs: list[Job]
    started: float = field(default_factory=time.perf_counter)
    token_ids: list[list[int]] = field(init=False)
    token_times: list[list[float]] = field(init=False)

    def __post_init__(self) -> None:
        self.token_ids = [[] for _ in self.jobs]
        self.token_times = [[] for _ in self.jobs]

    def note(self, index: int, token_ids: list[int]) -> None:
        """New tokens of a job have come out, now."""
        moment = time.perf_counter() - self.started
        self.token_ids[index] += token_ids
        self.token_times[index] += [moment] * len(token_ids)

    def as_message(self) -> dict[str, Any]:
        answers = [{"token_ids": ids, "token_times": times} for ids, times in zip(self.token_ids, self.token_times)]
        return {"seconds": time.perf_counter() - self.started, "answers": answers}


class Peer(Protocol):
    """packages: whose versions count. settings: those that explain its speed. implementation: what is behind names."""

    @property
    def packages(self) -> Sequence[str]: ...
    @property
    def settings(self) -> Mapping[str, int]: ...
    @property
    def implementation(self) -> Mapping[str, str]: ...

    def forget(self) -> None:
        """Drop cached prefixes, so that every run starts cold. Not timed."""

    def serve(self, transcript: Transcript) -> None:
        """Hand all jobs over, then note tokens as they come, to the last."""


def main(load: Callable[[Options], Peer]) -> None:
    """Speak the protocol until standard input ends."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a peer prints goes to standard error

    def tell(message: Mapping[str, Any]) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    try:
        peer = load(Options(**json.loads(sys.argv[1])))
        versions = {name: version(name) for name in peer.packages}
        tell({"versions": versions, "settings": dict(peer.settings), "implementation": dict(peer.implementation)})
        for line in sys.stdin:
            tell(_serve(peer, [Job(**job) for job in json.loads(line)["requests"]]))
    except Exception as error:
        tell({"failed": f"{type(error).__name__}: {error}"})
        raise


def _serve(peer: Peer, jobs: list[Job]) -> dict[str, Any]:
    peer.forget()
    transcript = Transcript(jobs)
    peer.serve(transcript)
    return transcript.as_message()
