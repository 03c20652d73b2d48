"""The command line, the same for every phase: what it prints, what it refuses, and with which exit code."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shared import cli, demo, show_config
from shared.cli_generate import print_stats
from shared.registry import PHASES, Phase, newest_phase, phase_by_number
from shared.stats import EngineStats
from tests.helpers import PA, T0_OUTPUTS, cyclic_model, letter_tokenizer
from tests.test_guards import ROOT

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def letters_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """C20 on disk: after any letter comes the next one, of twenty."""
    folder = tmp_path_factory.mktemp("letters")
    cyclic_model().to(torch.float32).save_pretrained(folder)
    letter_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a phase's command in this process: (exit code, stdout, stderr)."""

    def run_command(phase: Phase, *argv: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            cli.main(phase.number, argv)
        printed = capsys.readouterr()
        return int(exit_.value.code or 0), printed.out, printed.err

    return run_command


def generate(run: Run, phase: Phase, folder: str, *argv: str) -> list[dict[str, Any]]:
    code, out, _ = run(phase, "generate", "--model", folder, "--json", *argv)
    assert code == 0
    return [json.loads(line) for line in out.splitlines()]


def test_json_lines_come_in_input_order_with_every_field(run: Run, phase: Phase, letters_folder: str) -> None:
    records = generate(run, phase, letters_folder, "--max-tokens", "3", "abc", "m", "def")
    assert [record["text"] for record in records] == ["def", "nop", "ghi"]
    assert set(records[0]) == {
        "id",
        "prompt_token_ids",
        "token_ids",
        "text",
        "finish_reason",
        "ttft_ms",
        "e2e_ms",
    }
    assert records[0]["prompt_token_ids"] == [10, 11, 12]
    assert records[0]["token_ids"] == [13, 14, 15]
    assert records[0]["finish_reason"] == "length"
    assert 0 < records[0]["ttft_ms"] <= records[0]["e2e_ms"]


def test_text_is_printed_for_people(run: Run, phase: Phase, letters_folder: str) -> None:
    assert run(phase, "generate", "--model", letters_folder, "--max-tokens", "4", "abc")[:2] == (0, "defg\n")
    _, out, _ = run(phase, "generate", "--model", letters_folder, "--max-tokens", "4", "abc", "m")
    assert "defg" in out
    assert "nopq" in out
    assert out.index("abc") < out.index("defg") < out.index("nopq")


def test_every_sampling_option_arrives(run: Run, phase: Phase, letters_folder: str) -> None:
    stopped = generate(run, phase, letters_folder, "--stop", "fg", "abc")[0]
    assert (stopped["text"], stopped["finish_reason"]) == ("de", "stop")
    seeded = [
        generate(run, phase, letters_folder, "--temperature", "5", "--seed", seed, "--max-tokens", "8", "abc")[0]
        for seed in ("1", "1", "2")
    ]
    assert seeded[0]["token_ids"] == seeded[1]["token_ids"] != seeded[2]["token_ids"]


def test_a_file_of_lines_and_a_file_of_json_lines(run: Run, letters_folder: str, tmp_path: Path) -> None:
    lines, records = tmp_path / "lines.txt", tmp_path / "records.jsonl"
    lines.write_text("abc\n\nm\n")
    records.write_text('{"prompt": "abc", "max_tokens": 2, "id": "first"}\n{"prompt_token_ids": [10], "stop": ["d"]}\n')
    phase = newest_phase()
    texts = generate(run, phase, letters_folder, "--max-tokens", "3", "--prompts-file", str(lines))
    assert [record["text"] for record in texts] == ["def", "nop"]
    mixed = generate(run, phase, letters_folder, "--max-tokens", "3", "--prompts-file", str(records))
    assert [(record["text"], record["finish_reason"]) for record in mixed] == [("de", "length"), ("bc", "stop")]
    assert mixed[0]["id"] == "first"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["generate"], "nothing to do: give a PROMPT"),
        (["generate", "--temperature", "-1", "abc"], "temperature: must be at least 0"),
        (["generate", "--max-tokens", "0", "abc"], "max_tokens: must be at least 1"),
        (["generate", ""], "prompt: is empty"),
        (["generate", "a\udcff"], "prompt: is no valid text: half a surrogate pair, or no UTF-8, at character 1"),
        (["generate", "abc" * 100], "prompt_token_ids: has 300 tokens, but a sequence may hold 256"),
        (["generate", "--max-model-len", "9999", "abc"], "max_model_len: 9999 is over the model's own limit, 256"),
        (["generate", "--max-batch-size", "0", "abc"], "max_batch_size: must be a whole number of at least 1"),
        (["generate", "--max-batch-size", "many", "abc"], "MAX_BATCH_SIZE='many' cannot be read"),
        (["generate", "--chat", "abc"], "messages: this model has no chat template"),
        (["generate", "--prompts-file", "/no/such/file"], "cannot read prompts from /no/such/file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run: Run, letters_folder: str, argv: list[str], message: str) -> None:
    code, out, err = run(newest_phase(), *argv, "--model", letters_folder)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert message in err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "abc", "tempereture": 1}', "line 1: tempereture: is no field of a request"),
        ('{"prompt": "abc", "prompt_token_ids": [10]}', "line 1: prompt: give either"),
        ('{"prompt": "abc"', "line 1: is not JSON"),
        ('{"prompt_token_ids": [64]}', "prompt_token_ids: token id 64 is outside the vocabulary (0 to 63)"),
        ('{"prompt_token_ids": []}', "line 1: prompt_token_ids: is empty"),
        ('{"prompt": "abc", "max_tokens": 1' + "0" * 5000 + "}", "line 1: is not JSON"),
        ('{"prompt": ' + "[" * 100_000, "line 1: is not JSON"),
        ('{"prompt": "\\ud800"}', "line 1: prompt: is no valid text"),
        ('{"prompt": "abc", "stop": 5}', "line 1: stop: must be a string or a list"),
        ('{"prompt": "abc", "temperature": 1' + "0" * 400 + "}", "line 1: temperature: must be a finite number"),
        ('{"prompt": "abc", "top_p": 2}', "line 1: top_p: must be between 0.0 and 1.0"),
    ],
)
def test_a_bad_line_of_a_file_is_named(run: Run, letters_folder: str, tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(line + "\n")
    code, out, err = run(newest_phase(), "generate", "--model", letters_folder, "--prompts-file", str(path))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert message in err


class Stdin:
    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)


@pytest.mark.parametrize("path", ["-", "prompts"])
def test_a_byte_order_mark_is_no_text_and_only_newlines_end_a_line(
    run: Run, letters_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    def ids_of(content: str, mark: str = "\ufeff") -> list[str]:
        encoded = (mark + content).encode()
        monkeypatch.setattr(sys, "stdin", Stdin(encoded))
        (tmp_path / "prompts").write_bytes(encoded)
        where = "-" if path == "-" else str(tmp_path / path)
        arguments = ["--max-tokens", "1", "--prompts-file", where]
        return [record["id"] for record in generate(run, newest_phase(), letters_folder, *arguments)]

    for mark in ("", "\ufeff"):
        for end in ("\n", "\r\n", "\r"):
            lines = ['{"prompt": "abc", "id": "a\u2028b\u0085c\u2029"}', "", '{"prompt": "b", "id": "2"}']
            assert ids_of(end.join(lines), mark) == ["a\u2028b\u0085c\u2029", "2"]
            assert len(ids_of(end.join(["a\u2028b\x0cc", "m", ""]), mark)) == 2


@pytest.mark.parametrize("path", ["-", "prompts"])
def test_prompts_that_are_no_utf_8_are_refused(
    run: Run, letters_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(b"\xff\xfe\n"))
    (tmp_path / "prompts").write_bytes(b"\xff\xfe\n")
    where = "-" if path == "-" else str(tmp_path / path)
    code, _, err = run(newest_phase(), "generate", "--model", letters_folder, "--prompts-file", where)
    assert (code, len(err.splitlines())) == (2, 1)
    assert f"cannot read prompts from {where}" in err


@pytest.mark.parametrize("seconds", ["nan", "inf", "-5", "soon"])
def test_a_grace_period_is_checked_before_a_model_is_loaded(run: Run, seconds: str) -> None:
    code, _, err = run(newest_phase(), "serve", "--model", "/no/such/folder", f"--grace-period={seconds}")
    assert code == 2
    assert f"--grace-period: must be seconds, 0 or more, got '{seconds}'" in err


def test_settings_come_from_the_environment_and_options_win(
    run: Run, letters_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_NAME", letters_folder)
    monkeypatch.setenv("MAX_BATCH_SIZE", "3")
    monkeypatch.setenv("COLUMNS", "200")
    code, _, err = run(newest_phase(), "generate", "--show-config", "--kv-block-size", "4")
    assert code == 0
    rows = {line.split("│")[1].strip(): line for line in err.splitlines() if "│" in line}
    assert " 3 " in rows["max_batch_size"]
    assert " 4 " in rows["kv_block_size"]
    assert "as given" in rows["max_batch_size"]
    assert "as given" in rows["kv_block_size"]
    assert "default on cpu" in rows["prefill_chunk_size"]


def test_show_config_explains_every_setting_and_whether_it_fits(letters_folder: str) -> None:
    from dataclasses import fields

    from shared.config import EngineConfig
    from shared.model_loader import load_model

    loaded = load_model(letters_folder, dtype="float32", device="cpu")
    rows = {name: (value, reason) for name, value, reason in show_config.config_rows(EngineConfig(), loaded)}
    assert {field.name for field in fields(EngineConfig)} <= rows.keys()
    assert all(reason for _, reason in rows.values())
    assert rows["K/V per token"][0] == f"{2 * 2 * 2 * 16 * 4} bytes"
    assert rows["fits"][0] == "yes"
    assert rows["kv_num_blocks"][0] == str(32 * 256 // 16)
    assert rows["swap_num_blocks"][0] == str(32 * 256 // 16 // 2)
    open_still = {name for name, (value, _) in rows.items() if value == "auto"}
    assert open_still == {"forward", "attention_kernel"}, "these two are chosen when the engine is built"


def test_show_config_says_what_the_engine_made_of_auto(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("forward", "auto", "default"), ("dtype", "float32", "as given")]
    show_config.print_config(rows, phase_by_number(8), {"forward": "native", "operations": "cpp"})
    shown = " ".join(capsys.readouterr().err.split())
    assert "native │ auto is this, for this model and machine" in shown
    assert "operations │ cpp" in shown


def test_help_of_every_phase_teaches_in_under_two_seconds(phase: Phase) -> None:
    command = [sys.executable, "-m", phase.package, "generate", "--help"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10, check=True)
    assert "examples:" in result.stdout
    assert "--temperature" in result.stdout
    assert "torch" not in subprocess.run(
        [sys.executable, "-X", "importtime", *command[1:]], cwd=ROOT, capture_output=True, text=True, check=True
    ).stderr.replace("torch_choice", "")


def test_ctrl_c_ends_a_command_with_130_and_no_traceback(letters_folder: str) -> None:
    program = (
        "import tests.helpers as h, shared.registry as r, shared.cli as c\n"
        "build = r.Phase.build_engine\n"
        "def slowed(phase):\n"
        "    def make(*args):\n"
        "        engine = build(phase)(*args); h.slow_down(engine, 0.05); print('running', flush=True); return engine\n"
        "    return make\n"
        "r.Phase.build_engine = slowed\n"
        f"c.main({newest_phase().number}, ['generate', '--model', {letters_folder!r}, '--max-tokens', '200', 'a', 'm'])"
    )
    command = [sys.executable, "-c", program]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=5)
    assert process.returncode == 130
    assert err.strip().endswith("interrupted")
    assert "Traceback" not in err


def test_the_demo_shows_phase_one_against_the_newest(
    letters_folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "QUESTIONS", ["abc", "m", "ghij"])
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as exit_:
        demo.main(["--model", letters_folder, "--max-tokens", "5"])
    out = capsys.readouterr().out
    assert exit_.value.code == 0
    for phase in (PHASES[0], newest_phase()):
        assert out.count(phase.label) >= 2
        assert f"phase {phase.number}" in out
    assert "defgh" in out
    assert out.count("15 tokens") == 2
    assert out.count("1 ") >= 2
    assert "the median wait for a first token is" in out.replace("\n", " ")


def test_the_demo_refuses_a_phase_that_has_no_engine(capsys: pytest.CaptureFixture[str]) -> None:
    for numbers, message in (("1,5", "no engine for phase 5"), ("one", "takes numbers with commas")):
        with pytest.raises(SystemExit) as exit_:
            demo.main(["--phases", numbers])
        assert exit_.value.code == 2
        assert message in capsys.readouterr().err


def test_token_id_prompts_need_no_tokenizer(run: Run, tmp_path: Path) -> None:
    from shared.tiny_models import tiny_llama

    tiny_llama().save_pretrained(tmp_path / "model")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt_token_ids": PA, "max_tokens": 4}) + "\n")
    records = generate(
        run, newest_phase(), str(tmp_path / "model"), "--dtype", "float64", "--prompts-file", str(prompts)
    )
    assert records[0]["token_ids"] == T0_OUTPUTS["PA"][:4]
    code, _, err = run(newest_phase(), "generate", "--model", str(tmp_path / "model"), "abc")
    assert code == 2
    assert "no tokenizer" in err


def test_stats_tell_what_a_phase_does_and_leave_out_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    print_stats(EngineStats(num_steps=3, generated_tokens=5))
    assert capsys.readouterr().err == "steps 3, tokens 5\n"
    figures = {"num_preemptions": 1, "num_recomputed_tokens": 24, "swap_blocks_total": 7}
    print_stats(EngineStats(num_prefix_queried_tokens=72, num_prefix_hit_tokens=16, num_drafted_tokens=8, **figures))
    assert capsys.readouterr().err == (
        "steps 0, tokens 0; preemptions 1, tokens dropped by them 24; prompt tokens cached 16 of 72; "
        "guesses right 0 of 8\n"
    )
