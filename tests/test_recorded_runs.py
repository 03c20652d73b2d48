"""`--record` on the commands that run engines beside `generate` and `serve`; no timed round is ever recorded."""

from pathlib import Path

import pytest

from shared.bench.__main__ import main
from shared.bench.results import read_result
from shared.explain.command import main as explain
from shared.trace.chrome import chrome_trace
from shared.trace.recording import Recording, read_recording
from shared.workshop.lab import PROMPTS, ask, play

TINY = ["--tiny", "--dtype", "float64", "--threads", "1", "--repeats", "1"]


def num_queued(recording: Recording) -> int:
    return sum(record["kind"] == "queued" for record in recording.records)


def num_tokens(recording: Recording) -> int:
    return sum(record["tokens"] for record in recording.records if record["kind"] == "finished")


def test_each_phase_is_recorded_once_after_the_timed_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recordings = tmp_path / "new" / "recordings"
    argv = ["who-waits", *TINY, "--tokens", "6", "--out", str(tmp_path), "--record", str(recordings)]
    assert main(argv) == 0
    assert sorted(path.name for path in recordings.iterdir()) == ["4x6-phase01.jsonl", "4x6-phase12.jsonl"]
    for path in recordings.iterdir():
        recording = read_recording(path)
        assert (num_queued(recording), num_tokens(recording)) == (4, 24), "the workload once, and no warm-up"
        assert recording.start["phase"] == int(path.stem[-2:])
        assert recording.start["model"] == "tiny"
        assert any(event["name"] == "decode" for event in chrome_trace(recording)["traceEvents"])
    said = [line for line in capsys.readouterr().err.splitlines() if "round 1" in line or "recording " in line]
    assert ["recording " in line for line in said] == [False, False, True, True]
    (result,) = (read_result(path) for path in tmp_path.glob("*.json"))
    assert [len(system.repeats) for system in result.systems] == [1, 1], "what was recorded is no round"


def test_names_with_a_slash_become_files_and_baselines_are_not_recorded(tmp_path: Path) -> None:
    argv = ["speculation", *TINY, "--workloads", "repetitive", "--scale", "0.04", "--batch-sizes", "1"]
    assert main([*argv, "--out", str(tmp_path), "--record", str(tmp_path / "r")]) == 0
    names = [f"repetitive-1-{name}.jsonl" for name in ("adaptive", "fixed", "off")]
    assert sorted(path.name for path in (tmp_path / "r").iterdir()) == names
    drafts = {name: sum(row[4] for r in read_recording(tmp_path / "r" / name).records for row in r.get("rows", []))
              for name in names}  # fmt: skip
    assert drafts["repetitive-1-off.jsonl"] == 0 < drafts["repetitive-1-fixed.jsonl"]


def test_a_late_prompt_is_late_in_its_recording_too(tmp_path: Path) -> None:
    argv = ["interference", *TINY, "--phases", "4", "--streams", "2", "--prompt-tokens", "40"]
    assert main([*argv, "--out", str(tmp_path), "--record", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*-phase04.jsonl")
    kinds = [record["kind"] for record in read_recording(path).records]
    assert kinds.count("queued") == 3
    assert kinds[2:].index("queued") > 8, "the streams have eight tokens when it comes"


@pytest.mark.slow
def test_a_server_is_recorded_in_a_sweep_that_does_not_count(tmp_path: Path) -> None:
    argv = ["serving", *TINY, "--phases", "12", "--rates", "inf", "--requests", "3", "--output-len", "4-4"]
    assert main([*argv, "--out", str(tmp_path), "--record", str(tmp_path / "r")]) == 0
    recording = read_recording(tmp_path / "r" / "serving-phase12.jsonl")
    assert (num_queued(recording), num_tokens(recording)) == (4, 16), "three, and the load tester's warm-up before them"
    (result,) = (read_result(path) for path in tmp_path.glob("*.json"))
    assert len(result.systems[0].repeats) == 1


@pytest.mark.parametrize("folder", ["file", "file/below"])
def test_a_folder_that_cannot_be_made_is_said_before_anything_runs(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["who-waits", *TINY, "--record", str(tmp_path / folder)]) == 2
    assert "error: --record" in (said := capsys.readouterr().err)
    assert "give a folder that can be made" in said


def test_recording_baselines_alone_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["offline", *TINY, "--phases", "none", "--record", str(tmp_path)]) == 2
    assert "--record: only phases are recorded" in capsys.readouterr().err


def test_the_explained_run_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl"
    argv = ["--phase", "4", "--tiny", "llama", "--max-tokens", "5", "--record", str(path)]
    assert explain([*argv, "--plant", "position-off-by-one"]) == 1
    recording = read_recording(path)
    assert recording.title == "phase 4, explained: position-off-by-one"
    assert num_tokens(recording) == 5
    assert explain([*argv, "--got", "1,2,3"]) == 2
    assert "--record: with --got" in capsys.readouterr().err


def test_what_a_notebook_plays_can_be_recorded(tmp_path: Path) -> None:
    played = play(12, [ask(prompt, 4) for prompt in PROMPTS], record=tmp_path / "run.jsonl")
    recording = read_recording(tmp_path / "run.jsonl")
    assert (num_queued(recording), num_tokens(recording)) == (4, 16)
    assert recording.records[-1]["kind"] in ("step", "freed", "finished")
    assert played.num_steps == max(record["n"] for record in recording.records if record["kind"] == "step")
