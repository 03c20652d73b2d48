"""The newest engine with one technique changed at a time, so that each one's share of the gain can be seen. Torch-free.

A technique that the settings do not offer (yet) is left out: the list is made from the settings themselves.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shared.bench.systems import BENCH_CONFIG, ModelChoice, SystemSpec, phase_spec
from shared.config import CHOICES, EngineConfig
from shared.errors import SetupError
from shared.registry import newest_phase

WHOLE_PROMPT = 1 << 20  # tokens: no prompt is cut


@dataclass(frozen=True, slots=True)
class Variant:
    """changes: of EngineConfig. is_extra: adds a technique that is off by default, where the others take one away."""

    name: str
    label: str
    changes: Mapping[str, Any]
    is_extra: bool = False


def variants() -> dict[str, Variant]:
    """By name, those that the settings have."""
    return {variant.name: variant for variant in _all() if _is_offered(variant)}


def variant_spec(model: ModelChoice, name: str, config: EngineConfig = BENCH_CONFIG) -> SystemSpec:
    """The newest phase with one thing changed. Raises SetupError, listing what there is."""
    known = variants()
    if name not in known:
        raise SetupError(f"there is no technique {name!r} to change; techniques: {', '.join(known)}")
    variant = known[name]
    whole = phase_spec(model, newest_phase(), replace(config, **dict(variant.changes)))
    return replace(whole, name=f"{whole.name}-{variant.name}", label=f"phase {newest_phase().number}, {variant.label}")


def _all() -> Iterator[Variant]:
    yield Variant("no-batching", "one sequence at a time", {"max_batch_size": 1})
    yield Variant(
        "no-chunks",
        "prompts whole",
        {"prefill_chunk_size": WHOLE_PROMPT, "prefill_budget_tokens": WHOLE_PROMPT},
    )
    yield Variant("no-cache", "no prefix cache", {"enable_prefix_caching": False})
    yield Variant("recompute", "recompute instead of swap", {"preemption_mode": "recompute"})
    yield Variant("torch-kernel", "attention in plain PyTorch", {"attention_kernel": "torch"})
    yield Variant("hf-forward", "Hugging Face's forward pass", {"forward": "hf"})
    yield Variant("ngram", "with n-gram speculation", {"speculative_method": "ngram"}, is_extra=True)
    yield Variant(
        "ngram-fixed",
        "with n-gram speculation, k fixed",
        {"speculative_method": "ngram", "adaptive_speculation": False},
        is_extra=True,
    )


def _is_offered(variant: Variant) -> bool:
    """Whether the setting has another value than this one, apart from "auto"."""
    return all(
        name not in CHOICES or any(choice not in ("auto", value) for choice in CHOICES[name])
        for name, value in variant.changes.items()
    )
