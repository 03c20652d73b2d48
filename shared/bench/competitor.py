"""What the rounds of a benchmark know of those that run in them: engines of this repository, and peers. Torch-free."""

from collections.abc import Sequence as Seq
from types import TracebackType
from typing import Protocol

from shared.bench.latency import Served
from shared.bench.systems import ModelChoice, SystemInfo
from shared.request import Request


class Row(Protocol):
    """What a competitor is called. code: the file to begin with when asking what its speed depends on."""

    @property
    def name(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def model(self) -> ModelChoice: ...
    @property
    def code(self) -> str: ...


class Competitor(Protocol):
    """A system that is loaded and waits."""

    info: SystemInfo

    @property
    def spec(self) -> Row: ...

    def serve(self, requests: Seq[Request]) -> tuple[Served, int]:
        """What came of the requests, and the most memory it had resident meanwhile, in bytes."""

    def __enter__(self) -> "Competitor": ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None: ...
