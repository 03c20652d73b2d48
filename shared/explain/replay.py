"""Serving a request once more, on an engine of its own, while everything its model computes is recorded."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

import torch

from shared.config import EngineConfig
from shared.explain.files import files_of, pick
from shared.explain.trace import Trace, tracing
from shared.input_processor import eos_token_ids
from shared.request import Request, SamplingParams
from shared.trace.recording import recorded

BuildEngine = Callable[[Any, EngineConfig], Any]
MakeModel = Callable[[], Any]
TRACED = "explained"  # the request id under which the request runs again


@dataclass(frozen=True, slots=True)
class Replay:
    """What came out. trace: of the request in question. files: role -> file of the engine's parts.

    block_size: tokens per K/V block, None where the engine has no blocks.
    """

    token_ids: list[int]
    finish_reason: str
    trace: Trace
    files: Mapping[str, str]
    block_size: int | None

    def files_of(self, *roles: str) -> tuple[str, ...]:
        return pick(self.files, roles)


@dataclass(frozen=True, slots=True)
class Case:
    """A request, its company, and how to build what serves it.

    prompts: those of all requests that were served together, in order; `row` is the one in question.
    """

    build_engine: BuildEngine
    make_model: MakeModel
    config: EngineConfig
    prompts: tuple[tuple[int, ...], ...]
    row: int
    ignore_eos: bool

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.prompts[self.row]

    @property
    def neighbours(self) -> list[int]:
        """The rows beside the one in question."""
        return [row for row in range(len(self.prompts)) if row != self.row]

    def alone(self) -> "Case":
        return replace(self, prompts=(self.prompt,), row=0)

    def beside(self, neighbour: int) -> "Case":
        """The request with one of its neighbours only, in the same order."""
        rows = sorted((self.row, neighbour))
        return replace(self, prompts=tuple(self.prompts[row] for row in rows), row=rows.index(self.row))

    def with_hf_forward(self) -> "Case":
        return replace(self, config=replace(self.config, forward="hf"))

    def in_float32(self) -> "Case":
        return replace(self, make_model=lambda: self.make_model().to(torch.float32))

    def eos_token_ids(self, model: Any) -> frozenset[int]:
        """The ids that end the output, for the engine and for the reference."""
        return frozenset() if self.ignore_eos else eos_token_ids(model)

    def serve(self, max_tokens: int, record: str | None = None, title: str = "") -> Replay:
        """Build an engine over a fresh model, serve all prompts at once, close it. Raises what the engine raises.

        record: a file to write down what the engine does. Its times are those of an engine whose values are kept.
        """
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=self.ignore_eos)
        names = [TRACED if row == self.row else None for row in range(len(self.prompts))]
        engine = self.build_engine(self.make_model(), self.config)
        try:
            with tracing(engine, TRACED) as trace, recorded(engine, record, title=title):
                outputs = engine.generate([Request(prompt, params, name) for prompt, name in zip(self.prompts, names)])
        finally:
            engine.close()
        output = outputs[self.row]
        block_size = None if engine.stats().kv_blocks_total is None else self.config.kv_block_size
        return Replay(output.token_ids, output.finish_reason, trace, files_of(self.build_engine, engine), block_size)


def first_difference(expected: Seq[int], got: Seq[int]) -> int | None:
    """The first index at which two token lists differ, or where the shorter one ends; None if they are equal."""
    for step, (wanted, token) in enumerate(zip(expected, got)):
        if wanted != token:
            return step
    return None if len(expected) == len(got) else min(len(expected), len(got))
