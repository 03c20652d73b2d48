"""What can be compared, by name: everything a worker process needs to know to build it. Torch-free."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shared.config import EngineConfig
from shared.registry import Phase

LAST_SLOW_PHASE = 6  # from phase 8 on, a step is one forward pass
BENCH_CONFIG = EngineConfig(queue_capacity=1024, queue_timeout_s=None)  # holds every workload, for as long as it takes


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Which model, and how it runs. name: as for `load_model`, None for the default; is_tiny: a random one instead."""

    name: str | None = None
    is_tiny: bool = False
    dtype: str = "float32"
    device: str = "auto"
    num_threads: int | None = None  # None is torch's own choice


@dataclass(frozen=True, slots=True)
class SystemSpec:
    """A row of a table: a phase, or `generate()` in batches of `hf_batch_size`; with neither, the reference.

    is_hf_continuous: transformers' own continuous batching, of as many sequences.

    config: of a phase. late_after_tokens: of a phase, its last request comes when each of the others has this
    many tokens; None where all come at once.
    """

    name: str
    label: str
    model: ModelChoice
    phase: Phase | None = None
    config: EngineConfig = BENCH_CONFIG
    late_after_tokens: int | None = None
    hf_batch_size: int | None = None
    is_hf_continuous: bool = False

    @property
    def is_reference(self) -> bool:
        return self.phase is None and self.hf_batch_size is None

    @property
    def is_slow(self) -> bool:
        """May run fewer of the requests than the others (`--slow-scale`)."""
        if self.phase is None:
            return self.hf_batch_size == 1
        return self.phase.number <= LAST_SLOW_PHASE or self.config.max_batch_size == 1

    @property
    def code(self) -> str:
        """The file to begin with when asking what its speed depends on, relative to the repository."""
        return "shared/bench/hf_baselines.py" if self.phase is None else f"{self.phase.package}/engine.py"


@dataclass(frozen=True, slots=True)
class SystemInfo:
    """What is known of a system once it is built.

    special_ids: of the tokenizer, where the reference is asked. max_model_len: tokens of a sequence.
    settings: resolved ones that explain its speed.
    implementation: what an engine says of itself in an attribute of this name, such as its attention kernel.
    """

    model_name: str
    vocab_size: int
    max_model_len: int
    num_threads: int
    device: str
    special_ids: frozenset[int] = frozenset()
    settings: Mapping[str, int] = field(default_factory=dict)
    implementation: Mapping[str, str] = field(default_factory=dict)


def reference_spec(model: ModelChoice) -> SystemSpec:
    """HF in fp32, whatever the others run in; fp64 beside fp64."""
    exact = replace(model, dtype="float64" if model.dtype == "float64" else "float32")
    return SystemSpec("reference", "HF generate, for the tokens to expect", exact)


def hf_spec(model: ModelChoice) -> SystemSpec:
    return SystemSpec("hf", "HF generate, one at a time", model, hf_batch_size=1)


def hf_static_spec(model: ModelChoice, batch_size: int) -> SystemSpec:
    return SystemSpec("hf-static", f"HF generate, static batches of {batch_size}", model, hf_batch_size=batch_size)


def hf_continuous_spec(model: ModelChoice, batch_size: int) -> SystemSpec:
    label = f"transformers' continuous batching, {batch_size} at once"
    return SystemSpec("hf-continuous", label, model, hf_batch_size=batch_size, is_hf_continuous=True)


def phase_spec(model: ModelChoice, phase: Phase, config: EngineConfig = BENCH_CONFIG) -> SystemSpec:
    return SystemSpec(f"phase{phase.number:02d}", phase.label, model, phase=phase, config=config)
