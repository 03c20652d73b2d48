"""From what an engine handed over to records: small JSON objects, the lines of a recording. Torch-free.

Every record has a `kind` and, but for a few, `at`: microseconds since the recording began. What a record says is
absolute (a sequence's blocks from place 3 on, its progress), so that applying it twice does no harm. There are no
tokens and no text in a record, only their numbers.

    start      phase, model, engine's sizes; what is running already; tables, cached blocks
    queued     id, sequences (their names), prompt (tokens)
    step       n, at, took; rows: [sequence, "p"refill | "d"ecode, first position, tokens, drafts, new tokens]
    admitted, prefix_hit (tokens), preempted (how), swapped_in, freed      id: the sequence's name
    finished   id: the request's; reason, tokens
    lost       count: so many records are missing; the next step shows all tables

`pool` and `swap`, in a step or with `freed`: [sequence, place, blocks from there on]; `pool_gone` and `swap_gone`, to
be taken before them: [sequence, those of its blocks that stay cached]; `cached`, after them: all cached blocks.
"""

import json
import time
from typing import Any

from shared.trace.tap import Raw, RawEvent, RawLoss, RawStep, TableChanges

VERSION = 1
Record = dict[str, Any]


class Encoder:
    """Writes the raws of one engine down, in their order. zero: when the recording began (time.perf_counter)."""

    def __init__(self, zero: float) -> None:
        self.zero = zero
        self._names: dict[str, list[str]] = {}  # request id -> names of its sequences, where n > 1

    def encode(self, raw: Raw) -> Record:
        if isinstance(raw, RawStep):
            return self._step(raw)
        if isinstance(raw, RawEvent):
            return self._event(raw)
        assert isinstance(raw, RawLoss)
        return {"kind": "lost", "count": raw.count}

    def now(self) -> int:
        return self.at(time.perf_counter())

    def at(self, seconds: float) -> int:
        return round((seconds - self.zero) * 1e6)

    def start(self, engine: Any, **about: Any) -> Record:
        """What is there now: sizes, requests that are known already, tables. about: phase, title, model."""
        states = engine.requests.states()
        for state in states:
            self._note_names(state.request_id, len(state.sequences))
        record = {"kind": "start", "version": VERSION, "at": self.now(), **about, "engine": sizes(engine)}
        record["requests"] = [self._known(state) for state in states]
        return record | tables(engine)

    def _known(self, state: Any) -> Record:
        rows = [[seq.name, seq.status.value, seq.num_computed_tokens, seq.num_output_tokens] for seq in state.sequences]
        prompt = len(state.request.prompt_token_ids)
        return {"id": state.request_id, "at": self.at(state.metrics.arrival_time), "prompt": prompt, "sequences": rows}

    def _step(self, raw: RawStep) -> Record:
        new = None if raw.outputs is None else {(o.request_id, o.index): len(o.token_ids) for o in raw.outputs}
        rows = []
        for item in raw.plan.items:
            seq = item.seq
            num_new = 1 if new is None else new.get((seq.request_id, seq.index), 0)
            kind = "d" if item.is_decode else "p"
            rows.append([seq.name, kind, item.num_computed_tokens, item.num_tokens, len(item.draft), num_new])
        took = round((raw.ended - raw.started) * 1e6)
        record = {"kind": "step", "n": raw.number, "at": self.at(raw.started), "took": took, "rows": rows}
        return record | _changes(raw.pool, raw.swap)

    def _event(self, raw: RawEvent) -> Record:
        event = raw.event
        record: Record = {"kind": event.kind, "at": self.at(event.time), "id": event.request_id}
        if event.kind == "queued":
            names = self._note_names(event.request_id, raw.n)
            return record | {"sequences": names, "prompt": raw.num_prompt_tokens}
        if event.kind == "finished":
            self._names.pop(event.request_id, None)
            return record | {"reason": event.detail, "tokens": event.num_tokens}
        record["id"] = self._name(event.request_id, event.index)
        if event.kind == "prefix_hit":
            record["tokens"] = event.num_tokens
        if event.kind == "preempted":
            record["how"] = event.detail
        return record | _changes(raw.pool, raw.swap)

    def _note_names(self, request_id: str, n: int) -> list[str]:
        """As `Sequence.name` has them."""
        if n == 1:
            return [request_id]
        self._names[request_id] = [f"{request_id}/{index}" for index in range(n)]
        return self._names[request_id]

    def _name(self, request_id: str, index: int) -> str:
        names = self._names.get(request_id)
        return names[index] if names else request_id


def to_line(record: Record) -> str:
    return json.dumps(record, separators=(",", ":"))


def sizes(engine: Any) -> Record:
    """What there is room for; only what this phase has."""
    scheduler = getattr(engine, "scheduler", None)
    allocator, swap = getattr(scheduler, "allocator", None), getattr(scheduler, "swap", None)
    found = {
        "max_batch_size": getattr(scheduler, "max_batch_size", None),
        "budget_tokens": getattr(scheduler, "prefill_budget_tokens", None),
        "chunk_tokens": getattr(scheduler, "prefill_chunk_size", None),
        "block_size": getattr(allocator, "block_size", None),
        "num_blocks": getattr(allocator, "num_blocks", None),
        "num_swap_blocks": getattr(swap, "num_blocks", None),
        "has_prefix_cache": True if hasattr(allocator, "cached") else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def tables(engine: Any) -> Record:
    """Blocks as they are held now. Read beside the stepping thread, so perhaps a step old; the next step is exact."""
    scheduler = getattr(engine, "scheduler", None)
    allocator, swap = getattr(scheduler, "allocator", None), getattr(scheduler, "swap", None)
    found: Record = {}
    if allocator is not None:
        found["pool"] = [[name, 0, list(table)] for name, table in list(allocator.block_tables.items())]
        found["cached"] = list(getattr(allocator, "cached", ()))
    if swap is not None:
        found["swap"] = [[name, 0, list(table)] for name, table in list(swap.tables.items())]
    return found


def _changes(pool: TableChanges, swap: TableChanges) -> Record:
    """Without what is empty."""
    found = {"pool": pool.grown, "pool_gone": pool.gone, "swap": swap.grown}
    named: Record = {name: value for name, value in found.items() if value}
    if pool.cached is not None:
        named["cached"] = pool.cached
    if swap.gone:
        named["swap_gone"] = [[name, []] for name, _ in swap.gone]
    return named
