"""What every notebook needs: a fresh model, an engine of a phase, the oracle, and predictions that are kept honest."""

import hashlib
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.config import EngineConfig
from shared.events import Event
from shared.registry import phase_by_number
from shared.request import Request, SamplingParams
from shared.step_record import StepRecord, watch
from shared.trace.recording import recorded

RUNS = ("chunk", "decode")  # events that a row of a plan was run
PROMPTS = [[5, 17, 33, 8, 21, 40, 11, 3], [6, 18, 34, 9], [7, 19, 35, 10, 23, 42], [9, 2, 31]]


def fresh_model(name: str = "tiny") -> Any:
    """ "tiny": two layers with random weights, in double precision. "default", or whatever --model takes:
    a real one, in single precision. Fresh, since an engine owns its model."""
    if name == "tiny":
        from shared.tiny_models import tiny_llama

        return tiny_llama()
    from shared.model_loader import load_model

    return load_model(None if name == "default" else name, dtype="float32", device="cpu", load_tokenizer=False).model


def build(phase: int, model: Any, **settings: Any) -> Any:
    """The engine of a phase. Settings are those of EngineConfig."""
    return phase_by_number(phase).build_engine()(model, EngineConfig(**settings))


def ask(prompt: Seq[int], max_tokens: int, **params: Any) -> Request:
    """A greedy request that runs to its full length, whatever it says."""
    return Request(list(prompt), SamplingParams(max_tokens=max_tokens, **{"ignore_eos": True} | params))


def tokens_of(outputs: Seq[Any]) -> list[list[int]]:
    return [output.token_ids for output in outputs]


def oracle(model: Any, requests: Seq[Request]) -> list[list[int]]:
    """What Hugging Face's generate() says to each, alone. The model must not be an engine's."""
    from shared.reference import greedy_reference

    return [greedy_reference(model, r.prompt_token_ids, r.params.max_tokens) for r in requests]


def seal(value: object) -> str:
    """A short digest of an answer, to compare with without reading it."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:8]


def predicted(mine: object, sealed: str) -> str:
    """Whether a prediction is right, without saying what would be."""
    if mine is None or (isinstance(mine, list | tuple) and None in mine):
        return "No prediction yet. Fill in the line above and run this cell again; a wrong one teaches most."
    return "Right." if seal(mine) == sealed else f"Not {mine!r}. Run the next cells and find out why."


@dataclass(frozen=True, slots=True)
class Played:
    """What an engine did with some requests. records: one per step; phase 1 has no steps, and none of them."""

    outputs: list[Any]
    events: list[Event]
    records: list[StepRecord]
    stats: Any
    is_packed: bool

    @property
    def tokens(self) -> list[list[int]]:
        return tokens_of(self.outputs)

    @property
    def num_steps(self) -> int:
        return max(event.step for event in self.events)

    @property
    def num_passes(self) -> int:
        """Forward passes of the model: one per row of a plan, or one per step where rows are packed (phase 8 on)."""
        return self.num_steps if self.is_packed else sum(event.kind in RUNS for event in self.events)

    def passes_to_first_token(self) -> dict[str, int]:
        """Request -> forward passes that the model had run when its first token was there, its own included."""
        first: dict[str, int] = {}
        seen_decode: set[str] = set()
        num_passes = 0
        for event in self.events:
            if event.kind in RUNS:
                num_passes = event.step if self.is_packed else num_passes + 1
                if event.kind == "chunk" and event.request_id not in seen_decode:
                    first[event.request_id] = num_passes
                seen_decode |= {event.request_id} if event.kind == "decode" else set()
        return first


def play(
    phase: int, requests: Seq[Request], model: str = "tiny", record: str | Path | None = None, **settings: Any
) -> Played:
    """Serve requests on a new engine of a phase, and keep what happened; also in the file `record`, if there is one,
    for `python -m shared.trace replay`."""
    engine = build(phase, fresh_model(model), **settings)
    records = watch(engine) if phase > 1 else []
    try:
        with recorded(engine, record, phase=phase, model=model), engine.events.recording() as events:
            outputs = engine.generate(requests)
        return Played(outputs, events, records, engine.stats(), phase >= 8)
    finally:
        engine.close()
