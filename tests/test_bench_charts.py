"""Charts: what they say is computed again from the repeats, and they are the same bytes each time."""

import json
import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib
import pytest

from shared.bench.__main__ import main
from shared.bench.charts.catalogue import CHARTS, Chart
from shared.bench.charts.theme import DARK, HATCHES, LIGHT, MARKERS, THEMES, fill
from shared.bench.code_files import REPOSITORY
from shared.bench.results import Figures, ModelRecord, Result, SystemResult, WorkloadRecord, read_results, write_result
from shared.bench.tables import PUBLISHED
from tests.test_bench import fake_provenance

ROUNDS = 3
MODEL = ModelRecord("model", "float32", "cpu", 2)


def drawn(rng: random.Random, *names: str) -> list[Figures]:
    return [{name: rng.uniform(0.1, 2.0) for name in names} for _ in range(ROUNDS)]


def system(rng: random.Random, name: str, *figures: str, **fields: Any) -> SystemResult:
    return SystemResult(name, fields.pop("label", f"the {name}"), drawn(rng, *figures), **fields)


def result(kind: str, systems: list[SystemResult], workload: str | None = None, **fields: Any) -> Result:
    record = None if workload is None else WorkloadRecord(workload, workload, 0, 1.0, 8, "abc")
    return Result(kind, fake_provenance(), systems, ROUNDS, model=MODEL, workload=record, **fields)


def bf16(one: Result) -> Result:
    return replace(one, model=replace(MODEL, dtype="bfloat16"))


def made_up() -> list[Result]:
    """A result of each kind, with random figures."""
    rng = random.Random(1)
    speed = ("output_tokens", "seconds", "ttft_p50_s", "ttft_p99_s", "prefix_hit_tokens", "prefix_queried_tokens")
    names = ("hf", "phase01", "phase08", "phase12", "phase12-no-cache", "phase12-ngram")
    slots = [f"{part}_slots_mean" for part in ("used", "reserved")]
    waits = [f"request{number}_{which}_s" for number in (1, 2, 3, 4) for which in ("first", "last")]
    gaps = ("gap_before_p50_s", "gap_p50_s", "gap_p99_s", "gap_max_s", "late_ttft_s")
    slo = {"slo_ttft_ms": 2000, "slo_tpot_ms": 100}
    offline = [system(rng, name, *speed, label=f"phase 12, {name}") for name in names]
    speculation = [
        system(rng, f"{batch}/{way}", *speed, "accepted_tokens", "drafted_tokens")
        for batch in (1, 8)
        for way in ("off", "fixed", "adaptive")
    ]
    serving = [
        replace(one, repeats=[repeat | {"offered_rps": rate} for repeat in one.repeats])
        for phase in ("01", "12")
        for rate in (1.0, 2.0, None)
        for one in [system(rng, f"phase{phase}@{rate}", "goodput_rps", settings=slo)]
    ]
    steps = [
        system(
            rng, f"{n}x{c}", "whole_step_s", "roofline_s", settings={"num_sequences": n, "context": c, "pool_factor": 1}
        )
        for n in (1, 8)
        for c in (128, 1024)
    ]
    capacity = [
        system(rng, f"tail/{way}", "running_mean", "pool_slots", *slots, workload="tail")
        for way in ("contiguous", "worst_case", "on_demand")
    ]
    parts = ("linears_s", "head_s", "attention_s", "model_rest_s", "sampling_s", "batch_building_s", "engine_rest_s")
    small_pools = [
        system(rng, f"{slots}/{way}", *speed, "preemptions", "recomputed_tokens", "num_exact", num_requests=8)
        for slots in (512, 1024)
        for way in ("phase08", "phase09-swap", "phase09-recompute")
    ]
    return [
        result("offline", offline, "A", base="hf"),
        result("offline", offline, "B", base="hf"),
        result("moves", [system(rng, name, *speed) for name in ("packed", "in-place", "bf16")], "A", base="packed"),
        result("preemption", small_pools, "D", base="phase08"),
        result("step-parts", [system(rng, f"{n}x128", "whole_step_s", "roofline_s", *parts) for n in (1, 8)]),
        bf16(result("speculation", speculation, "chat", base="off")),
        result("who-waits", [system(rng, name, *waits) for name in ("phase01", "phase12")]),
        result("interference", [system(rng, name, *gaps) for name in ("phase03", "phase04")], "7+1000", base="phase03"),
        replace(result("capacity", capacity, "8192", base="contiguous"), model=None),
        result("speculation", speculation, "repetitive", base="off"),
        result("speculation", speculation, "chat", base="off"),
        result("serving", serving, "tokens"),
        result("step-time", steps),
    ]


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    return {f"{number}.json": one for number, one in enumerate(made_up())}


def texts(svg: bytes) -> list[str]:
    return re.findall(r">([^<>]+)</text>", svg.decode().replace("&lt;", "‹"))


def comparable(svg: bytes) -> list[str]:
    """Without bare numbers in another matplotlib than the committed charts': it chooses other places for its ticks."""
    drawn_with = re.search(r"^matplotlib==(\S+)$", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE)
    assert drawn_with
    if matplotlib.__version__ == drawn_with[1]:
        return texts(svg)
    return [text for text in texts(svg) if not re.fullmatch(r"[\d.,]+", text)]


def middles(raw: dict[str, Any], name: str) -> float:
    return median(repeat[name] for repeat in raw["repeats"])


def rates(raw: dict[str, Any]) -> list[float]:
    return [repeat["output_tokens"] / repeat["seconds"] for repeat in raw["repeats"]]


def ratio(raw: dict[str, Any], base: dict[str, Any]) -> float:
    return median(one / other for one, other in zip(rates(raw), rates(base)))


def expected_texts(chart: str, raws: list[dict[str, Any]]) -> list[str]:
    """What a chart has to say of the stored repeats, worked out here once more."""
    (raw, *_), systems = raws, {one["name"]: one for one in raws[0]["systems"]}
    base = systems.get(raw["base"] or "")
    plain = [one for name, one in systems.items() if name.startswith("phase") and "-" not in name]
    if chart == "throughput":
        return [
            f"{median(rates(one)):.1f}" + ("" if one is base else f" ({ratio(one, base):.2f}×)")
            for one in systems.values()
        ]
    if chart == "ttft":
        return [
            f"{1000 * middles(one, 'ttft_p50_s'):,.0f} / {1000 * middles(one, 'ttft_p99_s'):,.0f} ms"
            for one in systems.values()
        ]
    if chart in ("waterfall", "moves"):
        speeds = [median(rates(one)) for one in (plain if chart == "waterfall" else systems.values())]
        gains = [f"{after - before:+.1f}".replace("-", "−") for before, after in pairwise(speeds)]
        return [f"{speeds[0]:.1f}", *(f"{gain} → {after:.1f}" for gain, after in zip(gains, speeds[1:]))]
    if chart == "preemption":
        return [
            f", {min(repeat['num_exact'] for repeat in one['repeats']):,.0f} of 8 done, "
            f"{middles(one, 'preemptions'):,.0f} preempted, {middles(one, 'recomputed_tokens'):,.0f} tokens again"
            for one in systems.values()
        ]
    if chart == "step-parts":
        return [
            f"{1000 * middles(one, 'whole_step_s'):,.1f} ms, "
            f"{middles(one, 'whole_step_s') / middles(one, 'roofline_s'):.1f}× the roofline"
            for one in systems.values()
        ]
    if chart == "ablation":
        return [
            f"{ratio(one, systems['phase12']):.2f}×" for name, one in systems.items() if name.startswith("phase12-")
        ]
    if chart == "prefix":
        hits = [
            median(repeat["prefix_hit_tokens"] / repeat["prefix_queried_tokens"] for repeat in one["repeats"])
            for one in systems.values()
        ]
        return [f"{100 * hit:.0f} % of the prompts found" for hit in hits]
    if chart == "who-waits":
        return [
            f"first after {first:.2f} s, done after {last:.2f} s"
            for one in systems.values()
            for n in (1, 2, 3, 4)
            for first, last in [(middles(one, f"request{n}_first_s"), middles(one, f"request{n}_last_s"))]
        ]
    if chart == "gaps":
        return [f"longest {1000 * middles(one, 'gap_max_s'):,.0f} ms" for one in systems.values()]
    if chart == "memory":
        return [
            f"{100 * median(r['used_slots_mean'] / r['pool_slots'] for r in one['repeats']):.0f} % K/V"
            for one in systems.values()
        ]
    if chart == "capacity":
        return [f"{middles(one, 'running_mean'):.1f}" for one in systems.values()]
    if chart in ("speculation", "speculation-bf16"):
        return [
            f"{ratio(one, other):.2f}×"
            for every in raws
            for one in every["systems"]
            for other in every["systems"]
            if other["name"] == one["name"].partition("/")[0] + "/off" and other is not one
        ]
    if chart == "serving":
        last = [one for one in systems.values() if max(r["offered_rps"] or 0 for r in one["repeats"]) == 2.0]
        return [f"({middles(one, 'goodput_rps'):.2f}/s)" for one in last]
    assert chart == "step-time"
    longest = [one for one in systems.values() if one["settings"]["context"] == 1024]
    return [
        f"{one['settings']['num_sequences']} at once: {1000 * middles(one, 'whole_step_s'):,.0f} ms" for one in longest
    ]


by_chart = pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)


@by_chart
def test_a_chart_says_what_was_measured(chart: Chart, results: dict[str, Result], tmp_path: Path) -> None:
    found = chart.find(results)
    raws = [json.loads(write_result(one, tmp_path).read_text()) for one in found]
    said = texts(chart.svg(found, LIGHT))
    for text in expected_texts(chart.name, raws):
        assert any(text in one for one in said), f"{text!r} is not in {said}"
    assert any("commit 0123456" in one for one in said), "where its numbers are from"


@by_chart
def test_a_chart_is_skipped_where_nothing_was_measured(chart: Chart) -> None:
    assert chart.find({}) == []
    assert chart.command.startswith("python -m shared.bench ")


@by_chart
def test_light_and_dark_say_the_same(chart: Chart, results: dict[str, Result]) -> None:
    light, dark = (chart.svg(chart.find(results), theme) for theme in THEMES)
    assert texts(light) == texts(dark)
    assert LIGHT.background in light.decode()
    assert DARK.background in dark.decode()


def test_the_files_are_the_same_bytes_in_every_process_and_what_is_missing_is_named(
    tmp_path: Path, results: dict[str, Result], capsys: pytest.CaptureFixture[str]
) -> None:
    for name, one in results.items():
        if one.kind != "serving":
            path = write_result(one, tmp_path / "json")
            path.rename(path.with_name(name))
    assert main(["charts", "--results", str(tmp_path / "json"), "--out", str(tmp_path / "one")]) == 0
    assert "serving: not measured yet: python -m shared.bench serving" in capsys.readouterr().out
    command = [sys.executable, "-m", "shared.bench", "charts", "--results", str(tmp_path / "json")]
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    subprocess.run([*command, "--out", str(tmp_path / "two")], cwd=REPOSITORY, env=environment, check=True)
    drawn_once = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert len(drawn_once) == 2 * (len(CHARTS) - 1)
    assert drawn_once == {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
    assert all(b"dc:date" not in content and b"Matplotlib" not in content for content in drawn_once.values())


def test_kinds_of_bars_and_lines_differ_without_colour() -> None:
    assert len({fill(LIGHT, number)["hatch"] for number in range(len(HATCHES))}) == len(HATCHES)
    assert len(set(MARKERS)) == len(MARKERS)


@pytest.mark.parametrize("path", sorted((REPOSITORY / PUBLISHED / "charts").glob("*-light.svg")), ids=lambda p: p.stem)
def test_a_committed_chart_is_of_the_newest_published_result(path: Path) -> None:
    chart = next(chart for chart in CHARTS if f"{chart.name}-light" == path.stem)
    found = chart.find(read_results(REPOSITORY / PUBLISHED))
    assert found, "the result that it was drawn from is gone"
    again = f"run python -m shared.bench charts --only {chart.name}"
    assert comparable(path.read_bytes()) == comparable(chart.svg(found, LIGHT)), again
    assert path.with_name(f"{chart.name}-dark.svg").exists()


def test_an_unknown_chart_and_a_folder_that_is_none_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["charts", "--only", "moon"]) == 2
    assert "throughput" in capsys.readouterr().err
    assert main(["charts", "--results", "./no/such/folder"]) == 2
    assert "no such folder" in capsys.readouterr().err
