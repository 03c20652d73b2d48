"""The benchmark suite: the same work for everyone, honest arithmetic, and tables that are what was measured."""

import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.bench.__main__ import main
from shared.bench.code_files import REPOSITORY, changed_since, code_of
from shared.bench.columns import as_markdown, make_table
from shared.bench.contest import num_exact
from shared.bench.hf_baselines import HFBatches
from shared.bench.host import Machine, Provenance, without_path
from shared.bench.latency import Answer, inter_token_s, latencies
from shared.bench.offline import OfflinePlan
from shared.bench.results import Result, SystemResult, WorkloadRecord, read_result, write_result
from shared.bench.source_line import source_line
from shared.bench.summary import pair_ratios
from shared.bench.systems import ModelChoice, hf_spec, hf_static_spec, phase_spec
from shared.bench.tables import PUBLISHED, update
from shared.bench.worker import Worker
from shared.bench.workloads import SHAPES, Workload, make_workload
from shared.errors import SetupError
from shared.reference import greedy_reference
from shared.registry import PHASES
from shared.request import Request, SamplingParams
from shared.tiny_models import tiny_llama

TINY = ModelChoice(is_tiny=True)
SPECIAL = {0, 1, 2}
SMALL = ["--tiny", "--dtype", "float64", "--threads", "1", "--workloads", "A", "--scale", "0.06"]  # two requests


def workload(key: str, **options: Any) -> Workload:
    return make_workload(key, **{"vocab_size": 97, "special_ids": SPECIAL} | options)


# -- workloads --------------------------------------------------------------------------------------------


FORCED = [key for key, shape in SHAPES.items() if shape.texts is None]
TEXTS = [key for key, shape in SHAPES.items() if shape.texts is not None]


def letters(texts: list[str]) -> list[list[int]]:
    return [[3 + ord(letter) % 90 for letter in text] for text in texts]


@pytest.mark.parametrize("key", FORCED)
def test_a_workload_is_the_same_for_the_same_seed_and_another_for_another(key: str) -> None:
    assert workload(key) == workload(key)
    assert workload(key).sha256 == workload(key).sha256
    assert workload(key, seed=1).sha256 != workload(key).sha256


@pytest.mark.parametrize(
    ("key", "num_requests", "prompt", "output"),
    [("A", 32, (64, 128), (32, 128)), ("B", 32, (528, 544), (32, 64)), ("C", 1, (64, 64), (128, 128))],
)
def test_lengths_are_in_their_ranges(
    key: str, num_requests: int, prompt: tuple[int, int], output: tuple[int, int]
) -> None:
    requests = workload(key).requests
    assert len(requests) == num_requests
    assert all(prompt[0] <= len(request.prompt_token_ids) <= prompt[1] for request in requests)
    assert all(output[0] <= request.params.max_tokens <= output[1] for request in requests)


def test_one_output_in_five_is_long_in_the_heavy_tail() -> None:
    lengths = [request.params.max_tokens for request in workload("D").requests]
    assert len(lengths) == 64
    is_long = [192 <= length <= 256 for length in lengths]
    assert all(8 <= length <= 32 for length, long in zip(lengths, is_long) if not long)
    assert [sum(is_long[start : start + 5]) for start in range(0, 60, 5)] == [1] * 12


def test_shared_prompts_share_512_tokens_and_go_on_apart() -> None:
    prompts = [request.prompt_token_ids for request in workload("B").requests]
    assert len({prompt[:512] for prompt in prompts}) == 1
    assert len({prompt[512:] for prompt in prompts}) == 32


@pytest.mark.parametrize("key", TEXTS)
def test_texts_end_at_eos_and_differ_from_each_other(key: str) -> None:
    whole = workload(key, encode=letters)
    assert whole == workload(key, encode=letters) != workload(key, encode=letters, seed=1)
    assert not any(request.params.ignore_eos for request in whole.requests)
    assert len({request.prompt_token_ids for request in whole.requests}) == len(whole.requests)
    assert workload(key, encode=letters, scale=0.25).requests == whole.requests[: len(whole.requests) // 4]
    with pytest.raises(SetupError, match="tokenizer"):
        workload(key)


def test_one_prompt_in_eight_is_long() -> None:
    lengths = [len(request.prompt_token_ids) for request in workload("long_prompt_interference").requests]
    assert [length > 800 for length in lengths] == [False] * 7 + [True] + [False] * 7 + [True]


def test_the_published_workloads_are_what_they_were() -> None:
    """A change in how they are drawn would make the published figures those of something else."""
    for path in (REPOSITORY / PUBLISHED).glob("offline-*.json"):
        record = json.loads(path.read_text())["workload"]
        assert len(workload(record["key"], scale=record["scale"]).requests) == record["num_requests"]
    assert workload("D").sha256.startswith("d3602e5a203798d2")


@pytest.mark.parametrize("key", FORCED)
def test_outputs_are_forced_and_greedy_and_prompts_hold_no_special_token(key: str) -> None:
    for request in workload(key).requests:
        assert request.params.ignore_eos
        assert request.params.is_greedy
        assert not SPECIAL & set(request.prompt_token_ids)
        assert max(request.prompt_token_ids) < 97


def test_a_smaller_scale_is_the_beginning_of_the_whole_and_says_so() -> None:
    whole, quarter = workload("D"), workload("D", scale=0.25)
    assert quarter.requests == whole.requests[:16]
    assert "16 of 64" in quarter.label
    assert quarter.sha256 != whole.sha256
    assert len(workload("C", scale=0.01).requests) == 1
    with pytest.raises(SetupError, match="scale"):
        workload("A", scale=1.5)


# -- figures ----------------------------------------------------------------------------------------------


def test_undefined_figures_are_none_and_not_zero() -> None:
    undefined = {"ttft_p50_s": None, "ttft_p99_s": None, "tpot_p50_s": None, "itl_p99_s": None}
    assert latencies([]) == latencies([Answer([], [])]) == undefined
    assert latencies([Answer([7], [0.5])]) == undefined | {"ttft_p50_s": 0.5, "ttft_p99_s": 0.5}


def test_latencies_of_known_times() -> None:
    figures = latencies([Answer([1, 2, 3], [1.0, 1.5, 3.0]), Answer([1, 2], [2.0, 2.5])])
    assert figures["ttft_p50_s"] == 1.5
    assert figures["tpot_p50_s"] == pytest.approx((1.0 + 0.5) / 2)
    assert figures["itl_p99_s"] == pytest.approx(0.5 + 0.98 * 1.0)


def test_tokens_that_come_together_share_the_gap_before_them() -> None:
    assert inter_token_s(Answer([1, 2, 3, 4, 5], [1.0, 1.4, 1.4, 1.4, 1.4])) == pytest.approx([0.1] * 4)


def test_ratios_are_taken_pair_by_pair_so_that_drift_cancels_out() -> None:
    slow, fast = fake_result([10, 20, 5], [20, 40, 10]).systems
    assert pair_ratios(fast, slow) == [2, 2, 2]
    assert pair_ratios(slow, slow) == [1, 1, 1]


def test_a_wrong_token_is_counted_against_its_request() -> None:
    assert num_exact([Answer([1, 2], []), Answer([1, 3], [])], [[1, 2], [1, 2], [5]]) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_static_batching_with_left_padding_gives_the_tokens_of_each_alone(dtype: torch.dtype) -> None:
    rng = random.Random(0)
    lengths = [(5, 9), (40, 3), (17, 12), (64, 1), (1, 7)]  # of prompt and output
    requests = [
        Request(rng.choices(range(3, 97), k=prompt), SamplingParams(max_tokens=output, ignore_eos=True))
        for prompt, output in lengths
    ]
    served = HFBatches(tiny_llama().to(dtype), batch_size=3).serve(requests)
    alone = [greedy_reference(tiny_llama().to(dtype), r.prompt_token_ids, r.params.max_tokens) for r in requests]
    assert [answer.token_ids for answer in served.answers] == alone
    assert served.num_output_tokens == 9 + 3 + 12 + 1 + 7, "tokens beyond what was asked for do not count"
    for answer in served.answers:
        assert len(answer.token_times) == len(answer.token_ids)
        assert answer.token_times == sorted(answer.token_times)
    assert served.answers[3].token_times[0] > served.answers[2].token_times[-1], "the second batch waits"


# -- the commands -----------------------------------------------------------------------------------------


def test_offline_runs_every_system_and_all_give_hfs_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["offline", *SMALL, "--repeats", "2", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    (path,) = tmp_path.glob("*.json")
    result = read_result(path)
    assert [system.name for system in result.systems] == [
        "hf",
        "hf-static",
        *(f"phase{phase.number:02d}" for phase in PHASES),
    ]
    for system in result.systems:
        assert len(system.repeats) == 2
        assert all(repeat["num_exact"] == system.num_requests == 2 for repeat in system.repeats)
        assert all(None not in repeat.values() for repeat in system.repeats)
        assert all((repeat["peak_rss_bytes"] or 0) > 50e6 for repeat in system.repeats)
        assert shown.out.count(system.label) == 1
    assert shown.out.count("2/2") == len(result.systems)
    assert len(re.findall(r"round \d of 2", shown.err)) == 2 * len(result.systems), "a line for each run"
    assert str(tmp_path) not in path.read_text()
    assert "/" not in " ".join(result.provenance.argv)


def test_ctrl_c_keeps_the_rounds_that_were_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []
    serve = Worker.serve

    def interrupted_in_time(self: Worker, requests: Any) -> Any:
        calls.append(self.spec.name)
        if calls.count("phase02") == 3:  # warm-up, round 1, round 2
            signal.raise_signal(signal.SIGINT)
        return serve(self, requests)

    monkeypatch.setattr(Worker, "serve", interrupted_in_time)
    command = ["offline", *SMALL, "--phases", "2", "--baselines", "hf", "--repeats", "90"]
    assert main([*command, "--out", str(tmp_path)]) == 130
    (path,) = tmp_path.glob("*.json")
    result = read_result(path)
    num_finished = len(result.systems[0].repeats)
    assert 1 <= num_finished < 90
    assert len(result.systems[1].repeats) == num_finished
    assert f"only {num_finished} of 90 rounds" in capsys.readouterr().err


def test_a_system_whose_process_dies_ends_the_run_and_keeps_the_finished_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    num_calls = itertools.count()
    serve = Worker.serve

    def killed_in_time(self: Worker, requests: Any) -> Any:
        if next(num_calls) == 4:  # the reference, warm-up, rounds 1 and 2, and this
            os.kill(self._memory.pid, signal.SIGKILL)
        return serve(self, requests)

    monkeypatch.setattr(Worker, "serve", killed_in_time)
    command = ["offline", *SMALL, "--phases", "1", "--baselines", "none", "--repeats", "9", "--out", str(tmp_path)]
    assert main(command) == 1
    (path,) = tmp_path.glob("*.json")
    assert [len(system.repeats) for system in read_result(path).systems] == [2]
    assert "error: phase01: its process died" in capsys.readouterr().err


def test_the_slow_ones_may_run_fewer_requests() -> None:
    specs = [hf_spec(TINY), hf_static_spec(TINY, 32), *(phase_spec(TINY, phase) for phase in PHASES[:2])]
    plan = OfflinePlan(["A"], specs, "hf", 1.0, 0.25, seed=0, num_rounds=1, provenance=fake_provenance())
    assert [plan.num_requests(spec, workload("A")) for spec in specs] == [8, 32, 8, 8]


def test_step_cost_measures_each_phase_that_steps(tmp_path: Path) -> None:
    command = ["step-cost", "--sequences", "1,3", "--steps", "5", "--repeats", "2", "--out", str(tmp_path)]
    assert main(command) == 0
    (path,) = tmp_path.glob("*.json")
    systems = read_result(path).systems
    assert [s.name for s in systems] == [f"phase{p.number:02d}-{n}" for p in PHASES if p.number > 1 for n in (1, 3)]
    assert all(len(s.repeats) == 2 and all((r["step_s"] or 0) > 0 for r in s.repeats) for s in systems)


@pytest.mark.parametrize("command", [[], ["offline"], ["interference"], ["step-cost"], ["tables"]])
def test_help_explains(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    assert len(capsys.readouterr().out) > 600


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["sprint"], "sprint"),
        (["offline", "--repeats", "0"], "--repeats"),
        (["offline", "--phases", "5"], "5"),
        (["offline", "--baselines", "vllm"], "vllm"),
        (["offline", "--tiny", "--model", "x"], "--tiny"),
        (["offline", "--tiny", "--workloads", "A,E"], "E"),
        (["offline", "--tiny", "--scale", "0"], "scale"),
        (["offline", "--tiny", "--base", "phase99"], "phase99"),
        (["offline", "--phases", "none", "--baselines", "none"], "nothing to run"),
        (["offline", "--model", "./no/such/folder", "--scale", "0.1"], "no such folder"),
        (["offline", "--tiny", "--publish"], "publish"),
        (["interference", "--phases", "1,3"], "phase 1"),
        (["interference", "--phases", "none"], "nothing to run"),
        (["interference", "--streams", "0"], "--streams"),
        (["interference", "--prompt-tokens", "many"], "--prompt-tokens"),
        (["interference", "--tiny", "--publish"], "publish"),
        (["interference", "--tiny", "--prefill-budget-tokens", "7"], "give 8 or more"),
        (["interference", "--tiny", "--prompt-tokens", "2030", "--prefill-chunk-size", "1"], "the model takes 2048"),
        (["step-cost", "--phases", "1"], "no step loop"),
        (["tables", "--root", "./no/such/folder"], "no such folder"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(argv: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(argv)
    except SystemExit as ended:
        code = ended.code
    message = capsys.readouterr().err.strip()
    assert code == 2
    assert message.count("\n") == 0
    assert message.startswith("error: ")
    assert named in message


@pytest.mark.parametrize(
    ("argument", "recorded"),
    [
        ("/data/models/my-model", "my-model"),
        ("--out=/tmp/x/results", "--out=results"),
        ("./relative/dir", "dir"),
        ("A,B", "A,B"),
        ("HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M"),
        ("--scale=0.25", "--scale=0.25"),
    ],
)
def test_paths_do_not_get_into_a_result(argument: str, recorded: str) -> None:
    assert without_path(argument) == recorded


# -- published results and tables -------------------------------------------------------------------------


def fake_result(*throughputs: list[float], **changes: Any) -> Result:
    """Systems s0, s1, ... with the given tokens per second in each round; 100 tokens each time."""
    systems = [
        SystemResult(
            name=f"s{number}",
            label=f"system {number}",
            num_requests=8,
            code=["shared/part.py"],
            repeats=[
                {"seconds": 100 / rate, "output_tokens": 100, "num_exact": 8, "ttft_p50_s": None, "other_cpu_share": 0}
                for rate in rates
            ],
        )
        for number, rates in enumerate(throughputs)
    ]
    fields = {
        "kind": "offline",
        "provenance": fake_provenance(),
        "systems": systems,
        "planned_repeats": len(throughputs[0]),
        "base": "s0",
        "workload": WorkloadRecord("A", "random", 0, 0.25, 8, "abc"),
    }
    return Result(**fields | changes)


def fake_provenance(**changes: Any) -> Provenance:
    fields = {
        "command": "python -m shared.bench offline",
        "argv": ["offline"],
        "date": "2026-01-02T03:04:05+00:00",
        "commit": "0123456789abcdef",
        "is_dirty": False,
        "machine": Machine("A CPU", 2, 24.0, "Linux 6"),
        "versions": {"python": "3.11"},
    }
    return Provenance(**fields | changes)


def table_cells(markdown: str) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines()]
    return [row for row in rows if not set("".join(row)) <= set("-:")]


def assert_figures_are_recomputed(text: str, data: dict[str, Any]) -> None:
    """The throughput and the ratio of each row of a table, against the stored repeats."""
    rates = {
        system["label"]: [repeat["output_tokens"] / repeat["seconds"] for repeat in system["repeats"]]
        for system in data["systems"]
    }
    (base,) = (system["label"] for system in data["systems"] if system["name"] == data["base"])
    rows = table_cells(text)[1:]
    assert len(rows) == len(rates)
    for row, (label, of_repeats) in zip(rows, rates.items()):
        assert row[0].startswith(label)
        assert row[1] == f"{statistics.median(of_repeats):,.1f}"
        ratios = [one / other for one, other in zip(of_repeats, rates[base])]
        assert label == base or row[2].split()[0] == f"{statistics.median(ratios):.2f}"


published = sorted((REPOSITORY / PUBLISHED).glob("offline-*.json"))


@pytest.mark.parametrize("path", published, ids=lambda path: path.stem)
def test_published_figures_are_recomputed_from_their_repeats(path: Path) -> None:
    result = read_result(path)
    table = as_markdown(make_table(result, ["system", "tok_s", "ratio", "exact"], result.systems))
    assert_figures_are_recomputed(table, json.loads(path.read_text()))
    assert all(len(system.repeats) == result.planned_repeats for system in result.systems)


def test_the_repositorys_tables_are_what_was_published() -> None:
    assert update(REPOSITORY, check=True)[0] == []


def test_a_wrong_figure_is_noticed() -> None:
    result = fake_result([10, 12, 11], [20, 30, 21])
    table = as_markdown(make_table(result, ["system", "tok_s", "ratio"], result.systems))
    data = json.loads(json.dumps([vars_of(system) for system in result.systems]))
    assert_figures_are_recomputed(table, {"systems": data, "base": "s0"})
    assert "2.00 (1.91–2.50)" in table
    with pytest.raises(AssertionError):
        assert_figures_are_recomputed(table.replace("21.0", "22.0"), {"systems": data, "base": "s0"})


def vars_of(system: SystemResult) -> dict[str, Any]:
    return {"name": system.name, "label": system.label, "repeats": system.repeats}


def test_what_is_undefined_or_wrong_is_shown_as_such() -> None:
    result = fake_result([10], [20])
    result.systems[1].repeats[0]["num_exact"] = 7
    rows = table_cells(as_markdown(make_table(result, ["ttft_p50", "exact"], result.systems)))
    assert rows[1:] == [["–", "8/8"], ["–", "7/8"]]


def test_a_row_that_ran_fewer_requests_says_so() -> None:
    result = fake_result([10], workload=WorkloadRecord("A", "random", 0, 1.0, 32, "abc"))
    assert "system 0 (8 of 32 requests)" in as_markdown(make_table(result, ["system"], result.systems))


def test_the_line_under_a_table_has_all_it_takes_and_warns_of_a_disturbed_run() -> None:
    result = fake_result([10, 11])
    line = source_line("x.json", result)
    for part in ("python -m shared.bench offline", "seed 0", "A CPU, 2 cores", "python 3.11", "0123456", "2026-01-02"):
        assert part in line
    assert "disturbed" not in line
    result.systems[0].repeats[1]["other_cpu_share"] = 0.3
    assert "disturbed: others used 30% of the CPU" in source_line("x.json", result)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A small git repository with one README that asks for a table, and code that a result can be about."""
    (tmp_path / "README.md").write_text(
        "before\n<!-- bench:offline workload=A columns=system,tok_s -->\n<!-- /bench -->\nafter\n"
    )
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/part.py").write_text("from shared.deeper import SPEED\n")
    (tmp_path / "shared/deeper.py").write_text('"""What it does."""\n\nSPEED = 1\n')
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(repository: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(repository), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(repository: Path) -> str:
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "x")
    return git(repository, "rev-parse", "HEAD")


def publish(repository: Path, *throughputs: list[float], **changes: Any) -> None:
    write_result(fake_result(*throughputs, **changes), repository / PUBLISHED)


def test_tables_are_written_between_their_markers_and_an_edit_by_hand_is_noticed(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = repository / "README.md"
    publish(repository, [10, 12, 11], [20, 30, 21])
    assert main(["tables", "--check", "--root", str(repository)]) == 1, "not written yet"
    assert main(["tables", "--root", str(repository)]) == 0
    assert main(["tables", "--check", "--root", str(repository)]) == 0
    text = readme.read_text()
    assert text.startswith("before\n<!-- bench:offline workload=A columns=system,tok_s -->\n\n| system ")
    assert text.endswith("\n\n<!-- /bench -->\nafter\n")
    assert table_cells(text[text.index("|") : text.rindex("|")])[1:] == [["system 0", "11.0"], ["system 1", "21.0"]]
    readme.write_text(text.replace("21.0", "24.0"))
    capsys.readouterr()
    assert main(["tables", "--check", "--root", str(repository)]) == 1
    assert "README.md:2" in capsys.readouterr().out


def test_the_newest_result_that_fits_is_shown(repository: Path) -> None:
    readme = repository / "README.md"
    update(repository, check=False)
    assert "Not measured yet" in readme.read_text()
    publish(repository, [1], [2])
    publish(repository, [3], provenance=fake_provenance(date="2026-01-03T00:00:00+00:00"))
    other = WorkloadRecord("B", "shared_prefix", 0, 0.25, 8, "abc")
    publish(repository, [4], workload=other, provenance=fake_provenance(date="2026-01-04T00:00:00+00:00"))
    update(repository, check=False)
    assert "3.0" in readme.read_text()
    readme.write_text(readme.read_text().replace("system,tok_s", "system,tok_s systems=s1"))
    update(repository, check=False)
    assert "2.0" in readme.read_text(), "the newer one does not have that system"


@pytest.mark.parametrize(
    ("marker", "complaint"),
    [
        ("<!-- bench:offline columns=speed -->\n<!-- /bench -->", "speed"),
        ("<!-- bench:offline colour=red -->\n<!-- /bench -->", "colour"),
        ("<!-- bench:marathon -->\n<!-- /bench -->", "marathon"),
        ("<!-- bench:offline -->\n", "not closed"),
        ("<!-- bench:offline -->\n<!-- bench:offline -->\n<!-- /bench -->", "not closed"),
    ],
)
def test_a_marker_that_makes_no_sense_is_refused_with_its_place(
    repository: Path, marker: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(repository, [1])
    (repository / "README.md").write_text(f"\n{marker}\n")
    assert main(["tables", "--root", str(repository)]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: README.md, line 2: ")
    assert complaint in message


def test_an_example_of_a_marker_that_is_indented_is_left_alone(repository: Path) -> None:
    (repository / "README.md").write_text("    <!-- bench:offline workload=A -->\n    <!-- /bench -->\n")
    assert update(repository, check=True) == ([], [])


@pytest.mark.parametrize(
    ("edit", "is_flagged"),
    [
        (lambda code: code.replace("= 1", "= 2"), True),
        (lambda code: code.replace("What it does", "What it really does") + "\n# a remark\n", False),
        (lambda code: code, False),
    ],
    ids=["code", "words only", "nothing"],
)
def test_a_result_is_flagged_when_the_code_it_describes_has_changed(
    repository: Path, edit: Callable[[str], str], is_flagged: bool
) -> None:
    measured_at = git(repository, "rev-parse", "HEAD")
    publish(repository, [1], provenance=fake_provenance(commit=measured_at))
    code = repository / "shared/deeper.py"
    code.write_text(edit(code.read_text()))
    (repository / "shared/unrelated.py").write_text("x = 1\n")
    commit(repository)
    _, notes = update(repository, check=False)
    assert bool(notes) == is_flagged
    assert len(notes) == is_flagged, "one line for a result"
    assert all("older" in note and note.endswith("changed since: shared/deeper.py") for note in notes)
    assert main(["tables", "--check", "--root", str(repository)]) == 0, "it is a note, not an error"


def test_what_a_system_runs_is_what_its_engine_imports() -> None:
    names = code_of(REPOSITORY, ["phase02_iteration_scheduling/engine.py"])
    assert {"phase02_iteration_scheduling/scheduler.py", "shared/engine.py", "shared/completion.py"} <= set(names)
    assert not {"phase01_sequential/engine.py", "shared/registry.py", "shared/model_loader.py"} & set(names)


def test_a_clone_without_the_commit_cannot_tell_and_does_not_fail(repository: Path) -> None:
    publish(repository, [1])
    update(repository, check=False)
    assert changed_since(repository, "0123456789abcdef", ["shared/part.py"]) is None
    wrong, notes = update(repository, check=True)
    assert wrong == []
    assert "cannot tell" in notes[0]


def test_a_file_that_is_no_result_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    for text in ("{", "[]", '{"schema": 99}'):
        path.write_text(text)
        with pytest.raises(SetupError, match=r"broken\.json"):
            read_result(path)


def test_a_table_stands_below_its_chart_once_that_is_drawn(repository: Path) -> None:
    publish(repository, [1])
    readme = repository / "shared/README.md"
    readme.write_text("<!-- bench:offline chart=throughput -->\n<!-- /bench -->\n")
    update(repository, check=False)
    assert "<picture>" not in readme.read_text()
    for theme in ("light", "dark"):
        chart = repository / PUBLISHED / "charts" / f"throughput-{theme}.svg"
        chart.parent.mkdir(exist_ok=True)
        chart.write_text("<svg/>")
    assert update(repository, check=True)[0], "the picture is missing"
    update(repository, check=False)
    above, _, _ = readme.read_text().partition("| system")
    assert 'src="bench/published/charts/throughput-light.svg"' in above
    assert 'srcset="bench/published/charts/throughput-dark.svg"' in above
