"""What a model computed, position by position: recorded by hooks, the same way from the reference and from an engine.

A checkpoint is a place whose value is compared: the output of a module, and four that no module outputs:
`token_ids` and `position_ids` (what was fed), `attention` (softmax(QK^T)V, what o_proj gets) and `logits`
(what the sampler gets). It knows nothing of what is right.
Letters: T tokens of one pass, H heads, D head_dim, F features, V vocabulary.
"""

import re
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from shared.hf_forward import forward_sequence, new_cache

MODULES = re.compile(
    r"(^|\.)(layers\.\d+|embed_tokens|rotary_emb\w*|[qkv]_proj|[qk]_norm|o_proj|mlp|lm_head|norm"
    r"|(input|post_attention|pre_feedforward|post_feedforward)_layernorm)$"
)


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a pass that belongs to one sequence: `num_tokens` of it, after `start` that had K/V before."""

    request_id: str
    start: int
    num_tokens: int
    is_sampled: bool

    @property
    def positions(self) -> range:
        return range(self.start, self.start + self.num_tokens)


@dataclass(slots=True)
class Trace:
    """One request's values. Positions count from the prompt's first token; a later pass over one replaces it.

    rows: checkpoint -> position -> [F], checkpoints in the order in which the model computes them.
    spans: position -> the span of the pass that ran it. chosen: position of the last input -> token sampled.
    other_logits: position -> the logits [V] that other sequences were sampled from in the same call.
    biases: checkpoint -> the module's bias [F]. head_dim: D.
    """

    rows: dict[str, dict[int, torch.Tensor]] = field(default_factory=dict)
    spans: dict[int, Span] = field(default_factory=dict)
    chosen: dict[int, int] = field(default_factory=dict)
    other_logits: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    biases: dict[str, torch.Tensor] = field(default_factory=dict)
    head_dim: int = 1

    @property
    def has_layers(self) -> bool:
        """False where the forward pass does not go through the model's modules (a hand-written one)."""
        return "token_ids" in self.rows

    def add(self, seen: dict[str, torch.Tensor], spans: Seq[Span], request_id: str) -> None:
        """Take in what a tap saw during a step that ran `spans`, in their order; keep the rows of one request."""
        self.spans |= {p: span for span in spans if span.request_id == request_id for p in span.positions}
        for name, rows in seen.items():
            for row, (span, position) in enumerate(_owners(len(rows), spans)):
                if span.request_id == request_id:
                    self.rows.setdefault(name, {})[position] = rows[row]

    def add_logits(self, position: int, logits: torch.Tensor) -> None:
        """logits: [V], after the input at `position`."""
        self.rows.setdefault("logits", {})[position] = _copied(logits)


def _owners(num_rows: int, spans: Seq[Span]) -> list[tuple[Span, int]]:
    """Whose each row is: every token has one or, at the head, the last token of each or of each sampled span."""
    every = [(span, position) for span in spans for position in span.positions]
    last = [(span, span.positions[-1]) for span in spans]
    sampled = [(span, position) for span, position in last if span.is_sampled]
    return next((owners for owners in (every, last, sampled) if len(owners) == num_rows), [])


class ModelTap:
    """Hooks on a model. What they saw waits until `take`; `close` removes them."""

    def __init__(self, model: Any) -> None:
        self.biases: dict[str, torch.Tensor] = {}  # checkpoint -> [F]
        self.head_dim = _head_dim(model.config.get_text_config())
        self._seen: dict[str, list[torch.Tensor]] = {}  # checkpoint -> [T, F] of each pass
        self._num_tokens = 0  # T of the pass that is running
        self._handles = [
            handle
            for path, module in model.named_modules()
            if MODULES.search(path)
            for handle in self._hook(path.removeprefix("model."), module)
        ]

    def take(self) -> dict[str, torch.Tensor]:
        """Checkpoint -> the rows of all passes since the last call, [rows, F]."""
        seen, self._seen = self._seen, {}
        return {name: torch.cat(rows) for name, rows in seen.items()}

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _hook(self, name: str, module: Any) -> Iterator[Any]:
        if getattr(module, "bias", None) is not None:
            self.biases[name] = _copied(module.bias)
        if name.endswith("o_proj"):
            attention = name.removesuffix("o_proj") + "attention"
            yield module.register_forward_pre_hook(lambda _, args: self._see(attention, args[0]))
        if "rotary_emb" in name:
            yield module.register_forward_hook(
                lambda _, args, kwargs, output: self._see_rope(name, args, kwargs, output), with_kwargs=True
            )
        elif name.endswith("embed_tokens"):
            yield module.register_forward_hook(lambda _, args, output: self._see_embedding(name, args[0], output))
        else:
            yield module.register_forward_hook(lambda _, args, output: self._see(name, output))  # noqa: ARG005

    def _see(self, name: str, value: Any) -> None:
        value = value[0] if isinstance(value, tuple) else value
        rows = self._rows(value)
        if rows is not None:
            self._seen.setdefault(name, []).append(_copied(rows))

    def _see_embedding(self, name: str, token_ids: torch.Tensor, output: torch.Tensor) -> None:
        self._num_tokens = token_ids.numel()
        self._seen.setdefault("token_ids", []).append(_copied(token_ids.reshape(-1, 1)))  # [T, 1]
        self._see(name, output)

    def _see_rope(self, name: str, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        """Gemma 3 calls it once per kind of layer and pass, so the kind is part of the name."""
        inputs = [*args, *kwargs.values()]
        kind = "".join(f"[{value}]" for value in inputs if isinstance(value, str))
        position_ids = kwargs["position_ids"] if "position_ids" in kwargs else args[1]  # [1, T]
        self._seen.setdefault("position_ids" + kind, []).append(_copied(position_ids.reshape(-1, 1)))  # [T, 1]
        self._see(name + kind, torch.cat(output, dim=-1))  # cos and sin, [1, T, 2D]

    def _rows(self, value: torch.Tensor) -> torch.Tensor | None:
        """`[T, F]` of a module's output; None for a per-head one whose layout cannot be told (T = H)."""
        if value.dim() != 4:
            return value.reshape(-1, value.shape[-1])
        is_token_first, is_head_first = (value.shape[dim] == self._num_tokens for dim in (1, 2))
        if is_token_first == is_head_first:
            return None
        by_token = value if is_token_first else value.transpose(1, 2)  # [1, T, H, D]
        return by_token.reshape(self._num_tokens, -1)


def trace_reference(model: Any, prompt_token_ids: Seq[int], output_token_ids: Seq[int]) -> Trace:
    """The model fed with the prompt in one pass, then with each output token: the passes that `generate()` runs."""
    trace, tap, cache = Trace(), ModelTap(model), new_cache()
    trace.biases, trace.head_dim = tap.biases, tap.head_dim
    start = 0
    for token_ids in (list(prompt_token_ids), *([token] for token in output_token_ids)):
        with torch.inference_mode():
            logits = forward_sequence(model, token_ids, cache)  # [V]
        span = Span("", start, len(token_ids), is_sampled=True)
        trace.add(tap.take(), [span], "")
        trace.add_logits(span.positions[-1], logits)
        start += len(token_ids)
    tap.close()
    return trace


@contextmanager
def tracing(engine: Any, request_id: str) -> Iterator[Trace]:
    """Record one request inside an engine, alone or among others, until the block ends.

    Taps the model, the sampler, and the plans by which the rows of a step are told apart.
    """
    owner = getattr(engine, "runner", engine)  # of the model and the sampler: phase 1 has no runner
    tap, trace = ModelTap(owner.model), Trace()
    _tap_sampler(owner, tap, trace, request_id)
    if owner is not engine:
        _tap_plans(owner, tap, trace, request_id)
    try:
        yield trace
    finally:
        tap.close()


def _tap_plans(runner: Any, tap: ModelTap, trace: Trace, request_id: str) -> None:
    execute = runner.execute

    def traced(plan: Any) -> Any:
        spans = [
            Span(item.seq.request_id, item.num_computed_tokens, item.num_tokens + len(item.draft), item.is_sampled)
            for item in plan.items
        ]
        tokens = execute(plan)
        trace.add(tap.take(), spans, request_id)
        return tokens

    runner.execute = traced


def _tap_sampler(owner: Any, tap: ModelTap, trace: Trace, request_id: str) -> None:
    """Phase 1 has no plan, but it samples after each pass: what it ran is what has no K/V yet."""
    sample = owner.sampler.sample

    def traced(logits: torch.Tensor, seqs: Seq[Any]) -> Any:
        """logits: [B, V]."""
        if not hasattr(owner, "execute"):
            spans = [Span(s.request_id, s.num_computed_tokens, s.num_uncomputed_tokens, True) for s in seqs]
            trace.add(tap.take(), spans, request_id)
        tokens = sample(logits, seqs)
        for token in tokens:
            token.error = None  # with NaN an engine gives up; here it goes on, so that the first layer of it is found
        for row, seq in enumerate(seqs):
            if seq.request_id == request_id:
                position = len(seq.token_ids) - 1
                trace.add_logits(position, logits[row])
                trace.chosen[position] = tokens[row].token_id
                trace.other_logits[position] = [_copied(logits[r]) for r in range(len(seqs)) if r != row]
        return tokens

    owner.sampler.sample = traced


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """On the CPU and of one's own: what is recorded must not change when the model goes on."""
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    return tensor.detach().to(device="cpu", dtype=dtype, copy=True)


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
