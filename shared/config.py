"""Engine settings: one frozen record, from code, from the environment, or from the command line. Torch-free.

`"auto"` values are filled in by `resolve_config`, which also says why each became what it is.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from shared.errors import InvalidConfig, SetupError

Auto = Literal["auto"]

# On a CPU a packed step of 32 yields over 1.5x the tokens per second of one of 8 (`python -m shared.bench step-parts`).
BATCH_SIZES = {"cuda": 64, "cpu": 32}

CHOICES = {
    "preemption_mode": ("swap", "recompute"),
    "speculative_method": ("off", "ngram", "draft"),
    "forward": ("auto", "native", "native-torch", "hf"),
    "attention_kernel": ("auto", "cpp", "numba", "triton", "flashinfer", "torch"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """Settings of every phase; a phase ignores what it has no use for.

    max_batch_size: sequences that may run at once (vLLM: `max_num_seqs`).
    prefill_budget_tokens: tokens one step may run (vLLM: `max_num_batched_tokens`), from phase 4 on.
    prefill_chunk_size: most prompt tokens of one sequence in one step, from phase 4 on.
    kv_block_size: tokens per K/V block. kv_num_blocks: blocks in the pool, from phase 6 on.
    max_model_len: most tokens of one sequence, prompt plus output; "auto" is the model's own limit.
    gpu_memory_utilization: share of the device's memory the engine may fill, CUDA only.
    enable_prefix_caching, preemption_mode, swap_num_blocks: phases 9 and 12.
    speculative_method, num_speculative_tokens (the cap), adaptive_speculation (False fixes k): phase 12.
    queue_capacity: requests that may wait. queue_timeout_s: seconds one may wait, None for ever. Phase 3 on.
    forward: "hf" is Hugging Face's own, "native" the hand-written one ("native-torch" in plain PyTorch). Phase 8 on.
    attention_kernel: "torch" is plain PyTorch over gathered pages, the others read them in place. Phase 8 on.
    cuda_graphs: record decode steps and replay them, CUDA only. Phase 8 on.

    Raises InvalidConfig, which names the setting.
    """

    max_batch_size: int | Auto = "auto"
    prefill_budget_tokens: int | Auto = "auto"
    prefill_chunk_size: int | Auto = "auto"
    kv_block_size: int = 16
    kv_num_blocks: int | Auto = "auto"
    max_model_len: int | Auto = "auto"
    gpu_memory_utilization: float = 0.85
    enable_prefix_caching: bool = True
    preemption_mode: str = "swap"
    swap_num_blocks: int | Auto = "auto"
    speculative_method: str = "off"
    num_speculative_tokens: int = 4
    adaptive_speculation: bool = True
    queue_capacity: int = 256
    queue_timeout_s: float | None = 120.0
    forward: str = "auto"
    attention_kernel: str = "auto"
    cuda_graphs: bool = False

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "prefill_budget_tokens", "prefill_chunk_size", "kv_num_blocks"):
            check_count(name, getattr(self, name), low=1, may_be_auto=True)
        check_count("max_model_len", self.max_model_len, low=2, may_be_auto=True)
        check_count("swap_num_blocks", self.swap_num_blocks, low=0, may_be_auto=True)
        for name in ("kv_block_size", "num_speculative_tokens", "queue_capacity"):
            check_count(name, getattr(self, name), low=1)
        check_real("gpu_memory_utilization", self.gpu_memory_utilization, high=1.0)
        if self.queue_timeout_s is not None:
            check_real("queue_timeout_s", self.queue_timeout_s)
        for name in ("enable_prefix_caching", "adaptive_speculation", "cuda_graphs"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidConfig(f"{name}: must be True or False, got {getattr(self, name)!r}")
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise InvalidConfig(f"{name}: must be one of {', '.join(choices)}, got {getattr(self, name)!r}")

    @property
    def num_kv_slots(self) -> int:
        """Tokens whose K/V the pool holds, once kv_num_blocks is resolved."""
        return int(self.kv_num_blocks) * self.kv_block_size

    @property
    def num_swap_blocks(self) -> int:
        """Blocks of host memory for swapping, once kv_num_blocks is resolved; auto is half the pool."""
        if self.preemption_mode != "swap":
            return 0
        return int(self.kv_num_blocks) // 2 if self.swap_num_blocks == "auto" else int(self.swap_num_blocks)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> "EngineConfig":
        """Read MAX_BATCH_SIZE, PREFILL_BUDGET_TOKENS, ... : each setting by its name in capitals.

        Raises InvalidConfig for a value that does not parse, naming the variable.
        """
        environ = os.environ if environ is None else environ
        given = {f.name: environ[f.name.upper()] for f in fields(cls) if environ.get(f.name.upper(), "") != ""}
        return cls(**{name: parse_setting(name, text) for name, text in given.items()})


def parse_setting(name: str, text: str) -> Any:
    """A setting's value from the text of a variable or an option."""
    default = next(f.default for f in fields(EngineConfig) if f.name == name)
    try:
        if isinstance(default, bool):
            return {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}[text.lower()]
        if name == "queue_timeout_s":
            return None if text.lower() == "none" else float(text)
        if isinstance(default, float):
            return float(text)
        if isinstance(default, int) or (default == "auto" and name not in ("forward", "attention_kernel")):
            return "auto" if text == "auto" else int(text)
    except (ValueError, KeyError):
        raise InvalidConfig(f"{name.upper()}={text!r} cannot be read; the default is {default}") from None
    return text


def resolve_config(
    config: EngineConfig, *, device: str, model_max_len: int | None
) -> tuple[EngineConfig, dict[str, str]]:
    """Fill in what is "auto" for a device type ("cpu", "cuda", "mps") and a model's longest sequence, if it has one.

    Returns the settings and, setting -> reason, why they are so. What depends on free memory
    (kv_num_blocks, swap_num_blocks) stays "auto" here: the phase that has blocks sizes them. So does what depends on
    the model and on compilers (forward, attention_kernel): phase 8 chooses.
    Raises InvalidConfig if max_model_len is over what the model was made for, SetupError if nobody says it.
    """
    on_cuda = device == "cuda"
    auto: dict[str, Any] = {
        "max_batch_size": BATCH_SIZES.get(device, 8),
        "prefill_budget_tokens": 2048 if on_cuda else 512,
        "prefill_chunk_size": 512 if on_cuda else 128,
        "max_model_len": model_max_len,
    }
    if config.max_model_len == "auto":
        if model_max_len is None:
            raise SetupError("max_model_len: the model's config has no longest sequence; set max_model_len")
    elif model_max_len is not None and config.max_model_len > model_max_len:
        raise InvalidConfig(f"max_model_len: {config.max_model_len} is over the model's own limit, {model_max_len}")
    filled = {name: value for name, value in auto.items() if getattr(config, name) == "auto"}
    why = {"max_model_len": "the model's own limit"}
    reasons = {name: why.get(name, f"default on {device}") for name in filled}
    for f in fields(config):
        if f.name not in reasons:
            reasons[f.name] = "default" if getattr(config, f.name) == f.default else "as given"
    return replace(config, **filled), reasons


def check_count(name: str, value: object, *, low: int, may_be_auto: bool = False) -> None:
    """Raises InvalidConfig, naming the setting, for what is no whole number of at least `low`."""
    if may_be_auto and value == "auto":
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        wanted = f"a whole number of at least {low}" + (' or "auto"' if may_be_auto else "")
        raise InvalidConfig(f"{name}: must be {wanted}, got {value!r}")


def check_real(name: str, value: object, *, high: float = float("inf")) -> None:
    """Raises InvalidConfig, naming the setting, for what is no number above 0 and at most `high`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= high:
        wanted = "a number above 0" if high == float("inf") else f"above 0 and at most {high}"
        raise InvalidConfig(f"{name}: must be {wanted}, got {value!r}")
