"""Where a computation first leaves the reference: the first checkpoint in the model's order, and its positions.

Every checkpoint before it agrees at every position, so its inputs agree and its output does not.
It finds and measures; what a finding may mean is for `shared.explain.hints`.
Letters: N positions, F features.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Literal

import torch

from shared.explain.trace import Trace

Pattern = Literal["everywhere", "window", "all but last", "all but first", "decodes", "later passes", "from", "some"]
Signature = Literal["nan", "bias", "offset", "factor", "another", "first key only", "itself only", "none"]

EXACT = ("token_ids", "position_ids")  # whole numbers: no rounding, no tolerance
FP32_ROUNDINGS = 1024
HALF_ROUNDINGS = 32


def rounding_unit(dtype: torch.dtype) -> float:
    """The relative size of one rounding. fp64 models round like fp32 ones: transformers' norms and RoPE are fp32."""
    return max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)


def drift_tolerance(dtype: torch.dtype) -> float:
    """How far, relative to its length, a row may be from the reference's before it counts as different.

    Between healthy runs (one pass, chunks, token by token; models of 2 to 30 layers) rows were seen to
    differ by up to 50 roundings in fp32, whose long sums round at every step, and 15 in bf16 and fp16,
    which sum in fp32. The planted faults are off by a third of a row and more.
    """
    return rounding_unit(dtype) * (HALF_ROUNDINGS if torch.finfo(dtype).bits == 16 else FP32_ROUNDINGS)


@dataclass(frozen=True, slots=True)
class Drift:
    """The first checkpoint that differs.

    positions: where it differs, ascending; num_compared: positions at which it was compared.
    pattern: what those positions have in common. signature: what the difference itself looks like.
    error: |engine - reference| / |reference| at the first of them; tolerance: what was allowed.
    num_cached: tokens that had K/V before the pass that ran the first of them.
    values: what the engine and the reference had there, where that is a number (a token id, a position).
    agreeing: checkpoints of the model before this one, all equal to the reference's.
    equals: the reference's checkpoint whose values the engine has here, with signature "another".
    """

    checkpoint: str
    positions: tuple[int, ...]
    num_compared: int
    pattern: Pattern
    signature: Signature
    error: float
    tolerance: float
    num_cached: int
    agreeing: tuple[str, ...]
    values: tuple[int, int] | None = None
    equals: str | None = None

    @property
    def position(self) -> int:
        return self.positions[0]

    @property
    def kind(self) -> str:
        """The last part of the checkpoint's name: q_proj, attention, ...; "layer" for a layer's own output."""
        last = self.checkpoint.split("[")[0].rsplit(".", 1)[-1]
        return "layer" if last.isdigit() else last


def first_drift(
    reference: Trace,
    engine: Trace,
    *,
    num_positions: int,
    num_prompt_tokens: int,
    tolerance: float,
    window: int | None = None,
) -> Drift | None:
    """Compare position by position up to `num_positions`; None if nothing differs by more than `tolerance`.

    window: the model's sliding window in tokens, if it has one.
    """
    agreeing: list[str] = []
    for name in reference.rows:
        positions = [p for p in sorted(engine.rows.get(name, {})) if p < num_positions and p in reference.rows[name]]
        allowed = 0.0 if name.startswith(EXACT) else tolerance
        errors = _errors(reference, engine, name, positions)  # position -> relative error
        wrong = [p for p in positions if not errors[p] <= allowed]  # NaN is wrong, too
        if wrong:
            first = wrong[0]
            got, expected = (trace.rows[name][first] for trace in (engine, reference))  # [F] each
            equals = _equal_checkpoint(got, first, reference, tolerance)
            return Drift(
                checkpoint=name,
                positions=tuple(wrong),
                num_compared=len(positions),
                pattern=_pattern(wrong, positions, engine, num_prompt_tokens, window),
                signature="another" if equals else _signature(name, wrong, reference, engine, tolerance),
                error=errors[first],
                tolerance=allowed,
                num_cached=engine.spans[first].start,
                agreeing=tuple(agreeing),
                values=(int(got[0]), int(expected[0])) if name.startswith(EXACT) else None,
                equals=equals,
            )
        agreeing += [name] if positions else []
    return None


def _errors(reference: Trace, engine: Trace, name: str, positions: Seq[int]) -> dict[int, float]:
    if not positions:
        return {}
    expected, got = (torch.stack([trace.rows[name][p] for p in positions]) for trace in (reference, engine))  # [N, F]
    return dict(zip(positions, relative_errors(expected, got).tolist()))


def relative_errors(expected: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """|got - expected| / |expected| of each row of [N, F], as [N].

    A row of nearly nothing counts as a millionth of the largest: what is left of a sum that cancels is rounding.
    """
    expected, got = expected.double(), got.double()
    size = expected.norm(dim=-1)  # [N]
    floor = max(1e-6 * float(size.max()), 1e-30)
    return (got - expected).norm(dim=-1) / size.clamp(min=floor)


def _equal_checkpoint(got: torch.Tensor, position: int, reference: Trace, tolerance: float) -> str | None:
    """The reference's checkpoint that has `got` [F] at this position: two tensors have changed places."""
    for name, rows in reference.rows.items():
        row = rows.get(position)
        if row is not None and 1 < len(row) == len(got) and float(relative_errors(row[None], got[None])) <= tolerance:
            return name
    return None


def _pattern(wrong: Seq[int], compared: Seq[int], engine: Trace, num_prompt: int, window: int | None) -> Pattern:
    first_pass = [p for p in compared if engine.spans[p].start == 0]
    later = [p for p in compared if engine.spans[p].start > 0]
    is_from_there_on = list(wrong) == [p for p in compared if p >= wrong[0]]
    if list(wrong) == list(compared):
        return "everywhere"
    if wrong[0] == window and is_from_there_on and (wrong[0] in first_pass or wrong[0] != later[0]):
        return "window"
    if len(first_pass) > 2 and [p for p in wrong if p in first_pass] == first_pass[:-1]:
        return "all but last"
    if list(wrong) == list(compared[1:]):
        return "all but first"
    if list(wrong) == later:
        return "decodes" if later[0] >= num_prompt else "later passes"
    return "from" if is_from_there_on else "some"


def _signature(name: str, wrong: Seq[int], reference: Trace, engine: Trace, tolerance: float) -> Signature:
    expected, got = (torch.stack([trace.rows[name][p] for p in wrong]).double() for trace in (reference, engine))
    if not got.isfinite().all():
        return "nan"
    if name.endswith("attention"):
        return _attention_signature(name, wrong[0], reference, engine, tolerance)
    if len(wrong) < 2:
        return "none"
    return _linear_signature(expected, got, reference.biases.get(name), max(tolerance, 1e-5))


def _linear_signature(expected: torch.Tensor, got: torch.Tensor, bias: torch.Tensor | None, near: float) -> Signature:
    """Is `got` [N, F] the same offset from `expected` at every position, or the same multiple of it?"""
    offset = (expected - got).mean(dim=0)  # [F]
    is_offset = bool((relative_errors(expected - got, offset.expand_as(got)) < 100 * near).all())
    if is_offset and bias is not None and float(relative_errors(bias[None], offset[None])) < 100 * near:
        return "bias"
    factor = (expected * got).sum() / (expected * expected).sum().clamp(min=1e-30)
    if bool((relative_errors(got, factor * expected) < 100 * near).all()):
        return "factor"
    return "offset" if is_offset else "none"


def _attention_signature(name: str, position: int, reference: Trace, engine: Trace, tolerance: float) -> Signature:
    """What the first row of a pass over cached tokens saw; over one key, attention is that key's value."""
    got = engine.rows[name][position]  # [H * D]
    values = reference.rows.get(name.removesuffix("attention") + "v_proj", {})  # position -> [KV heads * D]
    if position == 0 or engine.spans[position].start != position or position not in values or 0 not in values:
        return "none"
    candidates: tuple[tuple[int, Signature], ...] = ((0, "first key only"), (position, "itself only"))
    for seen, signature in candidates:
        value = values[seen].view(-1, reference.head_dim)  # [KV heads, D]
        row = value.repeat_interleave(len(got) // value.numel(), dim=0).flatten()  # [H * D]
        if float(relative_errors(row[None], got[None])) < tolerance:
            return signature
    return "none"
