"""Step times: the parts add up, clocks go away again, the roofline is arithmetic, and a line is told from a curve."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.bench.__main__ import main
from shared.bench.decoding import Decoding, decoding_engine
from shared.bench.results import SystemResult, read_result
from shared.bench.roofline import Machine, Work, decode_work
from shared.bench.step_clocks import clocks_in, one_step
from shared.bench.step_fits import findings, fit
from shared.registry import phase_by_number
from shared.tiny_models import tiny_llama

CASE = Decoding(phase_by_number(8), num_sequences=3, context=20, forward="hf", attention_kernel="torch")
PARTS = ("linears", "head", "attention", "model_rest", "sampling", "batch_building", "engine_rest")


@pytest.mark.parametrize("forward", ["hf", "native-torch"])
def test_the_parts_add_up_to_the_step(forward: str) -> None:
    with (
        decoding_engine(replace(CASE, forward=forward), tiny_llama(), num_steps=4) as engine,
        clocks_in(engine) as clocks,
    ):
        for _ in range(4):
            figures = one_step(engine, clocks)
            parts = [figures[f"{part}_s"] or 0 for part in PARTS]
            assert all(seconds > 0 for seconds in parts)
            assert sum(parts) == pytest.approx(figures["whole_step_s"])


def test_every_sequence_decodes_with_its_whole_context_and_keeps_its_pool() -> None:
    case = Decoding(phase_by_number(8), 5, 40, pool_factor=3)
    with decoding_engine(case, tiny_llama(), num_steps=3) as engine:
        running = engine.scheduler.running
        assert [seq.num_computed_tokens for seq in running] == [39] * 5
        for _ in range(3):
            engine.step()
        assert [seq.num_output_tokens for seq in running] == [4] * 5
        assert engine.runner.cache.key.shape[1] == 3 * 5 * (43 // 16 + 2)


def test_clocks_leave_everything_as_it_was_and_change_no_token() -> None:
    def tokens(is_timed: bool) -> tuple[Any, list[list[int]]]:
        model = tiny_llama()
        with decoding_engine(CASE, model, num_steps=3) as engine:
            sequences = list(engine.scheduler.running)
            before = {name: id(vars(module).get("forward")) for name, module in model.named_modules()}
            if is_timed:
                with clocks_in(engine) as clocks:
                    for _ in range(3):
                        one_step(engine, clocks)
            else:
                for _ in range(3):
                    engine.step()
            assert {name: id(vars(module).get("forward")) for name, module in model.named_modules()} == before
            assert "_forward" not in vars(engine.runner)
            return engine, [list(seq.token_ids) for seq in sequences]

    assert tokens(is_timed=True)[1] == tokens(is_timed=False)[1]


def test_a_forward_that_does_not_say_where_its_parts_are_leaves_them_unknown() -> None:
    with decoding_engine(CASE, tiny_llama(), num_steps=1) as engine:
        forward = engine.runner.forward
        engine.runner.forward = lambda batch, cache: forward(batch, cache)
        with clocks_in(engine) as clocks:
            figures = one_step(engine, clocks)
    assert figures["attention_s"] is figures["linears_s"] is figures["model_rest_s"] is None
    assert (figures["whole_step_s"] or 0) > (figures["sampling_s"] or 0) > 0


def test_step_time_covers_every_case_and_prints_what_they_say_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--contexts", "8,24,40", "--sequences", "1,2", "--pool-factors", "1,2", "--steps", "2"]
    plain = ["--tiny", "--forwards", "hf", "--kernels", "torch", "--repeats", "1"]
    assert main(["step-time", *plain, *sizes, "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("step-time-*.json")
    systems = read_result(path).systems
    assert len({system.name for system in systems}) == 3 * 2 * 2
    for system in systems:
        assert {"whole_step_s", "attention_s", "roofline_s", "read_bytes_per_s"} <= set(system.repeats[0])
        assert system.implementation["attention_kernel"] == "torch"
    shown = capsys.readouterr().out
    assert shown.count("ms per 1,000 tokens of context") == 2 * 2
    assert shown.count("pools of 1, 2 times") == 3 * 2


@pytest.mark.parametrize(
    ("argv", "named"),
    [(["--phases", "2"], "phase 8"), (["--kernels", "magic"], "magic"), (["--contexts", "0"], "--contexts")],
)
def test_bad_input_is_named(argv: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["step-time", "--tiny", *argv])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert named in capsys.readouterr().err


def test_a_case_without_room_is_left_out_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    per_token = 2 * 2 * 2 * 16 * 4  # layers x (K and V) x heads x head_dim x bytes, at least
    monkeypatch.setattr("shared.bench.step_parts.kv_bytes_per_token", lambda *_: per_token)
    monkeypatch.setattr("shared.bench.step_parts.available_bytes", lambda: 1.1 * per_token * 60)
    plain = ["--tiny", "--forwards", "hf", "--kernels", "torch", "--repeats", "2", "--steps", "1"]
    assert main(["step-time", *plain, "--contexts", "50,70", "--sequences", "1", "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("step-time-*.json")
    assert [system.settings["context"] for system in read_result(path).systems] == [50]
    assert "left out: phase 8, hf, torch, 1 running, context 70: its K/V needs" in capsys.readouterr().err


# -- arithmetic -------------------------------------------------------------------------------------------


def test_the_roofline_is_the_slower_of_reading_and_computing() -> None:
    machine = Machine(read_rate=10.0, matmul_rate=100.0)
    assert Work(num_bytes=50, num_operations=100).shortest_s(machine) == 5
    assert Work(num_bytes=50, num_operations=900).shortest_s(machine) == 9


def test_the_work_of_a_decode_step_is_what_its_shapes_say() -> None:
    model = tiny_llama()
    config = model.config
    num_weights = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    head = config.head_dim
    work = decode_work(model, num_sequences=3, context=50)
    kv = 3 * 50 * config.num_hidden_layers * 2 * config.num_key_value_heads * head
    scores_and_values = 2 * 2 * 3 * 50 * config.num_hidden_layers * config.num_attention_heads * head
    assert work.num_bytes == model.dtype.itemsize * (num_weights + kv)
    assert work.num_operations == 2 * num_weights * 3 + scores_and_values


def test_a_line_is_told_from_a_curve() -> None:
    line = fit([128, 1024, 4096], [0.010 + 2e-5 * context for context in (128, 1024, 4096)])
    assert (line.start_s, line.per_token_s) == pytest.approx((0.010, 2e-5))
    assert line.r_squared == pytest.approx(1)
    assert line.worst == pytest.approx(0, abs=1e-9)
    curve = fit([128, 1024, 4096], [1e-9 * context**2 for context in (128, 1024, 4096)])
    assert curve.worst > 0.5


def test_findings_group_what_differs_in_one_thing_only() -> None:
    def system(context: int, pool_factor: int, seconds: float, kernel: str = "torch") -> SystemResult:
        settings = {"num_sequences": 8, "context": context, "pool_factor": pool_factor}
        repeats = [{"whole_step_s": seconds * noise} for noise in (0.5, 1.0, 3.0)]  # the median is `seconds`
        return SystemResult("x", "phase 8, and more", repeats, settings=settings, implementation={"kernel": kernel})

    systems = [system(context, 1, 0.01 + 1e-5 * context) for context in (100, 200, 300)]
    systems += [system(300, 4, 0.0143), system(100, 1, 9.0, kernel="other")]
    assert list(findings(systems)) == [
        "phase 8, kernel torch, num_sequences 8, pool_factor 1: 10.0 ms + 10.00 ms per 1,000 tokens of context "
        "(R² 1.0000, no point off by more than 0%)",
        "phase 8, kernel torch, num_sequences 8, context 300: pools of 1, 4 times the need differ by 10%",
    ]
