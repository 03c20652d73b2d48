"""The commands that ask one question each: who waits, a small pool, guessing ahead, accuracy, one technique changed."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.generation import configuration_utils

from shared.bench.__main__ import main, make_parser
from shared.bench.ablation import variant_spec, variants
from shared.bench.accuracy import compare, of_engine, of_transformers, prose
from shared.bench.code_files import REPOSITORY
from shared.bench.commands import small_set
from shared.bench.commands.small_set import STEPS, Step
from shared.bench.hf_baselines import HFBatches, HFReference, until_end
from shared.bench.hf_continuous import HFContinuous
from shared.bench.latency import Answer
from shared.bench.results import Result, read_result
from shared.bench.systems import ModelChoice
from shared.bench.who_waits import moments
from shared.config import CHOICES, EngineConfig
from shared.errors import SetupError
from shared.registry import newest_phase, phase_by_number
from shared.request import Request, SamplingParams
from shared.tiny_models import tiny_llama

TINY = ["--tiny", "--dtype", "float64", "--threads", "1", "--repeats", "1"]
PROMPTS = [[5, 9, 11], [40, 41], [7, 8, 9, 10, 60]]


def run(folder: Path, *argv: str) -> list[Result]:
    assert main([*argv, "--out", str(folder)]) == 0
    return [read_result(path) for path in sorted(folder.glob("*.json"))]


def by_name(result: Result) -> dict[str, dict[str, Any]]:
    return {system.name: dict(system.repeats[0]) for system in result.systems}


# -- baselines --------------------------------------------------------------------------------------------


def ending(max_tokens: int = 40) -> list[Request]:
    return [Request(prompt, SamplingParams(max_tokens=max_tokens)) for prompt in PROMPTS]


def ends_soon() -> Any:
    """A tiny model with many ids that end an output."""
    model = tiny_llama()
    model.generation_config.eos_token_id = list(range(30, 60))
    return model


def test_baselines_end_where_the_reference_ends() -> None:
    expected = [answer.token_ids for answer in HFReference(ends_soon()).serve(ending()).answers]
    assert all(len(token_ids) < 40 for token_ids in expected)
    served = HFBatches(ends_soon(), batch_size=2).serve(ending())
    assert [answer.token_ids for answer in served.answers] == expected
    assert all(len(answer.token_ids) == len(answer.token_times) for answer in served.answers)
    assert until_end([4, 5, 6], {5}) == [4, 5]


@pytest.mark.parametrize("is_forced", [True, False], ids=["forced", "to their ends"])
@pytest.mark.skipif(
    not hasattr(configuration_utils, "ContinuousBatchingConfig"), reason="this transformers has no continuous batching"
)
def test_transformers_continuous_batching_gives_the_same_tokens_and_tells_when(is_forced: bool) -> None:
    model = ends_soon().to(torch.float32)
    params = SamplingParams(max_tokens=12, ignore_eos=is_forced)
    requests = [Request(prompt, params) for prompt in PROMPTS]
    expected = [answer.token_ids for answer in HFReference(ends_soon().to(torch.float32)).serve(requests).answers]
    served = HFContinuous(model, batch_size=4).serve(requests)
    assert [answer.token_ids for answer in served.answers] == expected
    for answer in served.answers:
        assert len(answer.token_times) == len(answer.token_ids)
        assert answer.token_times == sorted(answer.token_times)
        assert 0 < answer.token_times[0] <= served.seconds


# -- one technique changed --------------------------------------------------------------------------------


def test_a_variant_changes_one_thing_and_is_offered_only_where_there_is_a_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choice = ModelChoice(is_tiny=True)
    assert variant_spec(choice, "no-cache").config.enable_prefix_caching is False
    assert variant_spec(choice, "no-batching").is_slow
    assert variant_spec(choice, "ngram").name == f"phase{newest_phase().number:02d}-ngram"
    monkeypatch.setitem(CHOICES, "forward", ("auto", "hf"))
    assert "hf-forward" not in variants()
    monkeypatch.setitem(CHOICES, "forward", ("auto", "hf", "native"))
    assert variants()["hf-forward"].changes == {"forward": "hf"}
    with pytest.raises(SetupError, match="no-cache"):
        variant_spec(choice, "no-such")


def test_the_ablation_runs_beside_the_whole_engine_and_counts(tmp_path: Path) -> None:
    argv = ["offline", *TINY, "--workloads", "repetitive", "--scale", "0.1", "--phases", "12", "--baselines", "none"]
    (result,) = run(tmp_path, *argv, "--ablate", "no-cache,ngram-fixed", "--max-batch-size", "1")
    systems = by_name(result)
    assert list(systems) == ["phase12", "phase12-no-cache", "phase12-ngram-fixed"]
    assert all(figures["num_exact"] == 3 for figures in systems.values())
    assert systems["phase12"]["kv_blocks_peak"] > 0
    assert systems["phase12"]["prefix_hit_tokens"] > 0, "all the prompts begin with the same words"
    assert not systems["phase12-no-cache"].get("prefix_hit_tokens")
    assert systems["phase12-ngram-fixed"]["drafted_tokens"] > 0
    assert "drafted_tokens" not in systems["phase12"]


# -- who waits --------------------------------------------------------------------------------------------


def test_the_fourth_waits_for_the_three_before_it_in_phase_1_alone(tmp_path: Path) -> None:
    (result,) = run(tmp_path, "who-waits", *TINY, "--tokens", "12")
    first, last = by_name(result).values()
    for number in (2, 3, 4):
        assert first[f"request{number}_first_s"] >= first[f"request{number - 1}_last_s"]
        assert last[f"request{number}_first_s"] < last["request1_last_s"]
    assert first["num_exact"] == last["num_exact"] == 4


def test_moments_of_an_answer_that_never_came_are_undefined() -> None:
    figures = moments([Answer([1, 2], [0.5, 0.7]), Answer([], [])])
    assert (figures["request1_first_s"], figures["request1_last_s"]) == (0.5, 0.7)
    assert figures["request2_first_s"] is figures["request2_last_s"] is None


# -- a small pool -----------------------------------------------------------------------------------------


def test_reserving_and_preempting_finish_the_same_requests(tmp_path: Path) -> None:
    (result,) = run(tmp_path, "preemption", *TINY, "--scale", "0.1", "--pool-slots", "512")
    systems = by_name(result)
    assert list(systems) == ["512/phase08", "512/phase09-swap", "512/phase09-recompute"]
    num_requests = result.systems[0].num_requests
    assert all(figures["num_exact"] == num_requests for figures in systems.values())
    assert systems["512/phase08"]["preemptions"] == 0
    assert systems["512/phase09-recompute"]["preemptions"] > 0
    assert systems["512/phase09-recompute"]["recomputed_tokens"] > 0
    assert systems["512/phase09-swap"]["preemptions"] > 0


# -- guessing ahead ---------------------------------------------------------------------------------------


def test_speculation_is_compared_with_no_guessing_of_the_same_batch_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["speculation", *TINY, "--workloads", "repetitive", "--scale", "0.07", "--batch-sizes", "1,2"]
    (result,) = run(tmp_path, *argv)
    systems = by_name(result)
    assert list(systems) == [f"{batch}/{way}" for batch in (1, 2) for way in ("off", "fixed", "adaptive")]
    assert all(figures["num_exact"] == 2 for figures in systems.values())
    assert ("drafted_tokens" in systems["1/off"], "drafted_tokens" in systems["1/fixed"]) == (False, True)
    assert capsys.readouterr().out.count("│                      1 │") == 2, "each batch size has its own base"


# -- accuracy ---------------------------------------------------------------------------------------------


WINDOW = [3 + (7 * number) % 90 for number in range(150)]


@pytest.mark.parametrize("number", [8, 12])
def test_the_engine_is_asked_for_the_logits_of_every_position(number: int) -> None:
    engine = phase_by_number(number).build_engine()(tiny_llama().float(), EngineConfig(enable_prefix_caching=False))
    try:
        logits = of_engine(engine)(WINDOW)
    finally:
        engine.close()
    expected = of_transformers(tiny_llama().float())(WINDOW)
    assert logits.shape == expected.shape
    assert torch.allclose(logits, expected, atol=1e-4), "150 positions are two chunks"
    assert compare([WINDOW], [expected], [logits])["num_top1"] == 150


def test_another_model_is_seen_to_be_another() -> None:
    expected = of_transformers(tiny_llama().float())(WINDOW)
    figures = compare([WINDOW], [expected], [of_transformers(tiny_llama(seed=1).float())(WINDOW)])
    assert (figures["num_top1"] or 0) < 50
    assert (figures["kl_mean"] or 0) > 0.1
    assert (figures["num_clear_differences"] or 0) > 0


def test_kl_and_agreement_of_known_distributions() -> None:
    one, other = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log(), torch.tensor([[0.25, 0.75], [0.9, 0.1]]).log()
    figures = compare([[0, 1]], [one], [other])
    assert figures["kl_max"] == pytest.approx(0.5 * torch.tensor(2.0).log() + 0.5 * torch.tensor(2 / 3).log())
    assert figures["kl_mean"] == pytest.approx((figures["kl_max"] or 0) / 2)
    assert figures["loss_mean"] == pytest.approx(-torch.tensor(0.75).log())
    assert (figures["num_positions"], figures["num_clear_differences"]) == (2, 0), "0.5 and 0.5 were a tie"


def test_accuracy_compares_every_dtype_and_forward(tmp_path: Path) -> None:
    argv = ["accuracy", "--tiny", "--threads", "1", "--positions", "256", "--dtypes", "float32,bfloat16"]
    (result,) = run(tmp_path, *argv, "--forwards", "transformers,hf")
    systems = by_name(result)
    assert list(systems) == [
        f"{dtype}-{forward}" for dtype in ("float32", "bfloat16") for forward in ("transformers", "hf")
    ]
    assert systems["float32-hf"]["num_top1"] == 256
    assert systems["bfloat16-transformers"]["kl_mean"] > systems["float32-hf"]["kl_mean"]
    assert json.dumps(systems, allow_nan=False)


def test_prose_is_sentences_alone() -> None:
    table = "<!-- bench:offline -->\n1.0\n<!-- /bench -->"
    text = f"A [link](x.md).\n\n```\ncode\n```\n| a | b |\n\n    indented\n{table}\nEnd."
    assert prose(text).split() == ["A", "[link].", "End."]


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["accuracy", "--tiny", "--forwards", "moon"], "moon"),
        (["accuracy", "--tiny", "--dtypes", "int3"], "int3"),
        (["accuracy", "--tiny", "--positions", "99999999"], "--positions"),
        (["preemption", "--tiny", "--pool-slots", "100"], "--pool-slots 100"),
        (["speculation", "--tiny", "--workloads", "moon"], "moon"),
        (["offline", "--tiny", "--ablate", "moon"], "moon"),
        (["who-waits", "--tiny", "--phases", "none"], "--phases"),
    ],
)
def test_bad_input_is_one_line(argv: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(argv)
    except SystemExit as ended:
        code = ended.code
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert code == 2
    assert message.startswith("error: ")
    assert named in message


# -- the small set ----------------------------------------------------------------------------------------


def test_the_small_set_asks_for_commands_that_exist_and_says_what_it_would_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["all", "--dry-run"]) == 0
    lines = capsys.readouterr().err.splitlines()
    parser = make_parser()
    for line in lines[:-1]:
        parser.parse_args(shlex.split(line.partition("shared.bench ")[2]))
    assert len(lines) == len(STEPS) + 2, "the charts, and the sum"
    assert main(["all", "--only", "moon"]) == 2
    assert sum(step.minutes for step in STEPS) < 20, "as its help promises"


def test_the_small_set_goes_on_after_a_failure_and_ends_with_charts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    capacity = "capacity --pool-slots 304 --block-sizes 16 --repeats 1"
    monkeypatch.setattr(small_set, "STEPS", (Step("who-waits --phases none", 1), Step(capacity, 1)))
    assert main(["all", "--out", str(tmp_path)]) == 1
    assert "failed: who-waits" in capsys.readouterr().err
    assert {path.name for path in (tmp_path / "charts").iterdir()} >= {"memory-light.svg", "capacity-dark.svg"}


def test_ctrl_c_ends_the_small_set_and_not_just_its_step(tmp_path: Path) -> None:
    """The signal goes to the whole group, as from a terminal."""
    command = [sys.executable, "-m", "shared.bench", "all", "--only", "capacity,who-waits", "--out", str(tmp_path)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if "draw 1 of 1" in line and len(seen) == 2:
            os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 130, "".join(seen)
    assert seen[-1] == "interrupted\n"
    assert not any(line.startswith("[2/3") for line in seen), "the next one began"
