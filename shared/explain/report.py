"""What the explainer found, as a record and as a page to read.

It only says what it was given: finding is for `shared.explain`.
"""

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from shared.explain.choice import Choice
from shared.explain.drift import Drift
from shared.explain.hints import Hypothesis

Cause = Literal["near tie", "forward", "sampling", "neighbours", "length", "unexplained"]

WIDTH = 100
INDENT = " " * 4
COARSEST = {"float64": "float32 norms"}  # of a float64 model: transformers keeps norms and RoPE in float32


@dataclass(frozen=True, slots=True)
class Divergence:
    """Why an engine's tokens are not those of `generate()`; `str()` is the report.

    cause: "near tie" is no fault; "forward" has a `drift`; "sampling": the logits agree, the choice does not;
        "neighbours": right alone, wrong in company; "length": one output ends before the other.
    step: index in the output of the first difference. dtype: the model's.
    choice: None where one of the two had ended. findings: sentences about how it was found.
    texts: token id -> text, where there is a tokenizer.
    """

    cause: Cause
    prompt_token_ids: tuple[int, ...]
    expected: tuple[int, ...]
    got: tuple[int, ...]
    step: int
    dtype: str
    choice: Choice | None
    drift: Drift | None
    findings: tuple[str, ...]
    hypothesis: Hypothesis
    texts: Mapping[int, str] = field(default_factory=dict)

    @property
    def position(self) -> int:
        """Where the token that differs is in the sequence, counted from the prompt's first token."""
        return len(self.prompt_token_ids) + self.step

    @property
    def is_fault(self) -> bool:
        return self.cause != "near tie"

    def __str__(self) -> str:
        lines = [*_headline(self), *_tokens(self), "", *_wrapped(" ".join(self.findings))]
        if self.drift is not None:
            lines += _drift_lines(self.drift, len(self.prompt_token_ids))
        return "\n".join([*lines, "", *_conclusion(self.hypothesis)])


def _headline(found: Divergence) -> list[str]:
    prompt = _count(len(found.prompt_token_ids), "prompt token")
    agreed = {0: "", 1: " and one that agrees"}.get(found.step, f" and {found.step} that agree")
    where = f"output[{found.step}], position {found.position}, after {prompt}{agreed}"
    return [*_wrapped(f"The engine leaves generate() at {where}."), ""]


def _tokens(found: Divergence) -> list[str]:
    expected, got = (_token(tokens, found) for tokens in (found.expected, found.got))
    choice = found.choice
    if choice is None:
        return [f"{INDENT}generate()  {expected}", f"{INDENT}engine      {got}"]
    width = max(len(expected), len(got))
    where = COARSEST.get(found.dtype, found.dtype)
    rounding = f"rounding in {where} moves logits of up to {choice.largest:.3g} by {choice.noise:.2g}"
    verdict = f"yes: {rounding}" if choice.is_near_tie else f"no: {rounding}, not by {choice.gap:.2g}"
    behind = (
        f"its {_ordinal(choice.rank)} choice, {choice.gap:.2g} behind" if choice.gap else "as good, to the last bit"
    )
    return [
        f"{INDENT}generate()  {expected:<{width}}  its best, {choice.margin:.2g} ahead of its second choice",
        f"{INDENT}engine      {got:<{width}}  {behind}",
        f"{INDENT}near tie    {verdict}",
    ]


def _token(tokens: tuple[int, ...], found: Divergence) -> str:
    if found.step >= len(tokens):
        return f"had ended, after {_count(len(tokens), 'token')}"
    token_id = tokens[found.step]
    return f"{token_id} {found.texts[token_id]!r}" if token_id in found.texts else str(token_id)


def _drift_lines(drift: Drift, num_prompt: int) -> Iterator[str]:
    yield "What differs first, in the order in which the model computes:"
    meaning = {"attention": ": softmax(QK^T)V, before o_proj", "layer": ": the layer's output"}.get(drift.kind, "")
    yield from _row("what", f"{drift.checkpoint}{meaning}")
    yield from _row("where", _where(drift, num_prompt))
    if drift.values is not None:
        got, expected = drift.values
        what = "token" if drift.kind == "token_ids" else "position"
        yield from _row("value", f"at position {drift.position} the engine has {what} {got}, the reference {expected}")
    else:
        yield from _row(
            "size", f"off by {_percent(drift.error)} of its length ({_percent(drift.tolerance)} is allowed)"
        )
    yield from _row("agree", _agreeing(drift))
    if layer := int(drift.checkpoint.split(".")[1]) if drift.checkpoint.startswith("layers.") else 0:
        before = "layer 0 does" if layer == 1 else f"each of layers 0 to {layer - 1} does"
        yield from _row("note", f"{before} the same and agrees: look for what only layer {layer} has")


def _where(drift: Drift, num_prompt: int) -> str:
    if drift.pattern == "everywhere":
        return f"at all {drift.num_compared} positions compared"
    if drift.pattern == "decodes":
        return f"at every position from {drift.position} on, the decoded ones; the prompt's {num_prompt} agree"
    if drift.pattern == "later passes":
        before = f"the {_count(drift.num_cached, 'token')} cached before agree"
        return f"from position {drift.position} on, where the second pass over the prompt begins; {before}"
    if drift.pattern in ("window", "from", "all but first"):
        return f"at every position from {drift.position} on; the {_count(drift.position, 'position')} before agree"
    listed = ", ".join(map(str, drift.positions[:6])) + (", ..." if len(drift.positions) > 6 else "")
    return f"at {len(drift.positions)} of {_count(drift.num_compared, 'position')}: {listed}"


def _agreeing(drift: Drift) -> str:
    """The checkpoints of the same layer by name, those before it by number."""
    if not drift.agreeing:
        return "nothing comes before it"
    prefix = ".".join(drift.checkpoint.split(".")[:2]) + "."
    same = [name for name in drift.agreeing if prefix.startswith("layers.") and name.startswith(prefix)]
    others = [name for name in drift.agreeing if name not in same]
    names = [name.rsplit(".", 1)[-1] for name in same]
    before = ", ".join(others) if len(others) <= 6 else f"all from {others[0]} to {others[-1]}"
    own = f"; in this layer {', '.join(names)}" if names and len(others) > 6 else "".join(f", {name}" for name in names)
    return f"at every position: {before}{own}"


def _conclusion(hypothesis: Hypothesis) -> Iterator[str]:
    yield from _wrapped(f"This points to {hypothesis.points_to}.")
    yield from _row("check", hypothesis.check)
    if hypothesis.files:
        yield from _row("look at", ", ".join(hypothesis.files))


def _row(label: str, text: str) -> list[str]:
    first = f"{INDENT}{label:<12}"
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * len(first), break_on_hyphens=False)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_on_hyphens=False)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _ordinal(rank: int) -> str:
    suffix = "th" if rank % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(rank % 10, "th")
    return f"{rank}{suffix}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 1 else f"{100 * share:.2g} %"
