"""Small seeded models, made in milliseconds: structure without weights worth reading.

Each family differs in what an engine may get wrong: biases (Qwen2), q/k norm (Qwen3), a sliding
window shorter than the prompts (Mistral), softcaps (Gemma 2), two RoPE bases and windows (Gemma 3).
head_dim is never hidden_size / heads. Everything is fp64, so that equality means equality.
"""

from collections.abc import Callable
from typing import Any

import torch
import transformers

SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.35,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def tiny_llama(seed: int = 0, **changes: Any) -> Any:
    """A two-layer Llama; `changes` override config fields."""
    return _tiny("Llama", seed, attention_bias=False, **changes)


def tiny_qwen2(seed: int = 0, **changes: Any) -> Any:
    """Biases on q, k and v; they start at zero in transformers, here they bite."""
    model = _tiny("Qwen2", seed, **changes)
    torch.manual_seed(seed + 1)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data.normal_(std=1.0)
    return model


def tiny_qwen3(seed: int = 0, **changes: Any) -> Any:
    return _randomize_norms(_tiny("Qwen3", seed, **changes), seed)


def tiny_mistral(seed: int = 0, **changes: Any) -> Any:
    return _tiny("Mistral", seed, **{"sliding_window": 8} | changes)


def tiny_gemma2(seed: int = 0, **changes: Any) -> Any:
    """Softcaps low enough to bend the scores; a window in every other layer.

    Eager by name: not every version of transformers knows that its other attentions leave the softcap out.
    """
    softcaps: dict[str, Any] = {
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 20.0,
        "attn_implementation": "eager",
    }
    return _randomize_norms(_tiny("Gemma2", seed, **softcaps | {"sliding_window": 8} | changes), seed)


def tiny_gemma3(seed: int = 0, **changes: Any) -> Any:
    """Five layers of the pattern: sliding ones with their own RoPE base, full attention in the last."""
    kinds = ["sliding_attention", "sliding_attention", "full_attention"]
    window = {"sliding_window": 8, "num_hidden_layers": 3, "layer_types": kinds}
    return _randomize_norms(_tiny("Gemma3", seed, config_suffix="TextConfig", **window | changes), seed)


FAMILIES: dict[str, Callable[..., Any]] = {
    "llama": tiny_llama,
    "qwen2": tiny_qwen2,
    "qwen3": tiny_qwen3,
    "mistral": tiny_mistral,
}
if not hasattr(transformers.Gemma2Config(), "cache_implementation"):  # shared.hf_forward.check_version says why
    FAMILIES |= {"gemma2": tiny_gemma2, "gemma3": tiny_gemma3}


def _tiny(family: str, seed: int, config_suffix: str = "Config", **changes: Any) -> Any:
    torch.manual_seed(seed)
    config = getattr(transformers, family + config_suffix)(**SHAPE | changes)
    return getattr(transformers, family + "ForCausalLM")(config).to(torch.float64).eval()


def _randomize_norms(model: Any, seed: int) -> Any:
    """Norm weights start at one (or zero): a forgotten or misplaced one would not show."""
    torch.manual_seed(seed + 1)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.data.add_(torch.empty_like(parameter).normal_(std=0.5))
    return model
