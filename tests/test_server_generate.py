"""`/generate` and what all generating routes share: streams, several choices, stop strings. Every phase."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from shared.registry import PHASES
from shared.tiny_models import tiny_llama
from tests.helpers import PA, PB, T0_OUTPUTS, cyclic_model, letter_tokenizer, phase_ids
from tests.server_helpers import Served, assert_error, open_server

GREEDY_PA = T0_OUTPUTS["PA"]


def usage(num_prompt: int, num_output: int) -> dict[str, Any]:
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


@pytest.fixture(scope="module", params=PHASES, ids=phase_ids)
def c20(request: pytest.FixtureRequest) -> Iterator[Served]:
    with open_server(request.param, cyclic_model(), letter_tokenizer()) as served:
        yield served


@pytest.fixture(scope="module", params=PHASES, ids=phase_ids)
def t0(request: pytest.FixtureRequest) -> Iterator[Served]:
    """Without a tokenizer; EOS is 8, the first token after PA."""
    model = tiny_llama()
    model.generation_config.eos_token_id = 8
    with open_server(request.param, model, tokenizer=None) as served:
        yield served


def test_a_plain_answer_has_tokens_text_times_and_usage(c20: Served) -> None:
    answer = c20.generate("abc", 5).json()
    assert answer.pop("id").startswith("gen-")
    assert answer.pop("ttft_ms") > 0
    assert answer.pop("tpot_ms") > 0
    assert answer == {
        "index": 0,
        "token_ids": [13, 14, 15, 16, 17],
        "text": "defgh",
        "finish_reason": "length",
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 5,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_a_stream_has_an_event_per_step_then_one_that_is_done(c20: Served) -> None:
    *events, last = c20.events("/generate", {"prompt": "abc", "max_new_tokens": 3})
    assert events == [
        {"token_ids": [13], "text": "d"},
        {"token_ids": [14], "text": "e"},
        {"token_ids": [15], "text": "f"},
    ]
    assert (last["done"], last["finish_reason"]) == (True, "length")
    assert last["usage"] == usage(3, 3)
    assert last["ttft_ms"] > 0
    assert last["tpot_ms"] > 0


def test_one_token_has_no_time_per_token(c20: Served) -> None:
    assert c20.generate("abc", 1).json()["tpot_ms"] is None


def test_several_choices_come_together_with_their_index(c20: Served) -> None:
    answer = c20.generate("abc", 4, n=3).json()
    events = c20.events("/generate", {"prompt": "abc", "max_new_tokens": 4, "n": 2})
    assert [choice["text"] for choice in answer["outputs"]] == ["defg"] * 3
    assert answer["usage"] == usage(3, 12)
    assert events.pop()["finish_reason"] == ["length", "length"]
    texts = ["".join(event["text"] for event in events if event["index"] == index) for index in (0, 1)]
    assert texts == ["defg", "defg"]


def test_logprobs_name_the_token_and_its_rivals(c20: Served) -> None:
    answer = c20.generate("abc", 2, logprobs=1).json()
    event = c20.events("/generate", {"prompt": "abc", "max_new_tokens": 1, "logprobs": 1})[0]
    assert answer["logprobs"][0] == event["logprobs"][0]
    assert (event["logprobs"][0]["token_id"], list(event["logprobs"][0]["top"])) == (13, ["13"])


@pytest.mark.parametrize(("ignore_eos", "max_tokens", "reason"), [(False, 16, "stop"), (True, 1, "length")])
def test_sch_03_the_first_token_can_end_the_request(t0: Served, ignore_eos: bool, max_tokens: int, reason: str) -> None:
    body = {"prompt": PA, "max_new_tokens": max_tokens, "ignore_eos": ignore_eos}
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(t0.generate, PB, 4)
        event, last = t0.events("/generate", body)
        whole = t0.post("/generate", body).json()
    assert (event["token_ids"], last["finish_reason"]) == ([8], reason)
    assert (whole["token_ids"], whole["finish_reason"]) == ([8], reason)
    assert beside.result().json()["token_ids"] == [52, 59, 73, 26]


@pytest.mark.parametrize(
    ("stop", "max_tokens", "text", "reason"),
    [
        (["ijk"], 20, "defgh", "stop"),
        (["ijz"], 10, "defghijklm", "length"),
        (["mz"], 10, "defghijklm", "length"),
    ],
)
def test_str_02_no_part_of_a_stop_string_leaks(
    c20: Served, stop: list[str], max_tokens: int, text: str, reason: str
) -> None:
    body = {"prompt": "abc", "max_tokens": max_tokens, "stop": stop, "temperature": 0}
    (choice,) = c20.post("/v1/completions", body).json()["choices"]
    events = c20.events("/v1/completions", body)
    assert (choice["text"], choice["finish_reason"]) == (text, reason)
    pieces = [event["choices"][0]["text"] for event in events]
    assert "".join(pieces) == text
    assert events[-1]["choices"][0]["finish_reason"] == reason
    if reason == "stop":
        assert not any(letter in piece for piece in pieces for letter in "ij")


@pytest.mark.parametrize("stop", [[""], ""])
def test_str_02_an_empty_stop_string_is_refused(c20: Served, stop: Any) -> None:
    assert_error(c20.post("/v1/completions", {"prompt": "abc", "stop": stop}), 400, "stop")


def test_token_ids_need_no_tokenizer(t0: Served) -> None:
    assert t0.generate(PA, 4).json()["token_ids"] == GREEDY_PA[:4]
    events = t0.events("/generate", {"prompt": PA, "max_new_tokens": 4, "ignore_eos": True})
    assert [token for event in events[:-1] for token in event["token_ids"]] == GREEDY_PA[:4]
    assert "tokenizer" in assert_error(t0.generate("abc", 4), 400, "prompt")
    messages = [{"role": "user", "content": "a"}]
    assert "template" in assert_error(t0.post("/v1/chat/completions", {"messages": messages}), 400, "messages")


def test_logprobs_without_a_tokenizer_name_ids(t0: Served) -> None:
    body = {"prompt": PA, "max_tokens": 1, "ignore_eos": True, "logprobs": 0}
    assert t0.post("/v1/completions", body).json()["choices"][0]["logprobs"]["tokens"] == ["token_id:8"]


def test_a_native_request_has_one_prompt(t0: Served) -> None:
    for prompt in (["a", "b"], [[1], [2]]):
        assert "/v1/completions" in assert_error(t0.generate(prompt, 4), 400, "prompt")


def test_both_names_of_the_limit_are_known_but_not_with_two_values(c20: Served) -> None:
    assert c20.post("/generate", {"prompt": "abc", "max_tokens": 2}).json()["text"] == "de"
    assert c20.post("/generate", {"prompt": "abc", "max_tokens": 2, "max_new_tokens": 2}).json()["text"] == "de"
    differing = {"prompt": "abc", "max_tokens": 3, "max_new_tokens": 2}
    assert_error(c20.post("/generate", differing), 400, "max_new_tokens")
    assert "at least 1" in assert_error(c20.generate("abc", 0), 400, "max_new_tokens")


def test_a_seed_makes_a_sampled_answer_repeatable(t0: Served) -> None:
    def tokens(seed: int) -> list[int]:
        return t0.generate(PA, 12, temperature=1.0, seed=seed).json()["token_ids"]

    assert tokens(0) == tokens(0) != tokens(1)
