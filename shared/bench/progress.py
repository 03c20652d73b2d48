"""The line that shows how far a benchmark is. It is drawn between runs only: drawing would disturb what is timed.

In a log it is a line for each run.
"""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class ProgressLine:
    """`announce` says what comes next, and counts what came before it as done."""

    def __init__(self, console: Console, num_announcements: int) -> None:
        columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._progress = Progress(
            *columns, console=console, auto_refresh=False, disable=not console.is_terminal, transient=True
        )
        self._task = self._progress.add_task("", total=num_announcements, completed=-1)
        self._num_announced = 0

    def announce(self, text: str) -> None:
        if not self._progress.console.is_terminal:
            self._progress.console.print(text)
        self._progress.update(self._task, description=text, completed=self._num_announced, refresh=True)
        self._num_announced += 1

    def __enter__(self) -> "ProgressLine":
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._progress.stop()
