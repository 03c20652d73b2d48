"""What each move towards a fast engine buys: systems that differ in one setting of EngineConfig after the other.

Torch-free. A setting that does not exist is not set, and a move that then changes nothing is left out, with its
reason: the list may be ahead of the engine.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, fields, replace
from typing import Any

from shared.bench.systems import BENCH_CONFIG, ModelChoice, SystemSpec, phase_spec
from shared.config import CHOICES, EngineConfig
from shared.registry import Phase


@dataclass(frozen=True, slots=True)
class Move:
    """settings: on top of those of the moves before. dtype: instead of the model's, from here on."""

    name: str
    label: str
    settings: dict[str, Any] = field(default_factory=dict)
    dtype: str | None = None


MOVES = (
    Move("packed", "one packed pass a step, padded gather", {"forward": "hf", "attention_kernel": "torch"}),
    Move("in-place-numba", "+ attention reads blocks in place (Numba)", {"attention_kernel": "numba"}),
    Move("in-place-cpp", "+ the same in C++", {"attention_kernel": "cpp"}),
    Move("own-forward", "+ own forward, fused QKV and gate-up", {"forward": "native-torch"}),
    Move("prepacked", "+ prepacked weights and fused operations (C++)", {"forward": "native"}),
    Move("bf16", "+ bf16", dtype="bfloat16"),
)


@dataclass(frozen=True, slots=True)
class LeftOut:
    move: Move
    why: str


def systems_of(phase: Phase, model: ModelChoice, moves: Seq[Move] = MOVES) -> Iterator[SystemSpec | LeftOut]:
    """A system for each move that this engine can make, in order."""
    settings: dict[str, Any] = {}
    last: SystemSpec | None = None
    for move in moves:
        unknown = [why for name, value in move.settings.items() if (why := _why_unknown(name, value))]
        settings |= {name: value for name, value in move.settings.items() if not _why_unknown(name, value)}
        model = replace(model, dtype=move.dtype) if move.dtype else model
        config = replace(BENCH_CONFIG, **settings)
        if last is not None and (config, model) == (last.config, last.model):
            yield LeftOut(move, "; ".join(unknown) or "it changes nothing")
            continue
        last = replace(phase_spec(model, phase, config), name=move.name, label=move.label)
        yield last


def _why_unknown(name: str, value: Any) -> str | None:
    if name not in {setting.name for setting in fields(EngineConfig)}:
        return f"there is no setting {name}"
    if name in CHOICES and value not in CHOICES[name]:
        return f"{name} has no choice {value}"
    return None
