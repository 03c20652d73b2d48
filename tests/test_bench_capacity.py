"""The capacity study: real bookkeeping without a model, and figures, tables and a chart that are what was counted."""

import json
import re
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from shared.bench.__main__ import main
from shared.bench.capacity import CapacityPlan, run_capacity
from shared.bench.capacity_load import LOADS, OVERLOAD, Job
from shared.bench.capacity_run import add_all, measure, saturated, steps
from shared.bench.capacity_systems import (
    CONTIGUOUS,
    KINDS,
    ON_DEMAND,
    WORST_CASE,
    Kind,
    PoolSize,
    System,
)
from shared.bench.code_files import REPOSITORY
from shared.bench.columns import ON_SCREEN, as_markdown, make_table
from shared.bench.results import Result, read_result
from shared.bench.slabs import Slab, SlabAllocator
from shared.bench.tables import PUBLISHED, update
from tests.test_bench import fake_provenance, table_cells

SMALL = 1024  # slots: three slabs of the heavy tail
by_key = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.key)
by_load = pytest.mark.parametrize("load", LOADS.values(), ids=lambda load: load.key)


def size_of(num_slots: int = SMALL, block_size: int = 16) -> PoolSize:
    return PoolSize(num_slots, block_size)


def small_plan(**changes: Any) -> CapacityPlan:
    fields = {"pool_slots": 320, "block_sizes": [1, 64], "seed": 0, "num_rounds": 2}
    return CapacityPlan(**fields | {"provenance": fake_provenance()} | changes)


# -- what is asked ----------------------------------------------------------------------------------------


@by_load
def test_jobs_are_the_same_for_the_same_seed_and_others_for_another(load: Any) -> None:
    assert load.draw(SMALL, 3) == load.draw(SMALL, 3)
    assert load.draw(SMALL, 3) != load.draw(SMALL, 4)


@by_load
def test_the_load_is_twenty_times_the_pool_and_no_output_is_over_its_budget(load: Any) -> None:
    jobs = load.draw(SMALL, 0)
    assert OVERLOAD * SMALL <= sum(job.full_slots for job in jobs) < OVERLOAD * SMALL + load.longest
    assert all(1 <= job.num_output_tokens <= job.max_tokens == load.max_tokens for job in jobs)
    assert all(20 <= job.num_prompt_tokens <= 40 for job in jobs)


@pytest.mark.parametrize(
    ("key", "output", "slab", "full"),
    [("low_variance", 23, 62, 52), ("heavy_tail", 60, 286, 89), ("two_kinds", 61, 286, 90)],
)
def test_means_are_those_that_the_study_names(key: str, output: float, slab: float, full: float) -> None:
    jobs = [job for seed in range(5) for job in LOADS[key].draw(8192, seed)]
    assert statistics.mean(job.num_output_tokens for job in jobs) == pytest.approx(output, rel=0.02)
    assert statistics.mean(job.slab_slots for job in jobs) == pytest.approx(slab, rel=0.02)
    assert statistics.mean(job.full_slots for job in jobs) == pytest.approx(full, rel=0.02)


# -- contiguous memory ------------------------------------------------------------------------------------


def test_a_slab_takes_the_lowest_hole_that_is_long_enough() -> None:
    pool = SlabAllocator(100)
    assert all(pool.take(name, num_slots) for name, num_slots in (("a", 30), ("b", 10), ("c", 40)))
    pool.free("b")
    assert pool.take("d", 11)
    assert pool.slabs["d"] == Slab(80, 91)
    assert pool.take("e", 10)
    assert pool.slabs["e"] == Slab(30, 40)
    pool.check_integrity()


def test_enough_slots_can_be_free_and_still_nobody_has_room() -> None:
    pool = SlabAllocator(100)
    for name in "abcde":
        assert pool.take(name, 20)
    pool.free("b")
    pool.free("d")
    assert pool.num_free_slots == 40
    assert not pool.take("f", 21)
    assert set(pool.slabs) == set("ace")
    pool.free("c")
    assert pool.take("f", 60), "neighbouring holes are one"


@pytest.mark.parametrize("slab", [Slab(5, 15), Slab(95, 101)])
def test_slabs_that_overlap_or_leave_the_range_are_noticed(slab: Slab) -> None:
    pool = SlabAllocator(100)
    assert pool.take("a", 10)
    pool.slabs["b"] = slab
    with pytest.raises(AssertionError, match="overlap"):
        pool.check_integrity()


# -- whole runs -------------------------------------------------------------------------------------------


def watched(system: System, jobs: list[Job]) -> list[Any]:
    """Every moment of a run, with the memory checked after each step, and every job at its own length at the end."""
    sequences = add_all(system, jobs)
    moments = []
    for moment in steps(system, jobs):
        system.pool.check_integrity()
        running = system.scheduler.running
        assert all(0 <= seq.num_computed_tokens == len(seq.token_ids) - 1 for seq in running)
        assert set(holders(system)) == {seq.name for seq in running}, "who runs has memory, and nobody else"
        moments.append(moment)
    assert [seq.num_output_tokens for seq in sequences] == [job.num_output_tokens for job in jobs]
    assert all(seq.is_finished for seq in sequences)
    assert not holders(system)
    return moments


def holders(system: System) -> Any:
    pool: Any = system.pool
    return pool.slabs if isinstance(pool, SlabAllocator) else pool.block_tables


@by_load
@by_key
def test_every_job_is_served_and_memory_is_sound_after_every_step(kind: Kind, load: Any) -> None:
    size = size_of()
    for moment in watched(kind.build(size), load.draw(SMALL, 0)):
        assert moment.used <= moment.allocated <= moment.reserved <= SMALL
        if kind is not CONTIGUOUS:
            assert moment.allocated - moment.used <= (size.block_size - 1) * moment.num_running


@pytest.mark.parametrize("block_size", [1, 64])
def test_a_sequence_wastes_less_than_a_block_whatever_its_size(block_size: int) -> None:
    moments = watched(ON_DEMAND.build(size_of(block_size=block_size)), LOADS["heavy_tail"].draw(SMALL, 1))
    assert all(0 <= m.allocated - m.used <= (block_size - 1) * m.num_running for m in moments)
    assert block_size == 1 or any(m.allocated > m.used for m in moments)


def test_in_a_pool_for_one_much_is_run_again_but_everybody_finishes() -> None:
    load = LOADS["heavy_tail"]
    moments = watched(ON_DEMAND.build(size_of(304)), load.draw(304, 0))
    needed = sum(job.full_slots for job in load.draw(304, 0))
    assert sum(moment.num_tokens for moment in moments) > 1.1 * needed, "nothing was preempted"


@by_key
def test_the_same_jobs_give_the_same_figures(kind: Kind) -> None:
    jobs = LOADS["heavy_tail"].draw(SMALL, 0)
    assert measure(kind, size_of(), jobs) == measure(kind, size_of(), jobs)


@pytest.fixture(scope="module")
def heavy_tail() -> dict[str, Any]:
    """Key of a system -> its figures, in a pool of a quarter of the default size."""
    jobs = LOADS["heavy_tail"].draw(2048, 0)
    return {kind.key: measure(kind, size_of(2048), jobs) for kind in KINDS}


def test_paging_alone_gains_little_and_paging_on_demand_gains_threefold(heavy_tail: dict[str, Any]) -> None:
    running = {key: figures["running_mean"] for key, figures in heavy_tail.items()}
    assert running[WORST_CASE.key] / running[CONTIGUOUS.key] == pytest.approx(1, abs=0.2)
    assert running[ON_DEMAND.key] / running[CONTIGUOUS.key] > 2.5


def test_the_same_work_takes_fewer_steps_by_about_the_gain(heavy_tail: dict[str, Any]) -> None:
    """A sequence that runs beside others and is thrown away would raise the one and not the other."""
    contiguous, on_demand = heavy_tail[CONTIGUOUS.key], heavy_tail[ON_DEMAND.key]
    gain = on_demand["running_mean"] / contiguous["running_mean"]
    assert contiguous["steps"] / on_demand["steps"] == pytest.approx(gain, rel=0.15)


def test_only_preemption_runs_tokens_again(heavy_tail: dict[str, Any]) -> None:
    for key, figures in heavy_tail.items():
        ran_again = figures["computed_tokens"] - figures["needed_tokens"]
        assert (ran_again > 0) == (figures["preemptions"] > 0) == (key == ON_DEMAND.key)


def test_what_fits_at_full_length_is_counted_in_the_systems_own_units() -> None:
    jobs = [Job(str(n), num_prompt_tokens=30, max_tokens=256, num_output_tokens=60) for n in range(99)]
    counts = {kind.key: kind.full_slots(jobs[0], size_of()) for kind in KINDS}
    assert counts == {"contiguous": 286, "worst_case": 288, "on_demand": 96}
    assert measure(ON_DEMAND, size_of(), jobs)["num_at_full_length"] == SMALL // 96


def test_the_start_and_the_end_do_not_count() -> None:
    moments = list(steps_of(ON_DEMAND, LOADS["low_variance"].draw(SMALL, 0)))
    counted = saturated(moments, 32)
    assert moments.index(counted[0]) >= 32
    assert all(moment.num_waiting for moment in counted)
    assert not moments[-1].num_waiting


def steps_of(kind: Kind, jobs: list[Job]) -> Any:
    system = kind.build(size_of())
    add_all(system, jobs)
    return steps(system, jobs)


def test_a_run_that_gets_stuck_is_an_error_and_not_a_figure() -> None:
    with pytest.raises(RuntimeError, match="1 of 1 jobs"):
        list(steps_of(CONTIGUOUS, [Job("too long", SMALL, 32, 5)]))


# -- results, tables, chart -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return run_capacity(small_plan(), lambda _: None)


FIGURES = {
    "running at once": lambda figures: figures["running_mean"],
    "at most": lambda figures: figures["running_peak"],
    "waste %": lambda figures: 100 * (1 - figures["used_slots_mean"] / figures["allocated_slots_mean"]),
    "K/V % of pool": lambda figures: 100 * figures["used_slots_mean"] / figures["pool_slots"],
    "empty % of pool": lambda figures: (
        100 * (figures["reserved_slots_mean"] - figures["used_slots_mean"]) / figures["pool_slots"]
    ),
    "free % of pool": lambda figures: 100 * (1 - figures["reserved_slots_mean"] / figures["pool_slots"]),
    "preemptions": lambda figures: figures["preemptions"],
    "run again %": lambda figures: 100 * (1 - figures["needed_tokens"] / figures["computed_tokens"]),
    "steps": lambda figures: figures["steps"],
    "fit at full length": lambda figures: figures["num_at_full_length"],
}


def assert_capacity_is_recomputed(text: str, data: dict[str, Any]) -> None:
    """Every figure and every gain of a table, against the stored repeats."""
    by_name = {system["name"]: system["repeats"] for system in data["systems"]}
    header, *lines = table_cells(text)
    assert len(lines) == len(by_name)
    for cells, (name, repeats) in zip(lines, by_name.items()):
        base = by_name[f"{name.split('/')[0]}/contiguous"]
        for title, cell in zip(header, cells):
            shown = cell.split(" (")[0].replace(",", "")
            if figure := FIGURES.get(title.split(" (")[0]):
                unit = 10 ** -len(shown.partition(".")[2])
                assert float(shown) == pytest.approx(statistics.median(map(figure, repeats)), abs=0.51 * unit)
            elif title.startswith("gain"):
                pairs = [one["running_mean"] / other["running_mean"] for one, other in zip(repeats, base)]
                assert shown == ("1" if repeats is base else f"{statistics.median(pairs):.2f}")


def shown_and_stored(result: Result) -> tuple[str, dict[str, Any]]:
    table = as_markdown(make_table(result, ON_SCREEN[result.kind], result.systems))
    return table, {"systems": [{"name": s.name, "repeats": s.repeats} for s in result.systems]}


def test_a_table_is_recomputed_from_the_repeats_and_a_planted_figure_is_noticed(results: list[Result]) -> None:
    for result in results:
        text, data = shown_and_stored(result)
        assert_capacity_is_recomputed(text, data)
        with pytest.raises(AssertionError):
            assert_capacity_is_recomputed(
                re.sub(r"(\d)(\.\d\d \()", lambda m: f"{(int(m[1]) + 1) % 10}{m[2]}", text), data
            )


def test_each_draw_has_the_next_seed_and_the_same_seed_gives_the_same_figures(results: list[Result]) -> None:
    (again, _) = run_capacity(small_plan(seed=1, block_sizes=[16], num_rounds=1), lambda _: None)
    for first, second in zip(results[0].systems, again.systems):
        assert [repeat["seed"] for repeat in first.repeats] == [0, 1]
        assert first.repeats[1:] == second.repeats
        assert first.repeats[0] != second.repeats[0]
    hashes = {result.workload.sha256 for result in (*results, again) if result.workload}
    assert len(hashes) == 2, "the comparison and the sweep have the same jobs, and another seed has others"


def test_larger_blocks_waste_more_and_serve_fewer(results: list[Result]) -> None:
    systems = [s for s in results[1].systems if "/on_demand" in s.name]
    assert [s.settings["block_size"] for s in systems] == [1, 64] * len(LOADS)
    for small, large in list(pairwise(systems))[::2]:
        assert small.repeats[0]["used_slots_mean"] == small.repeats[0]["allocated_slots_mean"]
        assert large.repeats[0]["running_mean"] < small.repeats[0]["running_mean"]


published = sorted((REPOSITORY / PUBLISHED).glob("capacity-*.json"))


@pytest.mark.parametrize("path", published, ids=lambda path: path.stem)
def test_published_capacities_are_recomputed_from_their_repeats(path: Path) -> None:
    result = read_result(path)
    table, _ = shown_and_stored(result)
    assert_capacity_is_recomputed(table, json.loads(path.read_text()))
    assert all(len(system.repeats) == result.planned_repeats for system in result.systems)


# -- the command ------------------------------------------------------------------------------------------

TINY = ["--pool-slots", "304", "--block-sizes", "16", "--repeats", "1"]


def test_the_command_keeps_two_results_and_the_tables_are_made_from_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("<!-- bench:capacity -->\n<!-- /bench -->\n<!-- bench:capacity-sweep -->\n<!-- /bench -->\n")
    assert update(tmp_path, check=False)[0]
    assert readme.read_text().count("Not measured yet: `python -m shared.bench capacity --publish`") == 2
    assert main(["capacity", *TINY, "--out", str(tmp_path / PUBLISHED)]) == 0
    assert "heavy tail" in capsys.readouterr().out
    assert update(tmp_path, check=False)[0]
    assert update(tmp_path, check=True)[0] == []
    comparison, sweep = (table_cells(text) for text in re.findall(r"(?:^\|.*\n)+", readme.read_text(), re.MULTILINE))
    assert comparison[0][:2] == ["workload", "system"]
    assert [row[:2] for row in comparison[1:4]] == [["low variance", kind.label] for kind in KINDS]
    assert sweep[0][:2] == ["workload", "block size"]
    assert [row[1] for row in sweep[1:]] == ["–", "16"] * len(LOADS)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--pool-slots", "8200"], "whole number of blocks of"),
        (["--pool-slots", "256"], "the longest sequence, 296 tokens, does not fit"),
        (["--block-sizes", "0"], "a whole number from 1"),
        (["--repeats", "none"], "a whole number from 1"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(
    arguments: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["capacity", *arguments, "--out", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    assert complaint in message
    assert not list(tmp_path.iterdir())


def exit_code(argv: list[str]) -> int:
    try:
        return main(argv)
    except SystemExit as exit:
        return int(exit.code or 0)


def test_the_help_says_what_is_compared_and_how_to_read_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["capacity", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(kind.label in text for kind in KINDS)
    assert all(load.label in text for load in LOADS.values())
    assert all(column in text for column in ("running at once", "gain", "waste", "preemption", "--pool-slots"))
