"""What the server says about itself: /health, /metrics, /metrics/summary, and the parts they are made of."""

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from shared.output import RequestMetrics, StepOutput
from shared.registry import newest_phase
from shared.server.distribution import Distribution
from shared.server.metrics import ServerMetrics
from shared.server.settings import ServerSettings
from shared.server.step_meter import StepMeter
from shared.step import ScheduledSequence, StepPlan
from shared.tiny_models import tiny_llama
from tests.fakes import make_sequence
from tests.helpers import PA, PB, open_engine
from tests.server_helpers import MODEL, Served, both_ids, both_kinds, open_server, strict_json


@pytest.fixture(params=both_kinds, ids=both_ids)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with open_server(request.param) as served:
        yield served


def samples(served: Served) -> dict[str, float]:
    """Name with labels -> value, as Prometheus reads them."""
    response = served.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    return {
        sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def test_everything_is_null_before_the_first_request(served: Served) -> None:
    summary = strict_json(served.http.get("/metrics/summary").text)
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "queue_ms"):
        assert summary[name] == {"p50": None, "p90": None, "p95": None, "p99": None, "mean": None}
    assert summary["slo"]["compliance"] is None
    assert summary["draft_acceptance_rate"] is None
    assert summary["steps"]["count"] == 0
    assert summary["steps"]["tokens_per_step"] is None


def test_requests_are_counted_and_timed(served: Served) -> None:
    served.generate(PA, 5)
    served.events("/v1/completions", {"prompt": PB, "max_tokens": 1, "ignore_eos": True})
    served.post("/generate", {})
    found = samples(served)
    assert found["pageserve_prompt_tokens_total"] == 16
    assert found["pageserve_generated_tokens_total"] == 6
    assert found["pageserve_requests_finished_total[length]"] == 2
    assert found["pageserve_num_running"] == found["pageserve_num_waiting"] == 0
    assert found["pageserve_ttft_seconds_count"] == found["pageserve_e2e_seconds_count"] == 2
    assert found["pageserve_itl_seconds_count"] == 4
    assert found["pageserve_tpot_seconds_count"] == 1, "undefined for one token"
    assert found["pageserve_step_seconds_count"] == found["pageserve_num_steps_total"]
    assert found["pageserve_http_requests_total[/generate][200]"] == 1
    assert found["pageserve_http_requests_total[/generate][400]"] == 1
    summary = strict_json(served.http.get("/metrics/summary").text)
    assert 0 < summary["ttft_ms"]["p50"] <= summary["ttft_ms"]["p99"]
    assert summary["steps"]["tokens_per_step"] > 1
    assert summary["slo"] == {"ttft_ms": 2000.0, "tpot_ms": 100.0, "num_requests": 2, "compliance": 1.0}
    assert summary["tokens"] == {"prompt": 16, "generated": 6}


def test_hits_and_accepted_guesses_are_told_where_a_phase_has_them() -> None:
    settings = {"speculative_method": "ngram", "kv_block_size": 4, "adaptive_speculation": False}
    with open_server(newest_phase(), tiny_llama(seed=7, initializer_range=0.1), **settings) as served:
        for _ in range(2):
            served.generate(PA, 24)
        summary = strict_json(served.http.get("/metrics/summary").text)
        assert 0 < summary["prefix_hit_rate"] < 1
        assert 0 < summary["draft_acceptance_rate"] <= 1
        assert samples(served)["pageserve_num_prefix_hit_tokens_total"] == 4


def test_paths_that_nobody_serves_make_no_labels(served: Served) -> None:
    for number in range(3):
        served.http.get(f"/nowhere/{number}")
    assert samples(served)["pageserve_http_requests_total[none][404]"] == 3


def test_head_is_answered_where_monitors_send_it(served: Served) -> None:
    for path in ("/", "/health", "/metrics", "/metrics/summary", "/v1/models", f"/v1/models/{MODEL}", "/openapi.json"):
        response = served.http.head(path)
        assert (response.status_code, response.content) == (200, b"")
    assert served.http.head("/v1/models/another").status_code == 404


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/", {"GET", "HEAD"}),
        ("/health", {"GET", "HEAD"}),
        ("/metrics", {"GET", "HEAD"}),
        ("/metrics/summary", {"GET", "HEAD"}),
        ("/v1/models", {"GET", "HEAD"}),
        ("/v1/models/a/b", {"GET", "HEAD"}),
        ("/docs", {"GET", "HEAD"}),
        ("/page/main.js", {"GET", "HEAD"}),
        ("/events", {"GET"}),
        ("/generate", {"POST"}),
        ("/v1/completions", {"POST"}),
    ],
)
def test_a_405_names_the_methods_that_there_are(served: Served, path: str, methods: set[str]) -> None:
    for method in {"GET", "HEAD", "POST", "DELETE"} - methods:
        response = served.http.request(method, path, content="{}", headers={"content-type": "application/json"})
        assert (response.status_code, set(response.headers["allow"].split(", "))) == (405, methods)
    assert served.http.options(path).status_code == 405


def test_the_root_says_where_to_go(served: Served) -> None:
    assert served.http.get("/").json()["docs"] == "/docs"
    assert served.http.get("/docs").status_code == 200


# -- parts --------------------------------------------------------------------------------------------


def test_percentiles_are_over_the_last_values_only() -> None:
    times = Distribution(CollectorRegistry(), "x_seconds", "x", (1.0,), window=4)
    for seconds in (100.0, 0.001, 0.002, 0.003, 0.004, None):
        times.add(seconds)
    assert times.summary_ms() == {"p50": 2.5, "p90": 3.7, "p95": 3.85, "p99": 3.97, "mean": 2.5}


def test_a_step_is_counted_once_however_many_rows_it_has() -> None:
    meter = StepMeter(Distribution(CollectorRegistry(), "x_seconds", "x", (1.0,), window=9))
    prompt, decode = make_sequence(8), make_sequence(1)
    for seqs in ((prompt, decode), (decode,), ()):
        meter.saw(StepPlan([ScheduledSequence.next_tokens(s, s.num_uncomputed_tokens) for s in seqs]), [], 1.0, 1.5)
    assert (meter.num_steps, meter.num_rows, meter.num_tokens) == (2, 3, 10)


def finished(reason: str, ttft_s: float | None, tpot_s: float = 0.01) -> StepOutput:
    first = None if ttft_s is None else ttft_s
    last = None if first is None else first + tpot_s
    metrics = RequestMetrics(0.0, 0.0, first, last, last)
    if first is not None:
        metrics.num_output_tokens, metrics.num_gaps, metrics.gaps_s = 2, 1, tpot_s
    return StepOutput(reason, 0, [], "", reason, metrics=metrics)


@pytest.mark.parametrize(
    ("output", "verdict"),
    [
        (finished("stop", 0.1), 1.0),
        (finished("length", 2.5), 0.0),
        (finished("length", 0.1, tpot_s=0.2), 0.0),
        (finished("timeout", None), 0.0),
        (finished("error", 0.1), 0.0),
        (finished("abort", 0.1), None),
    ],
    ids=["in time", "late first token", "slow tokens", "waited too long", "failed", "client left"],
)
def test_objectives_are_held_against_every_request_that_was_not_abandoned(output: Any, verdict: float | None) -> None:
    with open_engine(both_kinds[0]) as engine:
        metrics = ServerMetrics(engine, ServerSettings())
        metrics.saw(output)
        assert metrics.summary()["slo"]["compliance"] == verdict
