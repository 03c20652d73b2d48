"""How large K/V is, from the model's config alone, and how many blocks of it fit."""

from typing import Any

import psutil

from shared.config import EngineConfig
from shared.errors import InvalidConfig

CPU_SHARE = 0.25  # of the memory that is available when the engine is built


def head_dim(config: Any) -> int:
    """The config's value where it has one: it need not be hidden_size / heads (Qwen3, Gemma)."""
    config = config.get_text_config()
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def num_kv_heads(config: Any) -> int:
    """Fewer than query heads under grouped-query attention."""
    text = config.get_text_config()
    return int(getattr(text, "num_key_value_heads", None) or text.num_attention_heads)


def kv_bytes_per_token(config: Any, itemsize: int) -> int:
    """Bytes of K and V for one token: 2 x layers x KV heads x head_dim x bytes per number."""
    return 2 * int(config.get_text_config().num_hidden_layers) * num_kv_heads(config) * head_dim(config) * itemsize


def kv_num_blocks(config: EngineConfig, model: Any) -> tuple[int, str]:
    """How many blocks the pool gets, and why.

    As given; else as many as `max_batch_size` sequences of `max_model_len` can ever fill, or what a quarter of the
    available memory holds, whichever is less. (On CUDA: what `gpu_memory_utilization` leaves beside a step.)
    Raises InvalidConfig if that is not a single block.
    """
    if config.kv_num_blocks != "auto":
        return int(config.kv_num_blocks), "as given"
    bytes_per_block = kv_bytes_per_token(model.config, model.dtype.itemsize) * config.kv_block_size
    num_affordable = _budget_bytes(config, model) // bytes_per_block
    num_useful = int(config.max_batch_size) * -(-int(config.max_model_len) // config.kv_block_size)
    if num_affordable < 1:
        raise InvalidConfig(
            f"kv_num_blocks: memory is short, a block takes {bytes_per_block:,} bytes; "
            "free some, or lower kv_block_size"
        )
    if num_useful <= num_affordable:
        return num_useful, "the most that max_batch_size sequences of max_model_len can fill"
    return num_affordable, f"what fits in {_budget_name(config, model)}"


def cuda_budget(*, free: int, total: int, utilization: float, activations: int) -> int:
    """Bytes for K/V: what the engine may fill of the device, less what is in use and what the largest step needs."""
    return int(total * utilization) - (total - free) - activations


def _budget_bytes(config: EngineConfig, model: Any) -> int:
    if model.device.type != "cuda":
        return int(psutil.virtual_memory().available * CPU_SHARE)
    import torch

    activations = _peak_activation_bytes(model, int(config.prefill_budget_tokens))
    free, total = torch.cuda.mem_get_info(model.device)
    return cuda_budget(free=free, total=total, utilization=config.gpu_memory_utilization, activations=activations)


def _peak_activation_bytes(model: Any, num_tokens: int) -> int:
    """What a step needs beside weights and K/V, measured by running one. (Written for CUDA, not run on a GPU yet.)"""
    import torch

    torch.cuda.reset_peak_memory_stats(model.device)
    before = torch.cuda.memory_allocated(model.device)
    token_ids = torch.zeros((1, num_tokens), dtype=torch.long, device=model.device)
    with torch.inference_mode():
        model(input_ids=token_ids, use_cache=False, logits_to_keep=1)
    peak = torch.cuda.max_memory_allocated(model.device)
    torch.cuda.empty_cache()
    return peak - before


def _budget_name(config: EngineConfig, model: Any) -> str:
    if model.device.type == "cuda":
        return f"{config.gpu_memory_utilization:.0%} of the GPU, beside weights and the largest step"
    return f"{CPU_SHARE:.0%} of the available memory"
