"""The line that shows how far a benchmark is. It is drawn between runs only: drawing would disturb what is timed.

In a log it is a line for each run.
"""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

SOON = 3  # announcements after which there is something to estimate from


class ProgressLine:
    """`announce` says what comes next, and counts what came before it as done."""

    def __init__(self, console: Console, num_announcements: int) -> None:
        columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._progress = Progress(
            *columns, console=console, auto_refresh=False, disable=not console.is_terminal, transient=True
        )
        self._task = self._progress.add_task("", total=num_announcements, completed=-1)
        self._num_expected = num_announcements
        self._num_announced = 0
        self._started = time.monotonic()

    def announce(self, text: str) -> None:
        left = time_left(self._num_announced, self._num_expected, time.monotonic() - self._started)
        if not self._progress.console.is_terminal:
            self._progress.console.print(f"[{self._num_announced + 1}/{self._num_expected}{left}] {text}")
        self._progress.update(self._task, description=text + left, completed=self._num_announced, refresh=True)
        self._num_announced += 1

    def __enter__(self) -> "ProgressLine":
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._progress.stop()


def time_left(num_done: int, num_expected: int, seconds: float) -> str:
    """As if all took equally long: what comes first (loading, warm-up) is short, so this begins too low."""
    if num_done < SOON or num_done >= num_expected:
        return ""
    left = seconds / num_done * (num_expected - num_done)
    return f", about {left / 60:.0f} min left" if left >= 90 else f", about {left:.0f} s left"
