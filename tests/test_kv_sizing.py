"""K/V in bytes and blocks: what a token costs, and how many fit."""

import pytest

from shared import kv_sizing
from shared.config import EngineConfig, resolve_config
from shared.errors import InvalidConfig
from shared.kv_sizing import cuda_budget, kv_bytes_per_token, kv_num_blocks
from shared.tiny_models import FAMILIES, tiny_llama


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_bytes_per_token_are_what_a_cache_really_holds(family: str) -> None:
    import torch

    from shared.hf_forward import forward_sequence, new_cache

    model, cache = FAMILIES[family](sliding_window=None) if family == "mistral" else FAMILIES[family](), new_cache()
    with torch.inference_mode():
        forward_sequence(model, [5, 17, 33], cache)
    if hasattr(cache, "layers"):
        tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    else:  # transformers before 4.54
        tensors = [*cache.key_cache, *cache.value_cache]
    held = sum(tensor.nbytes for tensor in tensors)
    assert held == 3 * kv_bytes_per_token(model.config, itemsize=8)


def blocks(**settings: object) -> tuple[int, str]:
    config, _ = resolve_config(EngineConfig(**settings), device="cpu", model_max_len=512)  # type: ignore[arg-type]
    return kv_num_blocks(config, tiny_llama())


def test_a_given_number_is_taken_as_given() -> None:
    assert blocks(kv_num_blocks=7) == (7, "as given")


def test_the_pool_is_no_larger_than_it_can_ever_be_filled() -> None:
    num_blocks, reason = blocks(max_batch_size=4, kv_block_size=16)
    assert num_blocks == 4 * 512 // 16
    assert "max_batch_size" in reason


def test_the_pool_is_no_larger_than_the_stated_share_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_per_block = kv_bytes_per_token(tiny_llama().config, itemsize=8) * 16
    memory = type("Memory", (), {"available": 4 * (10 * bytes_per_block + 1)})
    monkeypatch.setattr(kv_sizing.psutil, "virtual_memory", lambda: memory)
    assert blocks(max_batch_size=4, kv_block_size=16) == (10, "what fits in 25% of the available memory")


def test_memory_for_not_even_a_block_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_sizing.psutil, "virtual_memory", lambda: type("Memory", (), {"available": 100}))
    with pytest.raises(InvalidConfig, match="kv_num_blocks: memory is short, a block takes"):
        blocks()


def test_on_cuda_kv_gets_what_the_engine_may_fill_beside_weights_and_a_step() -> None:
    gib = 2**30
    assert cuda_budget(free=60 * gib, total=80 * gib, utilization=0.75, activations=5 * gib) == 35 * gib
