"""What goes wrong inside: the model, memory, the tokenizer, a step that hangs, the clock.

A model that raises for good is in `test_server_interruptions.py` (HTTP-05), one that raises without a server in
`test_engine_contract.py`.
"""

import ast
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from shared.errors import InvalidConfig
from shared.lesson_diff import ROOT
from shared.server.settings import ServerSettings
from shared.token_decoder import TokenDecoder
from tests.faults import (
    POISON,
    FailingSteps,
    HangingStep,
    assert_recovered,
    open_newest,
    poisoned_model,
    tokens_of,
    unharmed_neighbours,
)
from tests.helpers import PA, PB, T0_OUTPUTS, Q, assert_clean, letter_tokenizer, reference, wait_until
from tests.server_helpers import Served, assert_error, parse_events, read_to_end

STREAM = {"prompt": PB, "max_new_tokens": 100, "ignore_eos": True, "stream": True}
ERRORS = [
    RuntimeError("the model broke"),
    MemoryError("the host has none left"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
]


# -- a step fails -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_step_that_fails_ends_its_requests_and_harms_nobody_who_waits(error: Exception) -> None:
    with open_newest(max_batch_size=2) as served, ThreadPoolExecutor(3) as pool:
        steps = FailingSteps(served.engine)
        plain = pool.submit(served.generate, PA, 100)
        stream = pool.submit(served.post, "/generate", STREAM)
        wait_until(lambda: served.engine.stats().num_running == 2)
        queued = pool.submit(served.generate, Q[:5], 100)
        wait_until(lambda: served.engine.stats().num_waiting == 1)
        steps.errors.append(error)
        message = assert_error(plain.result(timeout=2), 500, code="engine_error")
        assert type(error).__name__ in message
        assert str(error) not in message, "it may speak of somebody else's request"
        *_, last = parse_events(stream.result(timeout=2).text)
        assert (last["error"]["type"], last["error"]["code"]) == ("server_error", "engine_error")
        assert tokens_of(queued) == list(reference("llama", tuple(Q[:5]), 100))
        assert_recovered(served)
        with unharmed_neighbours(served):
            assert tokens_of(pool.submit(served.generate, PA, 24)) == T0_OUTPUTS["PA"]


def test_health_is_503_from_the_failed_step_until_a_probe_gets_through() -> None:
    with open_newest() as served:
        FailingSteps(served.engine).errors += [ERRORS[0], ERRORS[0]]  # the request's and the first probe's
        assert_error(served.generate(PA, 4), 500, code="engine_error")
        for response in (served.http.get("/health"), served.generate(PA, 4)):
            assert_error(response, 503, code="engine_failed")
            assert int(response.headers["retry-after"]) >= 1
        assert_recovered(served)


# -- the model returns NaN ----------------------------------------------------------------------------


WAYS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.0, "n": 2},
    {"logprobs": 3},
    {"stream": True},
]


@pytest.mark.parametrize("speculative_method", ["off", "ngram"])
def test_nan_ends_its_own_request_and_no_other(speculative_method: str) -> None:
    with open_newest(model=poisoned_model(), speculative_method=speculative_method) as served:
        with unharmed_neighbours(served), ThreadPoolExecutor(len(WAYS)) as pool:
            for response in pool.map(lambda fields: served.generate([*PA, POISON, *PA], 24, **fields), WAYS):
                assert "the model's logits are NaN" in assert_error(response, 500, code="engine_error")
                assert served.http.get("/health").status_code == 200
        assert_recovered(served)


def test_a_model_that_returns_nothing_but_nan_is_not_healthy() -> None:
    with open_newest() as served:
        runner, forward = served.engine.runner, served.engine.runner._forward
        runner._forward = lambda batch: forward(batch) * torch.nan
        assert_error(served.generate(PA, 4), 500, code="engine_error")
        wait_until(lambda: served.http.get("/health").status_code == 503)
        assert_error(served.generate(PA, 4), 503, code="engine_failed")
        runner._forward = forward
        assert_recovered(served)


def stream_that_meets_nan(served: Served) -> httpx.Response:
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(served.post, "/generate", STREAM | {"prompt": Q[:40]})
        wait_until(lambda: served.engine.stats().generated_tokens > 2)
        fill_with_nan(served)
        return stream.result(timeout=5)


def test_nan_in_the_middle_of_an_answer_ends_the_stream_with_an_error() -> None:
    with open_newest() as served:
        *tokens, last = parse_events(stream_that_meets_nan(served).text)
        assert last["error"]["code"] == "engine_error"
        assert 2 < len(tokens) < 100
        assert_recovered(served)


def test_kv_of_a_request_that_ended_in_nan_is_not_in_the_prefix_cache() -> None:
    with open_newest() as served:
        stream_that_meets_nan(served)
        wait_until(lambda: served.http.get("/health").status_code == 200, 5)
        answer = served.generate(Q[:40], 8).json()
        assert answer["token_ids"] == list(reference("llama", tuple(Q[:40]), 8))
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def fill_with_nan(served: Served) -> None:
    served.engine.runner.cache.key.fill_(torch.nan)


# -- the tokenizer raises -----------------------------------------------------------------------------


class FragileTokenizer(PreTrainedTokenizerFast):
    def __call__(self, text: str, *arguments: Any, **options: Any) -> Any:  # type: ignore[override]
        if "t" in text:
            raise OverflowError("secret text t")
        return super().__call__(text, *arguments, **options)


def test_a_tokenizer_that_cannot_read_a_prompt_fails_that_request_alone() -> None:
    tokenizer = letter_tokenizer(vocab_size=97)
    tokenizer.__class__ = FragileTokenizer
    with open_newest(tokenizer=tokenizer) as served, unharmed_neighbours(served):
        for stream in (False, True):
            response = served.generate("t", 4, stream=stream)
            assert "secret" not in assert_error(response, 500)
            assert response.json()["error"]["type"] == "server_error"
        assert served.http.get("/health").status_code == 200
        assert served.generate("abc", 2).status_code == 200


def test_a_token_that_cannot_be_written_ends_its_own_request_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    third = T0_OUTPUTS["PA"][2]
    push = TokenDecoder.push

    def fragile(decoder: TokenDecoder, token_id: int) -> str:
        if token_id == third:
            raise OverflowError("no such token")
        return push(decoder, token_id)

    monkeypatch.setattr(TokenDecoder, "push", fragile)
    with open_newest() as served, unharmed_neighbours(served):
        message = assert_error(served.generate(PA, 24), 500, code="engine_error")
        assert message.endswith(f"the tokenizer cannot read token {third}")
        *tokens, last = parse_events(served.generate(PA, 24, stream=True).text)
        assert [event["token_ids"] for event in tokens] == [[token] for token in T0_OUTPUTS["PA"][:2]]
        assert last["error"]["code"] == "engine_error"
        assert served.http.get("/health").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_that_cannot_be_written_fail_that_request_alone(stream: bool) -> None:
    with open_newest() as served, unharmed_neighbours(served):
        texts = served.app.state.service.texts
        texts.bytes_of = lambda token_id: 1 // (token_id - T0_OUTPUTS["PA"][2])
        body = {"prompt": PA, "max_tokens": 24, "ignore_eos": True, "logprobs": 0, "stream": stream}
        response = served.post("/v1/completions", body)
        if stream:
            assert parse_events(response.text)[-1]["error"]["type"] == "server_error"
        else:
            assert "its log says more" in assert_error(response, 500)
        assert served.http.get("/health").status_code == 200


# -- a step hangs -------------------------------------------------------------------------------------


def test_a_step_that_hangs_shows_in_health_and_ends_well_if_it_ends() -> None:
    with open_newest(limits={"stuck_step_s": 0.3}) as served, ThreadPoolExecutor(1) as pool:
        step = HangingStep(served.engine)
        job = pool.submit(served.generate, PA, 24)
        wait_until(lambda: served.engine.stats().generated_tokens > 2)
        assert served.http.get("/health").status_code == 200
        step.is_on = True
        try:
            wait_until(lambda: served.http.get("/health").status_code == 503)
            for response in (served.http.get("/health"), served.generate(PB, 4)):
                assert "in one step for" in assert_error(response, 503, code="engine_stuck")
                assert int(response.headers["retry-after"]) >= 1
            assert served.http.get("/metrics").status_code == 200
            gone = served.connect()  # who hangs up meanwhile is forgotten as well
            gone.close()
        finally:
            step.let_go()
        assert tokens_of(job) == T0_OUTPUTS["PA"]
        assert_recovered(served)


def test_an_engine_without_work_is_not_stuck() -> None:
    with open_newest(limits={"stuck_step_s": 0.1}) as served:
        served.assert_alive()
        time.sleep(0.3)
        assert served.http.get("/health").status_code == 200
    with pytest.raises(InvalidConfig, match="stuck_step_s"):
        ServerSettings(stuck_step_s=0)


# -- the clock jumps ----------------------------------------------------------------------------------


def test_a_clock_that_jumps_changes_no_deadline_and_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    now, jump_s = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: now() + jump_s[0])
    options: dict[str, Any] = {"max_batch_size": 2, "queue_timeout_s": 1.0, "limits": {"body_timeout_s": 1.0}}
    with open_newest(**options) as served, served.connect() as half, ThreadPoolExecutor(1) as pool:
        with unharmed_neighbours(served):
            began = time.perf_counter()
            half.sendall(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n" + b'{"prompt":')
            waiting = pool.submit(served.generate, PA, 24)
            wait_until(lambda: served.engine.stats().num_waiting == 1)
            for jump_s[0] in (86_400.0, -86_400.0, 0.0):
                assert served.http.get("/health").status_code == 200
                time.sleep(0.05)
            assert time.perf_counter() - began < 0.9, "too slow a machine to tell"
            assert (served.engine.stats().num_waiting, served.engine.stats().requests_finished["timeout"]) == (1, 0)
            jump_s[0] = 86_400.0
        assert tokens_of(waiting) == T0_OUTPUTS["PA"]
        assert read_to_end(half).startswith(b"HTTP/1.1 408")
        figures = served.http.get("/metrics/summary").json()
        assert all(0 <= figures[name]["p99"] < 10_000 for name in ("queue_ms", "ttft_ms", "e2e_ms", "itl_ms"))
        assert_clean(served.engine)


WALL_CLOCK = {  # who may read it, and for what
    "shared/loading/model_cache.py": "compared with files' times",
    "shared/server/answer.py": "`created`",
    "shared/server/models_route.py": "`created`",
}


def test_only_what_is_shown_or_is_a_files_time_comes_from_the_wall_clock() -> None:
    readers = set()
    for path in [*ROOT.glob("shared/**/*.py"), *ROOT.glob("phase*/**/*.py")]:
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(("shared/bench/", "shared/trace/", "shared/workshop/")):
            calls = {ast.unparse(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)}
            readers |= {name} if "time.time()" in calls or "time()" in calls else set()
    assert readers == set(WALL_CLOCK)
