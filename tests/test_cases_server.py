"""Acceptance cases over HTTP, what the server's own files leave: every route, streamed or not, several choices at once.

Where the engine's part of a case is in `test_cases_engine.py`, this asks whether the server keeps it.
"""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from openai import OpenAI
from tokenizers.processors import TemplateProcessing

from shared.bench.load.own_loop import run_to_end
from shared.bench.load.sweep import Case, model_of
from shared.bench.load.target import Target
from shared.registry import PHASES, Phase, newest_phase
from shared.tiny_models import tiny_llama
from tests.helpers import PA, PB, T0_OUTPUTS, Q, assert_clean, cyclic_model, letter_tokenizer, slow_down, wait_until
from tests.server_helpers import (
    MODEL,
    Served,
    assert_error,
    both_ids,
    both_kinds,
    chatting,
    open_server,
    strict_json,
)
from tests.stub_servers import piece, say, stub, usage
from tests.test_bench_load import measured
from tests.test_cases_engine import load_saved, save
from tests.test_server_process import process, wait_for_address

COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"
JSON = {"content-type": "application/json"}
NEWEST = newest_phase()
NGRAM = {"speculative_method": "ngram", "num_speculative_tokens": 4, "adaptive_speculation": False}
EXACT = {"max_tokens": 4, "ignore_eos": True}
both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def asks(text: str, ids: list[int] | None = None) -> list[tuple[str, dict[str, Any]]]:
    """The same prompt on every route; the chat takes text alone."""
    prompt = ids or text
    return [(COMPLETIONS, {"prompt": prompt}), (GENERATE, {"prompt": prompt}), (CHAT, {"messages": user(text)})]


@pytest.fixture(scope="module", params=both_kinds, ids=both_ids)
def t0(request: pytest.FixtureRequest) -> Iterator[Served]:
    with open_server(request.param, tokenizer=chatting(letter_tokenizer(vocab_size=97)), kv_block_size=4) as served:
        yield served


@pytest.fixture(scope="module", params=both_kinds, ids=both_ids)
def c20(request: pytest.FixtureRequest) -> Iterator[Served]:
    """The final engine guesses here, so that an event can carry several tokens."""
    with open_server(request.param, cyclic_model(), chatting(letter_tokenizer()), **NGRAM) as served:
        yield served


def choices(served: Served, route: str, body: dict[str, Any], stream: bool) -> list[tuple[str, str]]:
    """Text and finish reason of each choice, put together from the events where it is streamed."""
    if stream:
        return _streamed(served, route, body)
    answer = served.post(route, body).json()
    if route == GENERATE:
        return [(choice["text"], choice["finish_reason"]) for choice in answer.get("outputs", [answer])]
    if route == CHAT:
        return [(choice["message"]["content"], choice["finish_reason"]) for choice in answer["choices"]]
    return [(choice["text"], choice["finish_reason"]) for choice in answer["choices"]]


def _streamed(served: Served, route: str, body: dict[str, Any]) -> list[tuple[str, str]]:
    count = body.get("n", 1)
    texts, reasons = [""] * count, [[] for _ in range(count)]
    for event in served.events(route, body):
        if event.get("done"):
            ends = event["finish_reason"]
            reasons = [[end] for end in (ends if isinstance(ends, list) else [ends])]
        elif route == GENERATE:
            texts[event.get("index", 0)] += event["text"]
        else:
            (choice,) = event["choices"]
            texts[choice["index"]] += choice["text"] if route == COMPLETIONS else choice["delta"].get("content") or ""
            reasons[choice["index"]] += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert all(len(ends) == 1 for ends in reasons), "one terminal event per choice"
    return [(text, ends[0]) for text, ends in zip(texts, reasons)]


# -- scheduler and blocks -----------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [p for p in PHASES if p.number >= 6], ids=lambda p: p.package[:7])
def test_sch_01_a_prompt_over_the_pool_is_a_400_on_every_route(phase: Phase) -> None:
    settings = {"kv_block_size": 4, "kv_num_blocks": 8, "max_model_len": 128}
    with open_server(phase, tokenizer=chatting(letter_tokenizer(vocab_size=97)), **settings) as served:
        for stream in (False, True):
            for prompt in (Q[:40], Q[:33], [PA, Q[:40]], "a" * 40):
                assert_error(served.post(COMPLETIONS, EXACT | {"prompt": prompt, "stream": stream}), 400, "prompt")
            assert_error(served.post(GENERATE, EXACT | {"prompt": Q[:40], "n": 2, "stream": stream}), 400, "prompt")
            assert_error(served.post(CHAT, EXACT | {"messages": user("a" * 40), "stream": stream}), 400, "messages")
        assert_clean(served.engine)
        served.assert_alive()


@both_ways
@pytest.mark.parametrize("n", [1, 2])
def test_sch_03_the_first_token_can_end_it_on_every_route(stream: bool, n: int) -> None:
    model = cyclic_model()
    model.generation_config.eos_token_id = 13  # "d"
    with open_server(NEWEST, model, chatting(letter_tokenizer()), **NGRAM) as served:
        for route, body in asks("abcabcabc"):
            assert choices(served, route, body | {"max_tokens": 16, "n": n}, stream) == [("", "stop")] * n
            assert choices(served, route, body | EXACT | {"max_tokens": 1, "n": n}, stream) == [("d", "length")] * n


@both_ways
def test_kv_01_kv_02_a_chat_or_several_prompts_that_are_hung_up_on(t0: Served, stream: bool) -> None:
    long = {"max_tokens": 400, "ignore_eos": True, "stream": stream, "n": 2, "temperature": 1}
    for route, body in ((CHAT, {"messages": user("abc")}), (COMPLETIONS, {"prompt": [PA, PB, Q]})):
        connection = t0.send_raw(route, body | long)
        wait_until(lambda: t0.engine.stats().num_running >= 1)
        connection.close()
        assert_clean(t0.engine)
        assert not t0.app.state.service._open
    t0.assert_alive()


def test_kv_02_an_n_that_is_no_count_is_refused_on_every_route(t0: Served) -> None:
    for route, body in asks("abc"):
        for n in (0, -1, 65, 1.5, "2", True, 10**30):
            assert_error(t0.post(route, body | {"n": n}), 400, "n")


def test_pfx_01_what_was_cached_is_reported() -> None:
    def cached(**fields: Any) -> int:
        body = {"prompt": PA, "max_tokens": 6, "ignore_eos": True} | fields
        usages = [served.post(COMPLETIONS, body).json()["usage"]]
        options = {"stream_options": {"include_usage": True}}
        usages.append(served.events(COMPLETIONS, body | options)[-1]["usage"])
        assert [found["prompt_tokens"] for found in usages] == [8, 8]
        return usages[1]["prompt_tokens_details"]["cached_tokens"]

    with open_server(NEWEST, kv_block_size=4) as served:
        first = served.post(COMPLETIONS, {"prompt": PA, "max_tokens": 6, "ignore_eos": True}).json()["usage"]
        assert first["prompt_tokens_details"]["cached_tokens"] == 0
        assert cached() == 4
        salted = served.post(COMPLETIONS, {"prompt": PA, "max_tokens": 1, "cache_salt": "another"}).json()["usage"]
        assert salted["prompt_tokens_details"]["cached_tokens"] == 0


def test_pfx_05_prompt_logprobs_of_several_prompts_and_choices(t0: Served) -> None:
    values = [-8.72634, -4.04783, -4.79558, -2.57545, -8.58013, -5.72428, -6.05516, -0.60923]
    body = {"prompt": [PA, PA[:1]], "max_tokens": 1, "echo": True, "logprobs": 0, "n": 2}
    for _ in range(2):
        found = [choice["logprobs"]["token_logprobs"] for choice in t0.post(COMPLETIONS, body).json()["choices"]]
        for logprobs in found[:2]:
            assert logprobs == [None, *(pytest.approx(value, abs=1e-3) for value in values)]
        for logprobs in found[2:]:
            assert (logprobs[0], len(logprobs)) == (None, 2)
        events = t0.events(COMPLETIONS, body | {"prompt": PA, "n": 1})
        pieces = [value for event in events for value in event["choices"][0]["logprobs"]["token_logprobs"]]
        assert pieces == [None, *(pytest.approx(value, abs=1e-3) for value in values)]


# -- speculation --------------------------------------------------------------------------------------


@both_ways
def test_spc_01_spc_02_a_stop_inside_a_draft_on_every_route(stream: bool) -> None:
    model = cyclic_model()
    model.generation_config.eos_token_id = 17  # "h"
    with open_server(NEWEST, model, chatting(letter_tokenizer()), **NGRAM) as served:
        for route, body in asks("abcdefghijabcde"):
            for n in (1, 2):
                assert choices(served, route, body | {"max_tokens": 5, "n": n}, stream) == [("fg", "stop")] * n
                assert choices(served, route, body | {"max_tokens": 2, "n": n}, stream) == [("fg", "length")] * n
        assert served.engine.stats().num_accepted_tokens > 0


def test_spc_03_the_usage_is_what_was_delivered_on_every_route() -> None:
    def counted(served: Served, route: str, body: dict[str, Any]) -> tuple[int, int]:
        """The usage of both ways, which have to agree with the counter."""
        before = served.engine.stats().generated_tokens
        whole = served.post(route, body).json()["usage"]["completion_tokens"]
        assert whole == served.engine.stats().generated_tokens - before
        options = {} if route == GENERATE else {"stream_options": {"include_usage": True}}
        streamed = served.events(route, body | options)[-1]["usage"]["completion_tokens"]
        assert whole + streamed == served.engine.stats().generated_tokens - before
        return whole, streamed

    with open_server(NEWEST, cyclic_model(5), chatting(letter_tokenizer(5)), **NGRAM) as served:
        for max_tokens in range(1, 13):
            for route, body in asks("abcdeabcde"):
                body |= {"max_tokens": max_tokens}
                expected = [("abcdeabcdeab"[:max_tokens], "length")]
                assert choices(served, route, body, False) == choices(served, route, body, True) == expected
                assert counted(served, route, body) == (max_tokens, max_tokens)


# -- sampling -----------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Any, ...]] = {
    "temperature": (-1, -1e-9, "hot", True, [1]),
    "top_p": (1.5, -0.1, "0.5", True),
    "top_k": (-5, -2, 1.5, "1", True),
    "min_p": (-0.1, 1.1),
    "repetition_penalty": (0, -1),
    "presence_penalty": (2.1, -2.1),
    "frequency_penalty": (3, "1"),
    "seed": (1.5, "1", 2**64),
    "min_tokens": (-1, 3),
    "logit_bias": ({"5": 101}, {"5": "1"}, [5], {"-1": 1}, {"97": 1}, {"1.5": 1}),
    "stop_token_ids": ([97], [-1], ["a"], 5),
    "stop": (5, [5], ["a"] * 17, ["a" * 257], "", [""]),
    "ignore_eos": (1, "true"),
    "max_tokens": (0, -1, 1.5, 1.0, "10", True, [5]),
    "cache_salt": ("", 5),
}


def test_smp_02_smp_03_http_02_a_wrong_value_is_named_on_every_route_and_null_is_none(t0: Served) -> None:
    for route, body in asks("abc"):
        for name, values in WRONG.items():
            for value in values:
                assert_error(t0.post(route, body | {"max_tokens": 2, name: value}), 400, name)
            assert t0.post(route, body | {"max_tokens": 2, "ignore_eos": True, name: None}).status_code == 200
        for literal in ("NaN", "Infinity", "-Infinity", "1e999"):
            for name in ("top_p", "temperature", "min_p"):
                content = json.dumps(body)[:-1] + f', "{name}": {literal}}}'
                assert_error(t0.http.post(route, content=content, headers=JSON), 400, name)
    t0.assert_alive()


def test_smp_01_smp_03_what_is_far_out_but_allowed_is_served(t0: Served) -> None:
    for route, body in asks("abc"):
        for fields in ({"top_k": 9999999}, {"top_k": 2**70}, {"temperature": 1e-40}, {"temperature": 5e-324}):
            answer = t0.post(route, body | {"max_tokens": 2, "temperature": 1} | fields)
            assert answer.status_code == 200, answer.text
    t0.assert_alive()


def test_smp_05_generation_config_changes_no_route(tmp_path: Path) -> None:
    save(tiny_llama(), tmp_path, generation_config={"repetition_penalty": 1.5, "do_sample": True, "temperature": 0.7})
    with open_server(NEWEST, load_saved(tmp_path), chatting(letter_tokenizer(vocab_size=97))) as served:
        body = {"max_tokens": 12, "ignore_eos": True, "return_token_ids": True}
        (choice,) = served.post(COMPLETIONS, body | {"prompt": PA}).json()["choices"]
        native = served.generate(PA, 12).json()["token_ids"]
        assert choice["token_ids"] == native == [8, 62, 18, 72, 11, 28, 59, 91, 7, 4, 86, 95]
        del body["return_token_ids"]
        texts = {choices(served, route, ask | body, False)[0][0] for route, ask in asks("abc")}
        assert len(texts) == 1, "the same on every route"


@pytest.mark.parametrize(
    "fields",
    [{"top_k": 1}, {"top_p": 0.0}, {"logit_bias": {"8": -100}}, {"min_tokens": 3, "ignore_eos": False}, {"min_p": 1.0}],
    ids=str,
)
def test_smp_06_logprobs_are_json_whatever_is_masked(t0: Served, fields: dict[str, Any]) -> None:
    body = {"max_tokens": 3, "temperature": 1, "seed": 1, "ignore_eos": True} | fields
    for route, ask in asks("abc"):
        wanted = {"logprobs": True, "top_logprobs": 20} if route == CHAT else {"logprobs": 20}
        answer = strict_json(t0.post(route, ask | body | wanted).text)
        assert len(json.dumps(answer, allow_nan=False)) > 300
        assert t0.events(route, ask | body | wanted)


# -- text ---------------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize(
    ("stop", "max_tokens", "text", "reason"),
    [
        (["ijk"], 20, "defgh", "stop"),
        (["ijz"], 10, "defghijklm", "length"),
        (["mz"], 10, "defghijklm", "length"),
        (["d"], 5, "", "stop"),
        (["defg"], 9, "", "stop"),
        (["kl", "ijk"], 20, "defgh", "stop"),
        (["ijkx", "k"], 20, "defghij", "stop"),
        (["m"], 10, "defghijkl", "stop"),
        ("h", 10, "defg", "stop"),
        (["cd"], 5, "defgh", "length"),
    ],
)
def test_str_02_no_part_of_a_stop_string_leaks_on_any_route(
    c20: Served, stream: bool, stop: Any, max_tokens: int, text: str, reason: str
) -> None:
    for route, body in asks("abc"):
        body |= {"stop": stop, "max_tokens": max_tokens, "n": 2}
        assert choices(c20, route, body, stream) == [(text, reason)] * 2


def test_str_04_one_bos_before_a_whole_conversation_and_before_each_prompt() -> None:
    tokenizer = letter_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<1> $A", special_tokens=[("<1>", 1)])
    chatting(tokenizer, "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}")
    turns = [{"role": "system", "content": "ab"}, *user("c"), {"role": "assistant", "content": "d"}, *user("e")]
    with open_server(NEWEST, cyclic_model(), tokenizer) as served:
        chat = served.post(CHAT, {"messages": turns, "max_tokens": 3}).json()
        assert (chat["usage"]["prompt_tokens"], chat["choices"][0]["message"]["content"]) == (6, "fgh")
        body = {"prompt": ["abc", "de"], "max_tokens": 1, "return_token_ids": True}
        plain = served.post(COMPLETIONS, body).json()
        assert [choice["prompt_token_ids"] for choice in plain["choices"]] == [[1, 10, 11, 12], [1, 13, 14]]
        assert plain["usage"]["prompt_tokens"] == 7


# -- errors -------------------------------------------------------------------------------------------


@both_ways
def test_http_01_http_08_what_is_no_prompt_is_refused_streamed_or_not(t0: Served, stream: bool) -> None:
    for prompt in (None, {}, 5, [None], [{}], [[]], [""], [2**64], [[5, None]], [5, "a"]):
        for route in (COMPLETIONS, GENERATE):
            assert_error(t0.post(route, {"prompt": prompt, "stream": stream}), 400, "prompt")
    for content in (None, 5, [], [{"type": "text", "text": ""}]):
        messages = [{"role": "user", "content": content}]
        assert_error(t0.post(CHAT, {"messages": messages, "stream": stream}), 400, "messages")
    for messages in (None, "abc", {}, [None], ["abc"]):
        assert_error(t0.post(CHAT, {"messages": messages, "stream": stream}), 400, "messages")
    t0.assert_alive()


def test_http_02_a_chat_has_its_own_default_and_the_models_length_for_a_huge_one() -> None:
    with open_server(NEWEST, tokenizer=chatting(letter_tokenizer(vocab_size=97)), max_model_len=40) as served:
        for fields in ({}, {"max_tokens": None}, {"max_tokens": 10**9}, {"max_completion_tokens": 2**63}):
            answer = served.post(CHAT, {"messages": user("abc"), "ignore_eos": True} | fields).json()
            assert answer["usage"]["completion_tokens"] == 37
            assert answer["choices"][0]["finish_reason"] == "length"


def test_http_03_the_client_gets_the_message_of_a_full_and_of_a_slow_queue() -> None:
    tokenizer = chatting(letter_tokenizer(vocab_size=97))
    settings = {"max_batch_size": 1, "queue_capacity": 1, "queue_timeout_s": 0.5}
    with open_server(NEWEST, tokenizer=tokenizer, **settings) as served, ThreadPoolExecutor(1) as pool:
        slow_down(served.engine)
        held = served.send_raw(GENERATE, {"prompt": PA, "max_tokens": 400, "ignore_eos": True})
        wait_until(lambda: served.engine.stats().num_running == 1)
        with OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as client:

            def chat() -> Any:
                return client.chat.completions.create(model=MODEL, messages=user("abc"), stream=True)  # type: ignore

            slow = pool.submit(chat)
            wait_until(lambda: served.engine.stats().num_waiting == 1)
            for status, code, call in ((503, "queue_full", chat), (504, "queue_timeout", slow.result)):
                with pytest.raises(openai.InternalServerError) as refused:
                    call()
                assert refused.value.status_code == status
                assert isinstance(refused.value.body, dict)
                assert refused.value.body["code"] == code
                assert "wait" in refused.value.body["message"]
        held.close()


@both_ways
def test_http_04_no_name_but_the_right_one_is_answered(c20: Served, stream: bool) -> None:
    for model in ("TINY", "tiny ", "tiny/", "gpt-4o"):
        for route, body in ((COMPLETIONS, {"prompt": "abc"}), (CHAT, {"messages": user("abc")})):
            response = c20.post(route, body | {"model": model, "stream": stream})
            assert_error(response, 404, "model", "model_not_found")
    known = {model["id"] for model in c20.http.get("/v1/models").json()["data"]}
    for route, body in ((COMPLETIONS, {"prompt": "abc"}), (CHAT, {"messages": user("abc")})):
        body |= {"max_tokens": 2}
        answers = c20.events(route, body) if stream else [c20.post(route, body).json()]
        assert {answer["model"] for answer in answers} <= known


def test_http_09_a_huge_body_costs_no_memory() -> None:
    huge = b'{"prompt": "' + b"a" * (8 << 20) + b'"}'
    with process("tests.server_helpers", str(NEWEST.number), "1") as started:
        url = wait_for_address(started)
        with httpx.Client(base_url=url, trust_env=False) as http:
            http.post(GENERATE, json={"prompt": PA, "max_tokens": 4})
            before = psutil.Process(started.pid).memory_info().rss
            for _ in range(4):
                parts = (huge[start : start + 65536] for start in range(0, len(huge), 65536))
                for content in (huge, parts):
                    try:
                        response = http.post(COMPLETIONS, content=content, headers=JSON)
                    except httpx.WriteError:  # it hung up while we were still sending
                        continue
                    assert_error(response, 413, code="body_too_large")
            assert psutil.Process(started.pid).memory_info().rss - before < 8 << 20, "64 MiB were sent"


def test_con_01_many_requests_with_one_id(t0: Served) -> None:
    def tokens(prompt: list[int]) -> list[int]:
        body = {"prompt": prompt, "max_tokens": 24, "ignore_eos": True, "return_token_ids": True}
        response = t0.post(COMPLETIONS, body, headers={"X-Request-Id": "same"})
        return response.json()["choices"][0]["token_ids"]

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(tokens, (PA, PB) * 6))
    assert answers == [T0_OUTPUTS["PA"], T0_OUTPUTS["PB"]] * 6
    t0.assert_alive()
    for route, body in asks("abc"):
        assert_error(t0.post(route, body | {"request_id": "x"}), 400, "request_id")


# -- notebooks ----------------------------------------------------------------------------------------


def test_nbk_01_the_load_tester_runs_inside_a_running_event_loop() -> None:
    async def cell(url: str) -> list[Any]:
        return [model_of(Target(url)), *(measured(url, Case("x", "x", concurrency=2), 4)[0]["num_ok"] for _ in (1, 2))]

    before = set(threading.enumerate())
    with stub(say(piece("a", token_ids=[7]), usage(1))) as server:
        assert asyncio.run(cell(server.url)) == ["stub", 4, 4]
    assert set(threading.enumerate()) <= before, "no thread is left"


def test_nbk_02_ctrl_c_ends_a_load_test_inside_a_running_event_loop() -> None:
    has_ended = threading.Event()

    async def wait_for_ever() -> None:
        try:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            await asyncio.sleep(60)
        finally:
            has_ended.set()

    async def cell() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a notebook: `asyncio.run` has one of its own
        run_to_end(wait_for_ever())

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(cell())
    assert has_ended.is_set()
