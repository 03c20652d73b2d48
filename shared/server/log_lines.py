"""What is logged, so that nobody who is written about can write lines, or to the terminal."""

import logging
import sys


class LineFormatter(logging.Formatter):
    """One record begins one line; what follows it (a traceback, a message's own line breaks) is indented."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n    ".join(printable(line) for line in super().format(record).split("\n"))


def printable(text: str) -> str:
    """The same with what a terminal or an editor would obey escaped: colours, cursors, changes of direction."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def log_to_stderr() -> None:
    """From INFO on, the server's and uvicorn's."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
