"""Known faults to plant in a healthy engine, so that one can see what each of them does to its output.

    python -m shared.explain --phase 2 --tiny llama --plant top-left-mask

Each is one that real engines have had. They are planted from outside, in the engine's own model, runner
or sampler; no engine knows of them. Letters: T new tokens, S keys, B sequences, V vocabulary.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch

from shared.config import EngineConfig
from shared.errors import SetupError

BuildEngine = Callable[[Any, EngineConfig], Any]


@dataclass(frozen=True, slots=True)
class PlantedFault:
    """what: in one line, what is wrong. families: tiny models that can have it; empty for all.

    in_model: breaks the engine's model before the engine is built. in_engine: breaks the engine afterwards.
    in_both: prepares the engine's model and the reference's alike. Each raises SetupError where it cannot be planted.
    """

    name: str
    what: str
    in_model: Callable[[Any], None] | None = None
    in_engine: Callable[[Any], None] | None = None
    in_both: Callable[[Any], None] | None = None
    num_neighbours: int = 0
    families: tuple[str, ...] = ()

    def plant(self, build_engine: BuildEngine) -> BuildEngine:
        """A `build_engine` whose engines have the fault."""

        @wraps(build_engine)
        def build(model: Any, config: EngineConfig) -> Any:
            if self.in_model is not None:
                self.in_model(model)
            engine = build_engine(model, config)
            if self.in_engine is not None:
                self.in_engine(engine)
            return engine

        return build

    def prepare(self, make_model: Callable[[], Any]) -> Callable[[], Any]:
        """A `make_model` whose models are ready for the fault; they are healthy still."""

        def make() -> Any:
            model = make_model()
            if self.in_both is not None:
                self.in_both(model)
            return model

        return make


def _position_off_by_one(model: Any) -> None:
    """Each decode runs one position too far; prompts are right."""

    def shift(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        is_keyword = "position_ids" in kwargs
        positions = kwargs["position_ids"] if is_keyword else args[1]  # [1, T]
        shifted = positions + 1 if positions.numel() == 1 and positions.item() > 0 else positions
        return (args, kwargs | {"position_ids": shifted}) if is_keyword else ((args[0], shifted, *args[2:]), kwargs)

    for name, module in model.named_modules():
        if "rotary_emb" in name:
            module.register_forward_pre_hook(shift, with_kwargs=True)


def _top_left_mask(model: Any) -> None:
    """A causal mask for T new tokens that forgets the cached ones: row t sees the keys 0 to t."""

    def mask(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        if cache is None:
            raise SetupError("top-left-mask: this engine masks for itself; plant it in a phase before 8")
        num_cached, num_new = cache.get_seq_length(), kwargs["input_ids"].shape[1]
        if num_cached == 0:
            return args, kwargs
        added = torch.zeros(num_new, num_cached + num_new, dtype=module.dtype, device=module.device)  # [T, S]
        added.masked_fill_(torch.ones_like(added, dtype=torch.bool).triu(1), torch.finfo(module.dtype).min)
        return args, kwargs | {"attention_mask": added[None, None]}

    model.register_forward_pre_hook(mask, with_kwargs=True)


def _ignored_window(model: Any) -> None:
    """Every token sees all tokens before it, in layers that should see the last few only."""
    config = model.config.get_text_config()
    if getattr(config, "sliding_window", None) is None:
        raise SetupError("ignored-window: this model has no sliding window; try --tiny mistral")
    config.sliding_window = config.max_position_embeddings


def _dropped_bias(model: Any) -> None:
    """The last layer's query bias is not added."""
    attention = model.model.layers[-1].self_attn
    if attention.q_proj.bias is None:
        raise SetupError("dropped-bias: this model has no bias to drop; try --tiny qwen2")
    attention.q_proj.bias = None


def _exchanged_projections(model: Any) -> None:
    """The weights of k and v of the last layer change places, as after a fused tensor cut in the wrong order."""
    attention = model.model.layers[-1].self_attn
    attention.k_proj, attention.v_proj = attention.v_proj, attention.k_proj


def _penalty(engine: Any) -> None:
    """Tokens that have occurred are made less likely, though nobody asked for it."""
    sampler = getattr(engine, "runner", engine).sampler
    sample = sampler.sample

    def penalized(logits: torch.Tensor, seqs: Seq[Any]) -> Any:
        """logits: [B, V]."""
        logits = logits.clone()
        for row, seq in enumerate(seqs):
            seen = sorted(set(seq.token_ids))
            old = logits[row, seen]  # [seen tokens]
            logits[row, seen] = torch.where(old < 0, old * 1.3, old / 1.3)
        return sample(logits, seqs)

    sampler.sample = penalized


def _rounding(model: Any) -> None:
    """Every other logit is one rounding larger, as another order of summation could make it: no fault at all."""

    def wobble(_: Any, args: Any, logits: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
        """logits: [..., V]."""
        wobbling = logits.clone()
        wobbling[..., 1::2] += torch.finfo(logits.dtype).eps * logits[..., 1::2].abs()
        return wobbling

    model.get_output_embeddings().register_forward_hook(wobble)


def _make_ties(model: Any) -> None:
    """Odd tokens get the head's row of the even ones before them: each choice is a tie of two."""
    weight = model.get_output_embeddings().weight  # [V, hidden]
    with torch.no_grad():
        num_pairs = weight.shape[0] // 2
        weight[1 : 2 * num_pairs : 2] = weight[0 : 2 * num_pairs : 2]


def _exchanged_cache(engine: Any) -> None:
    """Two sequences that decode in one step read each other's K/V in it."""
    runner: Any = getattr(engine, "runner", None)
    if not hasattr(runner, "caches"):
        raise SetupError("neighbour: needs an engine with one cache per sequence: phases 2 to 6")
    execute = runner.execute

    def exchanged(plan: Any) -> Any:
        decodes = [item.seq for item in plan.items if item.is_decode][:2]
        if len(decodes) == 2:
            _exchange(runner.caches, *decodes)
        tokens = execute(plan)
        if len(decodes) == 2:
            _exchange(runner.caches, *decodes)
        return tokens

    runner.execute = exchanged


def _exchange(caches: dict[Any, Any], one: Any, other: Any) -> None:
    caches[one], caches[other] = caches[other], caches[one]


def _mixed_rows(engine: Any) -> None:
    """The tokens of a step are handed to its requests in reverse order."""
    runner: Any = getattr(engine, "runner", None)
    if runner is None:
        raise SetupError("mixed-rows: needs an engine that batches: phases from 2 on")
    execute = runner.execute
    runner.execute = lambda plan: execute(plan)[::-1]


FAULTS: dict[str, PlantedFault] = {
    fault.name: fault
    for fault in (
        PlantedFault("position-off-by-one", "decodes run one position too far", in_model=_position_off_by_one),
        PlantedFault("top-left-mask", "the causal mask forgets the cached tokens", in_model=_top_left_mask),
        PlantedFault(
            "ignored-window", "no sliding window", in_model=_ignored_window, families=("mistral", "gemma2", "gemma3")
        ),
        PlantedFault("dropped-bias", "a projection without its bias", in_model=_dropped_bias, families=("qwen2",)),
        PlantedFault(
            "exchanged-projections", "k_proj and v_proj in each other's place", in_model=_exchanged_projections
        ),
        PlantedFault("penalty", "a repetition penalty nobody asked for", in_engine=_penalty),
        PlantedFault("neighbour", "K/V of another request are read", in_engine=_exchanged_cache, num_neighbours=1),
        PlantedFault("mixed-rows", "tokens go to the wrong requests", in_engine=_mixed_rows, num_neighbours=1),
        PlantedFault(
            "rounding", "no fault: ties, and rounding that turns them", in_model=_rounding, in_both=_make_ties
        ),
    )
}
