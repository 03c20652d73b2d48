"""What a check is made of: a registry, `expect`, and stand-ins that need nothing an exercise is about."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any

from shared.config import EngineConfig
from shared.sequence import Sequence
from tests.fakes import make_sequence, rows, sample

Check = Callable[[], None]
CHECKS: dict[str, list[Check]] = {}  # exercise -> its checks, in the order to read them


class Wrong(AssertionError):
    """What a learner is told: the situation, what was expected, what came, and why it matters."""

    def __init__(self, when: str, expected: object, got: object, because: str) -> None:
        super().__init__(f"{when}: expected {expected!r}, got {got!r}")
        self.when, self.expected, self.got, self.because = when, expected, got, because


def grades(number: str) -> Callable[[Check], Check]:
    """The name of the function is the sentence that is shown."""

    def register(check: Check) -> Check:
        CHECKS.setdefault(number, []).append(check)
        return check

    return register


def expect(got: object, expected: object, *, when: str, because: str) -> None:
    if got != expected:
        raise Wrong(when, expected, got, because)


def config(**settings: Any) -> EngineConfig:
    given = {"max_batch_size": 8, "prefill_budget_tokens": 64, "prefill_chunk_size": 32} | settings
    return EngineConfig(**given)


def add(scheduler: Any, *sequences: Sequence) -> None:
    for seq in sequences:
        scheduler.add(seq)


def step(scheduler: Any) -> list[tuple[str, int]]:
    """One step with a model that always says the same; returns the rows that ran."""
    plan = scheduler.plan()
    scheduler.apply(plan, sample(plan))
    return rows(plan)


def steps(scheduler: Any, count: int) -> list[list[tuple[str, int]]]:
    return [step(scheduler) for _ in range(count)]


def decoding(scheduler: Any, *names: str, num_prompt: int = 2) -> list[Sequence]:
    """Sequences past their prompt, put into `running` by hand, so that no other exercise is needed for it."""
    seqs = [decoding_sequence(name, num_prompt) for name in names]
    for seq in seqs:
        scheduler._admit(seq)
    return seqs


def decoding_sequence(name: str, num_prompt: int = 2, max_tokens: int = 100) -> Sequence:
    seq = make_sequence(num_prompt, max_tokens, name=name)
    seq.token_ids.append(7)
    seq.num_computed_tokens = num_prompt
    return seq


class CountingAllocator:
    """A block allocator that only counts; enough for a scheduler, and independent of phase 6."""

    def __init__(self, num_blocks: int, block_size: int = 4) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.block_tables: dict[str, list[int]] = {}
        self.log: list[str] = []

    @property
    def num_free_blocks(self) -> int:
        return self.num_blocks - sum(map(len, self.block_tables.values()))

    def num_blocks_for(self, num_tokens: int) -> int:
        return (num_tokens + self.block_size - 1) // self.block_size

    def can_hold(self, name: str, num_tokens: int) -> bool:
        return self.num_blocks_for(num_tokens) - len(self.block_tables.get(name, [])) <= self.num_free_blocks

    def ensure_capacity(self, name: str, num_tokens: int) -> list[int]:
        self.block_tables[name] = list(
            range(max(self.num_blocks_for(num_tokens), len(self.block_tables.get(name, []))))
        )
        return []

    def free(self, name: str) -> int:
        self.log.append(f"free {name}")
        return len(self.block_tables.pop(name, []))

    def counts(self) -> dict[str, int]:
        return {}


def difference(got: Seq[object], expected: Seq[object]) -> str:
    """The first place where two lists part, in words."""
    for place, (one, other) in enumerate(zip(got, expected)):
        if one != other:
            return f"step {place + 1} ran {one}, not {other}"
    return f"{len(got)} steps, not {len(expected)}"
