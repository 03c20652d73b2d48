"""A line that is drawn again and again on a terminal; in a log, the first and the last of each run."""

from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text


class LiveLine:
    """`show` replaces the line; `keep` leaves it standing and goes on below."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(Text(""), console=console, auto_refresh=False, transient=True)

    def show(self, text: str) -> None:
        if self._console.is_terminal:
            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)

    def keep(self, text: str) -> None:
        self.show("")
        self._console.print(text)

    def __enter__(self) -> "LiveLine":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._live.stop()
