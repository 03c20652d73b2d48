"""Running streams and a late long prompt: which gaps count, and that each phase's are what its schedule says."""

import json
import re
import statistics
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shared.bench.__main__ import main
from shared.bench.code_files import REPOSITORY
from shared.bench.columns import ON_SCREEN, as_markdown, make_table
from shared.bench.gaps import gap_figures
from shared.bench.interference import InterferencePlan, interference_spec, make_interference
from shared.bench.late_arrival import serve_with_late_arrival
from shared.bench.latency import Answer
from shared.bench.results import Result, SystemResult, WorkloadRecord, read_result, write_result
from shared.bench.step_cost import InstantRunner
from shared.bench.systems import ModelChoice, SystemInfo
from shared.bench.tables import PUBLISHED
from shared.errors import SetupError
from shared.output import StepOutput
from shared.registry import phase_by_number
from shared.request import Request, SamplingParams
from shared.step import SampledToken, StepPlan
from shared.tiny_models import tiny_llama
from tests.test_bench import TINY, fake_provenance, table_cells

INFO = SystemInfo("tiny", vocab_size=97, max_model_len=1024, num_threads=1, device="cpu", special_ids=frozenset({0}))
SMALL = ["--tiny", "--dtype", "float64", "--threads", "1", "--streams", "3", "--prompt-tokens", "100"]
MICROSECOND = 1e-6


# -- which gaps count -------------------------------------------------------------------------------------


def test_only_gaps_that_overlap_the_window_count_and_they_count_whole() -> None:
    """The window is [10, 20]."""
    streams = [
        Answer([1, 2, 3, 4, 5], [7, 9.5, 13, 20, 26]),  # into the window, within it, and one that begins at its end
        Answer([1, 2], [10, 20]),
        Answer([1, 2, 3], [8, 10, 20]),  # one that ends as the window begins
        Answer([1, 2], [9, 25]),  # nothing in all that time
    ]
    figures = gap_figures([*streams, Answer([1, 2], [20, 99], arrival=10)])
    during = [3.5, 7, 10, 10, 16]
    assert figures["num_gaps"] == len(during)
    assert figures["gap_max_s"] == 16
    assert figures["gap_p50_s"] == 10
    assert figures["gap_p99_s"] == pytest.approx(10 + 0.96 * 6)
    assert figures["late_ttft_s"] == 10


def test_before_means_that_all_streams_run_and_the_long_prompt_is_not_there() -> None:
    early, slow = Answer([1, 2, 3, 4, 5], [1, 4, 5, 6, 30]), Answer([1, 2, 3], [4, 6.5, 30])
    assert gap_figures([early, slow, Answer([1], [30], arrival=7)])["gap_before_p50_s"] == 1  # of 1, 1, 2.5; not 3


def test_what_nobody_saw_is_none_and_not_zero() -> None:
    figures = gap_figures([Answer([1], [1]), Answer([1], [3], arrival=2)])
    assert figures["gap_before_p50_s"] is figures["gap_p99_s"] is figures["gap_max_s"] is None


def test_tokens_of_a_stream_that_come_together_are_no_gap() -> None:
    figures = gap_figures([Answer([1, 2, 3, 4], [1, 6, 6, 6]), Answer([1], [6], arrival=2)])
    assert (figures["num_gaps"], figures["gap_max_s"]) == (1, 5)


class ScriptedEngine:
    """Says what a script says: per step, how long it takes and which of the requests get a token.

    Outputs of one step are stamped a microsecond apart, as an engine does it.
    """

    def __init__(self, script: Seq[tuple[float, str]]) -> None:
        self.now = 100.0
        self.arrivals: list[float] = []
        self._script = list(script)

    def add_request(self, _request: Request) -> str:
        self.arrivals.append(self.now)
        return "abc"[len(self.arrivals) - 1]

    def has_unfinished(self) -> bool:
        return bool(self._script)

    def step(self) -> list[StepOutput]:
        seconds, names = self._script.pop(0)
        self.now += seconds
        stamps = [self.now + number * MICROSECOND for number in range(len(names))]
        self.now += len(names) * MICROSECOND
        return [StepOutput(name, 0, [7], "", time=stamp) for name, stamp in zip(names, stamps)]


def served_by(engine: Any, num_requests: int = 3, num_tokens: int = 2) -> list[Answer]:
    requests = [Request([5], SamplingParams(max_tokens=4))] * num_requests
    return serve_with_late_arrival(engine, requests, num_tokens=num_tokens, clock=lambda: engine.now).answers


CHUNKED = [(1, "ab"), (1, "ab"), (3, "ab"), (4, "ab"), (2, "abc"), (9, "abc"), (9, "abc")]
AT_ONCE = [(1, "ab"), (1, "ab"), (7, "abc"), (9, "abc"), (9, "abc")]
STREAMS_LAST = [(1, "ab"), (1, "ab"), (4, ""), (4, "c"), (1, "abc"), (9, "abc")]


@pytest.mark.parametrize(
    ("script", "max_gap", "median_gap", "num_gaps", "ttft"),
    [(CHUNKED, 4, 3, 6, 9), (AT_ONCE, 7, 7, 2, 7), (STREAMS_LAST, 9, 9, 2, 8)],
    ids=["chunks", "one step", "the streams have to wait"],
)
def test_gaps_of_known_steps(
    script: list[tuple[float, str]], max_gap: float, median_gap: float, num_gaps: int, ttft: float
) -> None:
    """The 9 s after the first token are nobody's: the step's stamps differ, and still it is one moment."""
    figures = gap_figures(served_by(ScriptedEngine(script)))
    assert figures["gap_before_p50_s"] == pytest.approx(1, abs=1e-4)
    assert figures["gap_max_s"] == pytest.approx(max_gap, abs=1e-4)
    assert figures["gap_p50_s"] == pytest.approx(median_gap, abs=1e-4)
    assert figures["num_gaps"] == num_gaps
    assert figures["late_ttft_s"] == pytest.approx(ttft, abs=1e-4)


def test_the_long_prompt_comes_when_the_slowest_stream_has_its_tokens() -> None:
    engine = ScriptedEngine([(1, "a"), (1, "a"), (1, "ab"), (1, "ab"), (1, "abc")])
    *_, late = served_by(engine)
    assert [arrival - 100 for arrival in engine.arrivals] == pytest.approx([0, 0, 4], abs=1e-4)
    assert late.arrival == pytest.approx(4, abs=1e-4)


def test_streams_that_end_too_early_are_an_error_and_not_a_figure() -> None:
    with pytest.raises(RuntimeError, match="ended before"):
        served_by(ScriptedEngine([(1, "ab"), (1, "ab"), (1, "a"), (1, "ac")]))


class ClockedRunner(InstantRunner):
    """No model, but a clock: a step takes a second for each of its tokens."""

    def __init__(self) -> None:
        self.now = 0.0

    def execute(self, plan: StepPlan) -> list[list[SampledToken]]:
        self.now += plan.num_tokens
        return super().execute(plan)


class Clocked:
    """An engine whose outputs are stamped by its runner's clock."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.engine.runner = ClockedRunner()

    @property
    def now(self) -> float:
        return self.engine.runner.now

    def step(self) -> list[StepOutput]:
        return [replace(output, time=self.now) for output in self.engine.step()]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


@pytest.mark.parametrize(
    ("number", "max_gap", "num_gaps", "ttft"), [(2, 103, 3, 103), (3, 103, 3, 103), (4, 16 + 3, 7 * 3, 6 * 19 + 7)]
)
def test_the_gaps_of_a_phase_are_those_of_its_schedule(number: int, max_gap: float, num_gaps: int, ttft: float) -> None:
    """Three streams, a prompt of 100 tokens, chunks of 16: six full steps of 19 tokens, and one of 4 + 3."""
    spec = interference_spec(TINY, phase_by_number(number), 3, 16, "auto")
    workload = make_interference(InterferencePlan([spec], 3, 100, 0, 1, fake_provenance()), INFO)
    engine = Clocked(phase_by_number(number).build_engine()(tiny_llama(), spec.config))
    answers = serve_with_late_arrival(engine, workload.requests, num_tokens=8, clock=lambda: engine.now).answers
    figures = gap_figures(answers)
    assert figures["gap_before_p50_s"] == 3, "the three streams' tokens"
    assert (figures["gap_max_s"], figures["num_gaps"], figures["late_ttft_s"]) == (max_gap, num_gaps, ttft)


# -- the requests -----------------------------------------------------------------------------------------


def planned(num_streams: int = 7, num_prompt_tokens: int = 1000, model: ModelChoice = TINY, **sizes: Any) -> Any:
    sizes = {"chunk": "auto", "budget": "auto"} | sizes
    specs = [interference_spec(model, phase_by_number(number), num_streams, **sizes) for number in (3, 4)]
    return InterferencePlan(specs, num_streams, num_prompt_tokens, 0, 1, fake_provenance())


def test_the_same_seed_gives_the_same_requests_with_the_long_prompt_last() -> None:
    workload = make_interference(planned(), INFO)
    assert workload == make_interference(planned(), INFO)
    *streams, late = workload.requests
    assert [len(late.prompt_token_ids), len(streams)] == [1000, 7]
    assert all(16 <= len(stream.prompt_token_ids) <= 32 for stream in streams)
    assert all(request.params.ignore_eos and request.params.is_greedy for request in workload.requests)
    assert workload.shape.key == "7+1000"
    assert make_interference(replace(planned(), seed=1), INFO).sha256 != workload.sha256


@pytest.mark.parametrize("sizes", [{}, {"chunk": 16}, {"budget": 12}, {"chunk": 100, "budget": 30}])
def test_the_streams_last_until_the_long_prompt_has_its_first_token(sizes: dict[str, int]) -> None:
    plan = planned(num_prompt_tokens=300, **sizes)
    workload = make_interference(plan, INFO)
    for spec in plan.specs:
        engine = Clocked(spec.phase.build_engine()(tiny_llama(), spec.config))
        serve_with_late_arrival(engine, workload.requests, num_tokens=8, clock=lambda engine=engine: engine.now)


def test_a_tiny_models_prompt_is_cut_to_what_it_takes_and_another_models_is_refused() -> None:
    workload = make_interference(planned(num_prompt_tokens=5000), INFO)
    assert workload.shape.key == "7+1016"
    assert workload.longest == INFO.max_model_len
    with pytest.raises(SetupError, match="5008 tokens; the model takes 1024"):
        make_interference(planned(num_prompt_tokens=5000, model=ModelChoice("x")), INFO)


# -- the command and its tables ---------------------------------------------------------------------------


def test_interference_runs_the_phases_in_turn_and_all_give_hfs_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["interference", *SMALL, "--prefill-chunk-size", "16", "--repeats", "2", "--out", str(tmp_path)]
    assert main(command) == 0
    shown = capsys.readouterr()
    (path,) = tmp_path.glob("interference-3+100-float64-*.json")
    result = read_result(path)
    three, four = result.systems
    assert (three.name, four.name, result.base) == ("phase03", "phase04", "phase03")
    assert four.settings == {"max_batch_size": 4, "prefill_chunk_size": 16, "prefill_budget_tokens": 512}
    for system, num_gaps in ((three, 3), (four, 7 * 3)):
        assert [repeat["num_gaps"] for repeat in system.repeats] == [num_gaps] * 2
        assert all(repeat["num_exact"] == system.num_requests == 4 for repeat in system.repeats)
        assert all(None not in repeat.values() for repeat in system.repeats)
    runs = re.findall(r"round (\d) of 2, (phase\d+)", shown.err)
    assert runs == [("1", "phase03"), ("1", "phase04"), ("2", "phase04"), ("2", "phase03")]
    table = as_markdown(make_table(result, ON_SCREEN["interference"], result.systems))
    assert_gaps_are_recomputed(table, json.loads(path.read_text()))


FIGURES = {  # header of a column -> figure of a repeat, in seconds
    "gap p50 before ms": "gap_before_p50_s",
    "gap p50 ms": "gap_p50_s",
    "gap p99 ms": "gap_p99_s",
    "gap max ms": "gap_max_s",
    "long prompt's TTFT ms": "late_ttft_s",
}
RATIOS = {"gap p99 to": "gap_p99_s", "gap max to": "gap_max_s", "TTFT to": "late_ttft_s"}  # beginning of a header


def assert_gaps_are_recomputed(text: str, data: dict[str, Any]) -> None:
    """Every figure and every ratio of a table, against the stored repeats."""
    (base,) = (system for system in data["systems"] if system["name"] == data["base"])
    header, *rows = table_cells(text)
    assert len(rows) == len(data["systems"])
    for row, system in zip(rows, data["systems"]):
        cells = dict(zip(header, row))
        assert cells["system"] == system["label"]
        for name, cell in cells.items():
            if figure := FIGURES.get(name):
                middle = 1000 * statistics.median(repeat[figure] for repeat in system["repeats"])
                assert float(cell.replace(",", "")) == pytest.approx(middle, abs=0.05 if middle < 100 else 0.5)
            if figure := RATIOS.get(name.partition(f" {data['base']}")[0]):
                pairs = [one[figure] / other[figure] for one, other in zip(system["repeats"], base["repeats"])]
                assert cell.split()[0] == ("1" if system is base else f"{statistics.median(pairs):.2f}")


def fake_result() -> Result:
    """Two phases, three rounds; the second round was slow for everybody."""
    systems = [
        SystemResult(
            name=name,
            label=f"system {name}",
            num_requests=8,
            settings={"prefill_chunk_size": 128},
            repeats=[
                {figure: seconds * drift for figure, seconds in zip(FIGURES.values(), figures)}
                | {"num_exact": 8, "seconds": 1.0, "other_cpu_share": 0.0}
                for drift in (1, 3, 1.1)
            ],
        )
        for name, figures in (("phase03", (0.02, 1.5, 1.5, 1.5, 1.5)), ("phase04", (0.02, 0.15, 0.2, 0.3, 2.4)))
    ]
    workload = WorkloadRecord("7+1000", "interference", 0, 1.0, 8, "abc")
    return Result("interference", fake_provenance(), systems, planned_repeats=3, base="phase03", workload=workload)


def test_ratios_to_the_base_are_taken_round_by_round() -> None:
    result = fake_result()
    table = as_markdown(make_table(result, ON_SCREEN["interference"], result.systems))
    assert table_cells(table)[2][-4:-1] == ["0.13 (0.13–0.13)", "0.20 (0.20–0.20)", "1.60 (1.60–1.60)"]
    assert_gaps_are_recomputed(table, as_data(result))


def as_data(result: Result) -> dict[str, Any]:
    systems = [{"name": s.name, "label": s.label, "repeats": s.repeats} for s in result.systems]
    return {"systems": systems, "base": result.base}


@pytest.mark.parametrize(("planted", "for_it"), [("330", "331"), ("22.0", "22.1"), ("0.20 (", "0.21 (")])
def test_a_planted_figure_is_noticed(planted: str, for_it: str) -> None:
    result = fake_result()
    text = as_markdown(make_table(result, ON_SCREEN["interference"], result.systems))
    assert_gaps_are_recomputed(text, as_data(result))
    assert planted in text
    with pytest.raises(AssertionError):
        assert_gaps_are_recomputed(text.replace(planted, for_it), as_data(result))


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / PUBLISHED).glob("interference-*.json")), ids=lambda path: path.stem
)
def test_published_gaps_are_recomputed_from_their_repeats(path: Path) -> None:
    result = read_result(path)
    table = as_markdown(make_table(result, ON_SCREEN["interference"], result.systems))
    assert_gaps_are_recomputed(table, json.loads(path.read_text()))
    assert all(len(system.repeats) == result.planned_repeats for system in result.systems)


def test_the_markers_of_phase_4_get_one_row_and_all_rows_and_an_edit_is_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = tmp_path / "README.md"
    one, all_rows = "<!-- bench:interference systems=phase03 -->\n", "<!-- bench:interference -->\n"
    readme.write_text(f"{one}<!-- /bench -->\n{all_rows}<!-- /bench -->\n")
    tables = ["tables", "--root", str(tmp_path)]
    assert main(tables) == 0
    assert readme.read_text().count("Not measured yet: `python -m shared.bench interference --publish`") == 2
    write_result(fake_result(), tmp_path / PUBLISHED)
    assert main(tables) == 0
    text = readme.read_text()
    assert (text.count("| system phase03 "), text.count("| system phase04 ")) == (2, 1)
    header = "system,gap p50 before ms,gap p50 ms,gap p99 ms,gap max ms,long prompt's TTFT ms,exact"
    assert table_cells(text[text.rindex("| system  ") :].partition("\n\n")[0])[0] == header.split(",")
    readme.write_text(text.replace("2,640", "2,600"))
    capsys.readouterr()
    assert main([*tables, "--check"]) == 1
    assert "README.md" in capsys.readouterr().out
