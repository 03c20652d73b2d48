"""The twelve phases: which exist as packages, and which live elsewhere.

`shared` imports no phase: packages are named as strings and imported when somebody asks for one. Torch-free.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shared.errors import SetupError


@dataclass(frozen=True, slots=True)
class Phase:
    """One chapter. package: where its engine is. title: what it adds, in a few words."""

    number: int
    package: str
    title: str

    @property
    def label(self) -> str:
        return f"phase {self.number}: {self.title}"

    @property
    def has_pool(self) -> bool:
        """K/V is in blocks."""
        return self.number >= 6

    def build_engine(self) -> Callable[..., Any]:
        """The phase's `build_engine(model, config, tokenizer=None, draft_model=None)`."""
        return importlib.import_module(f"{self.package}.engine").build_engine


PHASES: tuple[Phase, ...] = (
    Phase(1, "phase01_sequential", "one at a time"),
    Phase(2, "phase02_iteration_scheduling", "scheduling per step"),
    Phase(3, "phase03_request_queue", "a queue with limits"),
    Phase(4, "phase04_chunked_prefill", "chunked prefill"),
    Phase(6, "phase06_block_allocator", "memory in blocks"),
    Phase(8, "phase08_paged_attention", "paged attention, one pass a step"),
    Phase(9, "phase09_preemption", "preemption: swap or recompute"),
    Phase(12, "phase12_prefix_and_spec", "prefix cache and speculation"),
)


def newest_phase() -> Phase:
    return PHASES[-1]


def phase_by_number(number: int) -> Phase:
    """Raises SetupError, listing the phases there are."""
    for phase in PHASES:
        if phase.number == number:
            return phase
    known = ", ".join(str(phase.number) for phase in PHASES)
    raise SetupError(f"there is no engine for phase {number}; engines: {known}")
