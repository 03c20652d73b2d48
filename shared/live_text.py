"""Text on a terminal while it is being generated."""

from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.rule import Rule
from rich.text import Text

from shared.merged_outputs import merged_outputs
from shared.prompts import Prompt


def stream_one(engine: Any, prompts: list[Prompt], out: TextIO) -> None:
    """The answer to a single prompt, piece by piece."""
    with engine.streams([prompts[0].request], is_patient=True)[0] as stream:
        try:
            for output in stream:
                out.write(output.text)
                out.flush()
        finally:
            out.write("\n")


def stream_together(engine: Any, prompts: list[Prompt], out: TextIO) -> None:
    """Every answer grows on the screen at once. Where `out` is no terminal, the whole of it is printed at the end."""
    console = Console(file=out, highlight=False)
    texts = ["" for _ in prompts]
    with Live(console=console, refresh_per_second=12, transient=True, vertical_overflow="crop") as live:
        for position, output in merged_outputs(engine, [prompt.request for prompt in prompts]):
            texts[position] += output.text
            if console.is_terminal:
                live.update(_screen(prompts, texts, lines=max(2, console.height // len(prompts) - 1)))
    for prompt, text in zip(prompts, texts):
        console.print(Rule(Text(_title(prompt)), align="left"))
        console.print(Text(text))


def _screen(prompts: list[Prompt], texts: list[str], lines: int) -> Group:
    """The last few lines of every answer, so that all of them fit."""
    parts: list[Any] = []
    for prompt, text in zip(prompts, texts):
        parts.append(Rule(Text(_title(prompt)), align="left"))
        parts.append(Text("\n".join(text.splitlines()[-lines:]), no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def _title(prompt: Prompt) -> str:
    first_line = prompt.text.strip().splitlines()[0] if prompt.text.strip() else "(token ids)"
    return first_line if len(first_line) <= 70 else first_line[:69] + "…"
