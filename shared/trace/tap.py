"""Takes down what an engine does, raw and at once; whoever wants it as text writes it elsewhere. Torch-free.

On the stepping thread this costs an append per step and a look at each block table; nothing is formatted there.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.events import Event
from shared.output import StepOutput
from shared.step import StepPlan

MAX_WAITING = 1 << 16  # raw steps and events that nobody has taken yet


@dataclass(slots=True)
class TableChanges:
    """What became of block tables since the last look.

    grown: (sequence, place, the blocks that its table has from this place on).
    gone: (sequence, those of its blocks that nobody holds now and that keep their contents).
    cached: all such blocks, where the two do not tell: a sequence may come, end and leave blocks behind in one step.
    """

    grown: list[tuple[str, int, list[int]]] = field(default_factory=list)
    gone: list[tuple[str, list[int]]] = field(default_factory=list)
    cached: list[int] | None = None

    def __bool__(self) -> bool:
        return bool(self.grown or self.gone) or self.cached is not None


class TableWatch:
    """Compares block tables with what they were: they grow at their end, are dropped, or begin anew.

    tables: sequence -> its blocks. cached: blocks that are in no table and keep their contents.
    """

    def __init__(self, tables: Mapping[str, list[int]], cached: Collection[int] = ()) -> None:
        self._tables = tables
        self._cached = cached
        self._known_cached: set[int] = set()
        self._known: dict[str, tuple[list[int], int]] = {}  # sequence -> its table, and how long that was

    def changes(self, *, is_thorough: bool = False) -> TableChanges:
        """Since the last call; everything the first time. To be called where the tables do not change meanwhile.

        is_thorough: compare the cached blocks one by one, and not only their number.
        """
        found = TableChanges()
        known = self._known
        for name, table in self._tables.items():
            seen, length = known.get(name, (None, 0))
            if seen is table and length == len(table):
                continue
            if seen is not None and seen is not table:
                self._drop(name, found)
            start = length if seen is table and length < len(table) else 0
            known[name] = (table, len(table))
            found.grown.append((name, start, table[start:]))
            self._known_cached.difference_update(table[start:])
        if len(known) > len(self._tables):
            for name in [name for name in known if name not in self._tables]:
                self._drop(name, found)
        if len(self._known_cached) != len(self._cached) or (is_thorough and self._known_cached != set(self._cached)):
            found.cached = list(self._cached)
            self._known_cached = set(found.cached)
        return found

    def _drop(self, name: str, found: TableChanges) -> None:
        table, _ = self._known.pop(name)
        left = [block for block in table if block in self._cached]
        self._known_cached.update(left)
        found.gone.append((name, left))


@dataclass(frozen=True, slots=True)
class RawStep:
    """A step, as it was handed over; times in seconds of time.perf_counter."""

    number: int
    plan: StepPlan
    outputs: list[StepOutput] | None
    started: float
    ended: float
    pool: TableChanges
    swap: TableChanges


@dataclass(frozen=True, slots=True)
class RawEvent:
    """An event that is not a row of a step. num_prompt_tokens, n: of a request that arrives."""

    event: Event
    num_prompt_tokens: int = 0
    n: int = 1
    pool: TableChanges = field(default_factory=TableChanges)
    swap: TableChanges = field(default_factory=TableChanges)


@dataclass(frozen=True, slots=True)
class RawLoss:
    """So many steps and events came too fast for whoever takes them; the next step shows all tables whole."""

    count: int


Raw = RawStep | RawEvent | RawLoss
EMPTY = TableChanges()


class Tap:
    """Listens to one engine from `open` to `close`; `take` hands out what has come meanwhile, in order."""

    def __init__(self, engine: Any, max_waiting: int = MAX_WAITING) -> None:
        self._engine = engine
        self._max_waiting = max_waiting
        self._waiting: deque[Raw] = deque()
        self._num_lost = 0
        self._stops: list[Callable[[], None]] = []
        self._watch_tables()

    def open(self) -> None:
        events = self._engine.events
        self._stops = [
            events.subscribe_to_steps(self._saw_step),
            events.subscribe(self._saw_event, with_rows=False),
        ]

    def close(self) -> None:
        for stop in self._stops:
            stop()
        self._stops = []

    def take(self) -> Iterator[Raw]:
        """From any one thread."""
        if self._num_lost:
            count, self._num_lost = self._num_lost, 0
            yield RawLoss(count)
        while self._waiting:
            yield self._waiting.popleft()

    def _watch_tables(self) -> None:
        scheduler = getattr(self._engine, "scheduler", None)
        allocator, swap = getattr(scheduler, "allocator", None), getattr(scheduler, "swap", None)
        self._pool = TableWatch(allocator.block_tables, getattr(allocator, "cached", ())) if allocator else None
        self._swap = TableWatch(swap.tables) if swap else None

    def _saw_step(self, plan: StepPlan, outputs: list[StepOutput] | None, started: float, ended: float) -> None:
        pool = self._pool.changes() if self._pool else EMPTY
        swap = self._swap.changes() if self._swap else EMPTY
        if plan.items or pool or swap:
            self._add(RawStep(self._engine.events.step, plan, outputs, started, ended, pool, swap))

    def _saw_event(self, event: Event) -> None:
        if event.kind == "queued":
            state = self._engine.requests.get(event.request_id)
            if state is not None:
                self._add(RawEvent(event, len(state.request.prompt_token_ids), state.request.params.n))
        elif event.kind == "freed":  # by the one thread that may change the tables
            pool = self._pool.changes(is_thorough=True) if self._pool else EMPTY
            swap = self._swap.changes() if self._swap else EMPTY
            self._add(RawEvent(event, pool=pool, swap=swap))
        else:
            self._add(RawEvent(event))

    def _add(self, raw: Raw) -> None:
        if len(self._waiting) >= self._max_waiting:
            self._num_lost += len(self._waiting)
            self._waiting.clear()
            self._watch_tables()
        self._waiting.append(raw)
