"""What is said to a person while a model is being set up."""

import sys
from collections.abc import Callable

Report = Callable[[str], None]  # gets one line for each thing that takes long
MAX_REASON_CHARS = 300


def say(message: str) -> None:
    """A line on stderr, where it does not mix with what a command prints for another program."""
    print(message, file=sys.stderr, flush=True)


def one_line(error: BaseException) -> str:
    """An error's message without its line breaks and what a terminal would obey, cut to a readable length."""
    text = "".join(filter(str.isprintable, " ".join(str(error).split()))) or type(error).__name__
    return text if len(text) <= MAX_REASON_CHARS else text[:MAX_REASON_CHARS] + " ..."
