"""How large K/V is (seed phase 5): bytes per token, from the model's config alone. Torch-free."""

from typing import Any


def head_dim(config: Any) -> int:
    """The config's value where it has one: it need not be hidden_size / heads (Qwen3, Gemma)."""
    config = config.get_text_config()
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def kv_bytes_per_token(config: Any, itemsize: int) -> int:
    """Bytes of K and V for one token: 2 x layers x KV heads x head_dim x bytes per number."""
    text = config.get_text_config()
    num_kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return 2 * int(text.num_hidden_layers) * int(num_kv_heads) * head_dim(config) * itemsize
