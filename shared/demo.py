"""Eight chat prompts arrive together: phase 1, then the newest phase, on one clock.

python -m shared.demo
python -m shared.demo --phases 1,2 --max-tokens 32
"""

import argparse
import os
import sys
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shared.cli_generate import encoder
from shared.config import EngineConfig
from shared.errors import SetupError
from shared.events import Event
from shared.merged_outputs import merged_outputs
from shared.model_loader import DEVICES, DTYPES, load_model
from shared.output import RequestMetrics
from shared.prompts import Prompt, prompts_from_texts
from shared.registry import PHASES, Phase, newest_phase, phase_by_number
from shared.request import Request, SamplingParams
from shared.show_config import config_rows, print_config
from shared.timeline import LEGEND, draw, timelines
from shared.trace.recording import recorded

QUESTIONS = [
    "Why is the sky blue?",
    "Give me three tips for a job interview.",
    "What is a prime number?",
    "Write two sentences about the sea.",
    "How does a bicycle stay upright?",
    "Name the planets of the solar system.",
    "What is the capital of Japan, and what is it known for?",
    "Explain what a queue is to a child.",
]


@dataclass(frozen=True, slots=True)
class Showing:
    """What one phase did with the prompts; times in seconds of time.perf_counter."""

    phase: Phase
    metrics: list[RequestMetrics]
    events: list[Event]

    @property
    def start(self) -> float:
        return min(m.arrival_time for m in self.metrics)

    @property
    def total_s(self) -> float:
        return max(m.finish_time or 0.0 for m in self.metrics) - self.start

    @property
    def tokens_per_s(self) -> float:
        return sum(m.num_output_tokens for m in self.metrics) / self.total_s


def main(argv: Seq[str] | None = None) -> None:
    from shared.cli import exit_code

    args = _parser().parse_args(argv)
    sys.exit(exit_code(lambda: run(args)))


def run(args: argparse.Namespace) -> int:
    console = Console(highlight=False)
    phases = _phases(args.phases)
    showings = [show_phase(phase, args, console) for phase in phases]
    longest = max(showing.total_s for showing in showings)
    for showing in showings:
        console.print(report(showing, longest, console.width))
    console.print(Text(conclusion(showings)))
    return 0


def show_phase(phase: Phase, args: argparse.Namespace, console: Console) -> Showing:
    """Serve the prompts on one phase, with a model of its own, and show the text as it comes."""
    with console.status(f"loading the model for {phase.label} ..."):
        loaded = load_model(args.model, dtype=args.dtype, device=args.device)
        config = EngineConfig.from_env()
        rows = list(config_rows(config, loaded, has_pool=phase.has_pool)) if args.show_config else []
        prompts = _prompts(loaded.tokenizer, args.max_tokens)
        engine = phase.build_engine()(loaded.model, config, loaded.tokenizer)
        if rows:
            print_config(rows, phase, getattr(engine, "implementation", {}))
    console.rule(f"[bold]{phase.label}[/]: {len(prompts)} prompts arrive together", align="left")
    try:
        _warm_up(engine, prompts[0])
        about = {"phase": phase.number, "title": phase.label, "model": loaded.name}
        with recorded(engine, _record_path(args.record, phase), **about), engine.events.recording() as events:
            metrics = _serve(engine, prompts, console)
        return Showing(phase, metrics, events)
    finally:
        engine.close()


def _serve(engine: Any, prompts: list[Prompt], console: Console) -> list[RequestMetrics]:
    """All prompts at once; each answer's last line is on the screen while it grows."""
    texts = ["" for _ in prompts]
    metrics: dict[int, RequestMetrics] = {}
    with Live(console=console, refresh_per_second=12, transient=False) as live:
        for position, output in merged_outputs(engine, [prompt.request for prompt in prompts]):
            texts[position] += output.text
            if output.metrics is not None:
                metrics[position] = output.metrics
            live.update(_screen(prompts, texts))
    console.print()
    return [metrics[position] for position in range(len(prompts))]


def _screen(prompts: list[Prompt], texts: list[str]) -> Group:
    """Two lines per prompt: the question, and the end of the answer so far."""
    lines: list[Text] = []
    for prompt, text in zip(prompts, texts):
        lines.append(Text(prompt.text, style="bold", no_wrap=True, overflow="ellipsis"))
        answer = " ".join(text.split()) or "(waiting)"
        lines.append(Text("  " + (answer if len(answer) <= 70 else "…" + answer[-69:]), no_wrap=True))
    return Group(*lines)


def report(showing: Showing, clock_s: float, width: int) -> Group:
    """Figures per request, and when it was queued, prefilled and decoded on a clock that all phases share."""
    table = Table(title=f"{showing.phase.label}   ({LEGEND})", title_justify="left", box=None, pad_edge=False)
    for heading in ("request", "first token", "per token", "total"):
        table.add_column(heading, justify="right")
    cells = max(20, min(60, width - 50))
    table.add_column(f"0 s {'─' * (cells - 12)} {clock_s:.1f} s", no_wrap=True)
    for number, (metrics, line) in enumerate(zip(showing.metrics, timelines(showing.events)), 1):
        picture = draw(line, start=showing.start, seconds_per_cell=clock_s / cells, width=cells)
        table.add_row(
            str(number), _seconds(metrics.ttft_s), _milliseconds(metrics.tpot_s), _seconds(metrics.e2e_s), picture
        )
    return Group(Text(), table, Text(summary(showing)))


def summary(showing: Showing) -> str:
    num_tokens = sum(m.num_output_tokens for m in showing.metrics)
    return (
        f"all done in {showing.total_s:.1f} s: {num_tokens} tokens, {showing.tokens_per_s:.1f} tokens/s, "
        f"first token after {mean(_ttfts(showing)):.2f} s on average, {max(_ttfts(showing)):.2f} s at worst"
    )


def conclusion(showings: list[Showing]) -> str:
    """The first phase against the last, for better and worse; one run, so no more than an impression."""
    first, last = showings[0], showings[-1]
    if first is last:
        return ""
    ttft = median(_ttfts(first)) / median(_ttfts(last))
    throughput = last.tokens_per_s / first.tokens_per_s
    return (
        f"\nphase {last.phase.number} against phase {first.phase.number}: the median wait for a first token is "
        f"{ttft:.1f}x shorter, throughput is {throughput:.2f}x. "
        "One run each: `python -m shared.bench offline` measures."
    )


def _ttfts(showing: Showing) -> list[float]:
    return [m.ttft_s for m in showing.metrics if m.ttft_s is not None]


def _warm_up(engine: Any, prompt: Prompt) -> None:
    """The first pass through a model allocates and tunes; that is not what is shown.

    Backwards, so that no prefix cache knows the prompt afterwards.
    """
    engine.generate([Request(prompt.request.prompt_token_ids[::-1], SamplingParams(max_tokens=2))])


def _prompts(tokenizer: Any, max_tokens: int) -> list[Prompt]:
    encode = encoder(tokenizer, chat=False, raw=False)
    return prompts_from_texts(QUESTIONS, encode, {"max_tokens": max_tokens})


def _phases(numbers: str | None) -> list[Phase]:
    """Raises SetupError for a number that is none, or has no engine."""
    if numbers is None:
        return [PHASES[0], newest_phase()]
    try:
        return [phase_by_number(int(number)) for number in numbers.split(",")]
    except ValueError:
        raise SetupError(f"--phases takes numbers with commas between, like 1,2; got {numbers!r}") from None


def _record_path(path: str | None, phase: Phase) -> str | None:
    """A file for each engine: run.jsonl becomes run-phase01.jsonl."""
    if path is None:
        return None
    stem, suffix = os.path.splitext(path)
    return f"{stem}-phase{phase.number:02d}{suffix}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:.0f} ms"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m shared.demo",
        description="Serve eight chat prompts that arrive together, phase against phase, and show who waited how long.",
    )
    engines = ", ".join(str(phase.number) for phase in PHASES)
    parser.add_argument(
        "--phases", metavar="1,2", help=f"which engines, in order (default: first and newest of {engines})"
    )
    parser.add_argument("--max-tokens", type=int, default=48, metavar="N", help="most tokens per answer (default: 48)")
    parser.add_argument("--model", metavar="M", help="a folder, a .gguf file or a hub id (default: the default model)")
    parser.add_argument("--dtype", choices=DTYPES, default="auto")
    parser.add_argument("--device", choices=DEVICES, default="auto")
    parser.add_argument(
        "--record", metavar="FILE", help="record each engine; run.jsonl becomes run-phase01.jsonl and so on"
    )
    parser.add_argument("--show-config", action="store_true", help="print every resolved setting with its reason, too")
    return parser


if __name__ == "__main__":
    main()
