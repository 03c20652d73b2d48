"""What each step of an engine ran, and which blocks were held then: for notebooks and pictures. Torch-free."""

from dataclasses import dataclass
from typing import Any

from shared.step import ScheduledSequence, StepPlan


@dataclass(frozen=True, slots=True)
class RowRecord:
    """kind: "decode", "prefill", or "verify" where guesses were run with it (phase 12)."""

    name: str
    kind: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class StepRecord:
    """number: the step, from 1. text: its plan as a table. block_tables: sequence -> blocks, empty before phase 6."""

    number: int
    text: str
    rows: tuple[RowRecord, ...]
    block_tables: dict[str, list[int]]

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)


def watch(engine: Any) -> list[StepRecord]:
    """A list that grows by a record with every step that the engine runs from now on (phases 2 to 12)."""
    records: list[StepRecord] = []
    execute = engine.runner.execute

    def watched(plan: StepPlan) -> Any:
        if plan:
            allocator = getattr(engine.scheduler, "allocator", None)
            tables = {name: list(table) for name, table in allocator.block_tables.items()} if allocator else {}
            records.append(StepRecord(len(records) + 1, str(plan), tuple(map(_row, plan.items)), tables))
        return execute(plan)

    engine.runner.execute = watched
    return records


def _row(item: ScheduledSequence) -> RowRecord:
    kind = "verify" if item.draft else "decode" if item.is_decode else "prefill"
    return RowRecord(item.seq.name, kind, item.num_run_tokens)
