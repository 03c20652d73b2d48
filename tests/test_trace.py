"""Recordings: what is written down is what the engine did, and costs the stepping thread next to nothing."""

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from phase06_block_allocator.block_allocator import BlockAllocator
from phase12_prefix_and_spec.prefix_cache import PrefixCachingAllocator
from shared import events
from shared.cli import main
from shared.errors import SetupError
from shared.events import EventLog
from shared.lesson_diff import ROOT
from shared.registry import Phase, newest_phase, phase_by_number
from shared.request import Request, SamplingParams
from shared.step import ScheduledSequence, StepPlan
from shared.timeline import timelines
from shared.tiny_models import tiny_llama
from shared.trace.__main__ import main as trace_command
from shared.trace.chrome import chrome_trace
from shared.trace.encode import Encoder
from shared.trace.recording import Recording, read_recording, recorded
from shared.trace.scenes import FOLDER, SCENES
from shared.trace.tap import RawLoss, TableWatch, Tap
from tests.fakes import make_sequence
from tests.helpers import PA, PB, PC, greedy, letter_tokenizer, open_engine

SMALL = {"kv_num_blocks": 12, "kv_block_size": 4, "max_batch_size": 3, "speculative_method": "ngram"}


class Mirror:
    """Blocks as somebody sees them who has nothing but the records."""

    def __init__(self) -> None:
        self.tables: dict[str, list[int]] = {}
        self.cached: set[int] = set()

    def drop(self, name: str, cached: list[int]) -> None:
        self.tables.pop(name, None)
        self.cached |= set(cached)

    def grow(self, name: str, place: int, blocks: list[int]) -> None:
        self.tables[name] = self.tables.get(name, [])[:place] + blocks
        self.cached -= set(blocks)

    def take(self, record: dict[str, Any], key: str = "pool") -> None:
        for name, cached in record.get(f"{key}_gone", []):
            self.drop(name, cached)
        for name, place, blocks in record.get(key, []):
            self.grow(name, place, blocks)
        if record.get("cached") is not None:
            self.cached = set(record["cached"])


def of_kind(recording: Recording, kind: str) -> list[dict[str, Any]]:
    return [record for record in recording.records if record["kind"] == kind]


def record_some(phase: Phase, path: Path) -> tuple[Recording, list[Any], list[events.Event]]:
    """Requests that share prefixes, are preempted where a phase does that, and have two completions."""
    requests = [greedy(PA, 20), greedy(PA, 12), greedy(PB, 16), greedy(PC, 5, n=2, temperature=1.0, seed=1)]
    with (
        open_engine(phase, **SMALL) as engine,
        engine.events.recording() as seen,
        recorded(engine, path, phase=phase.number),
    ):
        outputs = engine.generate(requests)
    return read_recording(path), outputs, seen


# -- tables -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_the_changes_of_tables_tell_the_tables(seed: int) -> None:
    """Sequences come, grow, share, leave and come again under the same name, several of them between two looks."""
    rng = random.Random(seed)
    allocator = PrefixCachingAllocator(24, 4)
    watch, mirror = TableWatch(allocator.block_tables, allocator.cached), Mirror()
    sequences = {name: make_sequence(rng.randint(5, 20), name=name) for name in "abcdef"}
    for _ in range(400):
        for _ in range(rng.randint(1, 3)):
            name = rng.choice("abcdef")
            seq = sequences[name]
            if name in allocator.block_tables and rng.random() < 0.4:
                allocator.free(name)
                continue
            if name not in allocator.block_tables:
                seq.num_computed_tokens = allocator.match_prefix(seq)
            num_tokens = min(len(seq.token_ids), seq.num_computed_tokens + rng.randint(1, 8))
            if allocator.can_hold(name, num_tokens):
                allocator.ensure_capacity(name, num_tokens)
                seq.num_computed_tokens = num_tokens
                allocator.register_computed_blocks(seq)
        changes = watch.changes(is_thorough=True)
        mirror.take({"pool": changes.grown, "pool_gone": changes.gone, "cached": changes.cached})
        assert mirror.tables == allocator.block_tables
        assert mirror.cached == set(allocator.cached)


def test_a_table_that_did_not_change_is_not_told_again() -> None:
    allocator = BlockAllocator(8, 4)
    watch = TableWatch(allocator.block_tables)
    allocator.ensure_capacity("a", 4)
    assert watch.changes().grown == [("a", 0, [0])]
    assert not watch.changes()
    allocator.ensure_capacity("a", 9)
    assert watch.changes().grown == [("a", 1, [1, 2])]


# -- what is recorded ---------------------------------------------------------------------------------


def test_every_phase_can_be_recorded(phase: Phase, tmp_path: Path) -> None:
    recording, outputs, _ = record_some(phase, tmp_path / "run.jsonl")
    assert recording.start["phase"] == phase.number
    arrived = {record["id"]: record for record in of_kind(recording, "queued")}
    assert [record["prompt"] for record in arrived.values()] == [8, 8, 8, 8]
    assert arrived["req-4"]["sequences"] == ["req-4/0", "req-4/1"]
    new: dict[str, int] = {}
    for step in of_kind(recording, "step"):
        for name, kind, start, num, drafts, num_new in step["rows"]:
            assert kind == ("d" if num == 1 and start >= 8 else "p")
            assert num_new <= 1 + drafts
            new[name] = new.get(name, 0) + num_new
    wanted = {output.request_id: len(output.token_ids) for output in outputs[:3]}
    wanted |= {f"req-4/{one.index}": len(one.token_ids) for one in outputs[3].outputs}
    assert new == wanted
    assert {record["id"] for record in of_kind(recording, "finished")} == set(arrived)


def test_a_recording_draws_the_same_timeline_as_the_engine(phase: Phase, tmp_path: Path) -> None:
    recording, _, seen = record_some(phase, tmp_path / "run.jsonl")
    from_file, from_engine = timelines(recording.events()), timelines(seen)
    shift = from_engine[0].arrived - from_file[0].arrived
    for one, other in zip(from_file[:3], from_engine[:3]):  # those with one completion
        assert one.request_id == other.request_id
        for name in ("arrived", "prefill_started", "prefill_ended", "finished"):
            assert getattr(one, name) + shift == pytest.approx(getattr(other, name), abs=1e-5), name


@pytest.mark.parametrize("number", [6, 9, 12])
def test_blocks_and_swapped_blocks_come_back_from_a_recording(number: int, tmp_path: Path) -> None:
    recording, _, _ = record_some(phase_by_number(number), tmp_path / "run.jsonl")
    pool, swap, most = Mirror(), Mirror(), 0
    for record in recording.records:
        pool.take(record)
        swap.take(record, "swap")
        held = {block for table in pool.tables.values() for block in table}
        assert held <= set(range(12))
        assert not held & pool.cached
        most = max(most, len(held))
    assert pool.tables == swap.tables == {}
    assert most >= 8
    preempted = of_kind(recording, "preempted")
    assert bool(preempted) == (number >= 9)
    assert len([one for one in preempted if one["how"] == "swap"]) == len(of_kind(recording, "swapped_in"))
    assert bool(pool.cached) == (number == 12)


def test_a_request_that_comes_and_goes_in_one_step_leaves_its_blocks_in_the_cache(tmp_path: Path) -> None:
    with open_engine(newest_phase(), kv_block_size=4, kv_num_blocks=16) as engine:
        with recorded(engine, tmp_path / "run.jsonl"):
            engine.generate([greedy(PA, 1)])
        left = set(engine.scheduler.allocator.cached)
    mirror = Mirror()
    for record in read_recording(tmp_path / "run.jsonl").records:
        mirror.take(record)
    assert mirror.cached == left != set()


def test_a_recording_has_no_tokens_and_no_text(tmp_path: Path) -> None:
    tokenizer = letter_tokenizer(vocab_size=97)
    with open_engine(newest_phase(), tokenizer=tokenizer) as engine, recorded(engine, tmp_path / "run.jsonl"):
        text = engine.generate([Request([11, 12, 13], SamplingParams(max_tokens=8))])[0].text
    written = (tmp_path / "run.jsonl").read_text()
    assert text
    assert text not in written
    assert "token_ids" not in written


def test_who_joins_late_is_told_what_there_is() -> None:
    with open_engine(newest_phase(), kv_block_size=4, kv_num_blocks=32) as engine:
        for prompt in (PA, PB):
            engine.add_request(greedy(prompt, 8))
        engine.step()
        start = Encoder(0.0).start(engine, title="x")
        assert [request["sequences"] for request in start["requests"]] == [
            [["req-1", "running", 8, 1]],
            [["req-2", "running", 8, 1]],
        ]
        assert {name: blocks for name, _, blocks in start["pool"]} == engine.scheduler.allocator.block_tables
        while engine.has_unfinished():
            engine.step()


def test_what_comes_too_fast_is_lost_and_said_to_be_lost() -> None:
    with open_engine(newest_phase(), kv_block_size=4, kv_num_blocks=32) as engine:
        tap = Tap(engine, max_waiting=5)
        tap.open()
        engine.generate([greedy(PA, 20)])
        engine.add_request(greedy(PB, 8))
        engine.step()
        first, *rest = tap.take()
        tap.close()
        assert isinstance(first, RawLoss)
        lost = Encoder(0.0).encode(first)
        assert lost["count"] > 5
        assert len(rest) <= 5
        while engine.has_unfinished():
            engine.step()
        assert not list(tap.take()), "closed"


# -- what it costs ------------------------------------------------------------------------------------


def test_nobody_listens_nobody_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("an event was made for nobody")

    monkeypatch.setattr(events, "Event", refuse)
    log = EventLog()
    plan = StepPlan([ScheduledSequence.next_tokens(make_sequence(4), 4)])
    log.emit("queued", "a")
    log.emit_step(plan, [], 0.0, 1.0)
    log.emit_run(plan.items[0], 0.0, 1.0)
    steps: list[StepPlan] = []
    stop = log.subscribe_to_steps(lambda plan, *_: steps.append(plan))
    log.emit("drafts_accepted", "a")
    log.emit_step(plan, [], 0.0, 1.0)
    assert steps == [plan], "a step is one call, and no event for each of its rows"
    stop()
    log.emit_step(plan, [], 0.0, 1.0)
    assert len(steps) == 1


def test_after_a_recording_nobody_listens(tmp_path: Path) -> None:
    with open_engine(newest_phase()) as engine:
        with recorded(engine, tmp_path / "run.jsonl"):
            assert engine.events.has_listeners
        assert not engine.events.has_listeners
        with recorded(engine, None):
            assert not engine.events.has_listeners


# -- files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is no recording"),
        (b'{"kind":"queued","at":1}\n', "is no recording"),
        (b'{"kind":"start","version":99}\n', "version 99"),
        (b'{"kind":"start","version":1}\n{"kind":"st', "line 2"),
        (b"[]\n", "line 1"),
        (b"\xff\xfe", "is no text"),
    ],
)
def test_a_file_that_is_no_recording_is_refused_with_a_reason(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(SetupError, match=complaint):
        read_recording(path)


def test_a_file_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert trace_command(["chrome", "/nowhere/x.jsonl"]) == 2
    assert capsys.readouterr().err == "error: /nowhere/x.jsonl: No such file or directory\n"


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "no" / "x.jsonl"
    with open_engine(newest_phase()) as engine, pytest.raises(SetupError, match="--record"), recorded(engine, path):
        pass


def test_generate_records_and_chrome_writes_what_perfetto_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_llama().save_pretrained(tmp_path / "model")
    letter_tokenizer(vocab_size=97).save_pretrained(tmp_path / "model")
    run, out = str(tmp_path / "run.jsonl"), str(tmp_path / "run.json")
    with pytest.raises(SystemExit) as exit_code:
        main(12, ["generate", "--model", str(tmp_path / "model"), "--max-tokens", "3", "--record", run, "abc", "bcd"])
    assert exit_code.value.code == 0
    assert len(of_kind(read_recording(run), "queued")) == 2
    assert trace_command(["chrome", run, "-o", out]) == 0
    assert check_trace(json.loads(Path(out).read_text())) > 10
    assert "perfetto" in capsys.readouterr().err


def check_trace(trace: dict[str, Any]) -> int:
    """The Trace Event Format, as far as it is used: fields and their types; spans of a track do not overlap."""
    tracks: dict[int, list[tuple[int, int]]] = {}
    named = {event["tid"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    for event in trace["traceEvents"]:
        assert event["ph"] in "MXiC"
        assert isinstance(event["name"], str)
        assert all(isinstance(event[key], int) for key in ("pid", "tid", "ts"))
        assert event["tid"] in named
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
        if event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())
    for spans in tracks.values():
        spans.sort()
        for (_, end), (start, _) in pairwise(spans):
            assert start >= end - 1, "within a rounding"
    return len(trace["traceEvents"])


def test_every_phases_recording_is_a_trace(phase: Phase, tmp_path: Path) -> None:
    recording, _, _ = record_some(phase, tmp_path / "run.jsonl")
    trace = chrome_trace(recording)
    check_trace(trace)
    spans = {event["name"].split()[0] for event in trace["traceEvents"] if event["ph"] == "X"}
    assert {"step", "prefill", "decode"} <= spans


# -- the page's own recordings ------------------------------------------------------------------------


def test_the_pages_recordings_are_small_real_and_complete() -> None:
    index = json.loads((FOLDER / "index.json").read_text())
    assert index == [scene.entry() for scene in SCENES]
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 300_000
    for scene in SCENES:
        for run in scene.runs:
            recording = read_recording(FOLDER / run.file)
            assert recording.start["model"] == "SmolLM2-135M-Instruct"
            assert recording.start["phase"] == run.phase
            assert len(of_kind(recording, "finished")) == len(scene.prompts)
            check_trace(chrome_trace(recording))


def first_tokens(name: str) -> list[float]:
    """Seconds from a request's arrival to its first token, in order of arrival."""
    lines = timelines(read_recording(FOLDER / f"{name}.jsonl").events())
    return [(line.prefill_ended or 0.0) - line.arrived for line in lines]


def test_the_pages_recordings_show_what_they_say() -> None:
    sequential, batched = first_tokens("waits-phase01"), first_tokens("waits-phase12")
    assert sequential[3] > 5 * batched[3]
    assert max(first_tokens("caching-on")) < max(first_tokens("caching-off"))
    with_guesses = of_kind(read_recording(FOLDER / "speculation-on.jsonl"), "step")
    without = of_kind(read_recording(FOLDER / "speculation-off.jsonl"), "step")
    assert len(with_guesses) < 0.7 * len(without)
    how = {record["how"] for record in of_kind(read_recording(FOLDER / "preemption-swap.jsonl"), "preempted")}
    assert "swap" in how


def test_a_listed_file_of_the_page_is_in_the_package() -> None:
    listed = (ROOT / "pyproject.toml").read_text()
    assert '"shared.server" = ["page/*", "page/recordings/*"]' in listed
