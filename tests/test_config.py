"""Settings: what they may be, where they come from, and why they are what they are."""

from types import SimpleNamespace
from typing import Any

import pytest

from shared.config import EngineConfig, parse_setting, resolve_config
from shared.errors import InvalidConfig, SetupError
from shared.input_processor import LENGTH_NAMES, model_max_len


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_batch_size": 0}, "max_batch_size: must be a whole number of at least 1"),
        ({"max_batch_size": True}, "max_batch_size"),
        ({"kv_num_blocks": "many"}, 'kv_num_blocks: must be a whole number of at least 1 or "auto"'),
        ({"kv_block_size": "auto"}, "kv_block_size: must be a whole number of at least 1, got 'auto'"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization: must be above 0 and at most 1.0"),
        ({"gpu_memory_utilization": float("nan")}, "gpu_memory_utilization"),
        ({"queue_timeout_s": 0}, "queue_timeout_s: must be a number above 0"),
        ({"preemption_mode": "drop"}, "preemption_mode: must be one of swap, recompute"),
        ({"forward": "onnx"}, "forward: must be one of auto, native, native-torch, hf, got 'onnx'"),
        (
            {"attention_kernel": "cutlass"},
            "attention_kernel: must be one of auto, cpp, numba, triton, flashinfer, torch",
        ),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching: must be True or False"),
        ({"max_model_len": 1}, "max_model_len"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        EngineConfig(**settings)
    assert message in str(refused.value)


def test_settings_are_frozen_and_keyword_only() -> None:
    with pytest.raises(AttributeError):
        EngineConfig().max_batch_size = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        EngineConfig(3)  # type: ignore[misc]


def test_every_setting_can_come_from_the_environment() -> None:
    environ = {
        "MAX_BATCH_SIZE": "3",
        "PREFILL_BUDGET_TOKENS": "77",
        "PREFILL_CHUNK_SIZE": "auto",
        "KV_BLOCK_SIZE": "4",
        "KV_NUM_BLOCKS": "100",
        "GPU_MEMORY_UTILIZATION": "0.5",
        "ENABLE_PREFIX_CACHING": "0",
        "PREEMPTION_MODE": "recompute",
        "SPECULATIVE_METHOD": "ngram",
        "NUM_SPECULATIVE_TOKENS": "7",
        "QUEUE_TIMEOUT_S": "none",
        "ATTENTION_KERNEL": "",  # set and empty is not set
    }
    assert EngineConfig.from_env(environ) == EngineConfig(
        max_batch_size=3,
        prefill_budget_tokens=77,
        kv_block_size=4,
        kv_num_blocks=100,
        gpu_memory_utilization=0.5,
        enable_prefix_caching=False,
        preemption_mode="recompute",
        speculative_method="ngram",
        num_speculative_tokens=7,
        queue_timeout_s=None,
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [("max_batch_size", "1.5"), ("enable_prefix_caching", "yes"), ("gpu_memory_utilization", "half")],
)
def test_a_variable_that_does_not_parse_is_named(name: str, text: str) -> None:
    with pytest.raises(InvalidConfig, match=f"{name.upper()}='{text}' cannot be read"):
        parse_setting(name, text)


def test_auto_is_filled_in_by_device_and_model_with_a_reason() -> None:
    config, reasons = resolve_config(EngineConfig(max_batch_size=5), device="cpu", model_max_len=300)
    assert (config.max_batch_size, config.prefill_budget_tokens, config.prefill_chunk_size) == (5, 512, 128)
    assert config.max_model_len == 300
    assert reasons["max_batch_size"] == "as given"
    assert reasons["prefill_chunk_size"] == "default on cpu"
    assert reasons["max_model_len"] == "the model's own limit"
    batch_sizes = [
        resolve_config(EngineConfig(), device=device, model_max_len=300)[0].max_batch_size
        for device in ("cpu", "cuda", "mps")
    ]
    assert batch_sizes == [32, 64, 8]
    on_cuda, _ = resolve_config(EngineConfig(), device="cuda", model_max_len=300)
    assert (on_cuda.max_batch_size, on_cuda.prefill_budget_tokens, on_cuda.prefill_chunk_size) == (64, 2048, 512)


@pytest.mark.parametrize("name", LENGTH_NAMES)
def test_a_models_longest_sequence_is_found_by_the_name_its_family_has_for_it(name: str) -> None:
    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(**{name: 300}))
    assert model_max_len(SimpleNamespace(config=config)) == 300


def test_a_model_without_a_longest_sequence_needs_one_given() -> None:
    with pytest.raises(SetupError, match="no longest sequence; set max_model_len"):
        resolve_config(EngineConfig(), device="cpu", model_max_len=None)
    config, reasons = resolve_config(EngineConfig(max_model_len=301), device="cpu", model_max_len=None)
    assert (config.max_model_len, reasons["max_model_len"]) == (301, "as given")


def test_a_length_over_the_models_own_is_refused_with_both_numbers() -> None:
    with pytest.raises(InvalidConfig, match="301 is over the model's own limit, 300"):
        resolve_config(EngineConfig(max_model_len=301), device="cpu", model_max_len=300)
