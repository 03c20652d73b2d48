"""The OpenAI routes, through the real `openai` client where it can say what is asked, else by hand."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import WordLevel
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from shared.registry import PHASES, Phase, newest_phase
from shared.server import prompt_input
from tests.helpers import PA, PB, T0_OUTPUTS, cyclic_model, letter_tokenizer
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

LETTER_LOGPROB = -0.0209  # of the next letter in C20: 1 against 63 zeros


@pytest.fixture(scope="module", params=both_kinds, ids=both_ids)
def c20(request: pytest.FixtureRequest) -> Iterator[Served]:
    with open_server(request.param, cyclic_model(), chatting(letter_tokenizer())) as served:
        yield served


@pytest.fixture(scope="module")
def t0() -> Iterator[Served]:
    with open_server(newest_phase(), kv_block_size=4) as served:
        yield served


@pytest.fixture
def client(c20: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{c20.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def user(content: Any) -> list[Any]:
    return [{"role": "user", "content": content}]


# -- with the client ----------------------------------------------------------------------------------


def test_a_completion(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="abc", max_tokens=5, temperature=0)
    assert (answer.object, answer.model, answer.choices[0].text) == ("text_completion", MODEL, "defgh")
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 5, 8)


def test_a_completion_has_sixteen_tokens_where_nothing_is_said(client: OpenAI) -> None:
    assert len(client.completions.create(model=MODEL, prompt="abc").choices[0].text) == 16


def test_a_streamed_completion_with_usage(client: OpenAI) -> None:
    stream = client.completions.create(
        model=MODEL, prompt="abc", max_tokens=4, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "defg"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "length"]
    assert all(chunk.usage is None and chunk.id == last.id for chunk in chunks)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 4


def test_several_prompts_of_both_kinds_with_several_choices(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["abc", "de"], n=2, max_tokens=2)
    assert [choice.text for choice in answer.choices] == ["de", "de", "fg", "fg"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 8)
    answer = client.completions.create(model=MODEL, prompt=[[10, 11], [13]], max_tokens=2)
    assert [choice.text for choice in answer.choices] == ["cd", "ef"]
    assert client.completions.create(model=MODEL, prompt=[10, 11], max_tokens=2).choices[0].text == "cd"


def test_several_prompts_share_a_stream(client: OpenAI) -> None:
    texts = ["", ""]
    for chunk in client.completions.create(model=MODEL, prompt=["abc", "de"], max_tokens=3, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == ["def", "fgh"]


def test_echo_with_logprobs_covers_the_prompt(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="abc", max_tokens=2, echo=True, logprobs=1)
    (choice,) = answer.choices
    assert choice.text == "abcde"
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == list("abcde")
    assert choice.logprobs.text_offset == [0, 1, 2, 3, 4]
    assert choice.logprobs.token_logprobs == [None, *[pytest.approx(LETTER_LOGPROB, abs=1e-3)] * 4]
    assert choice.logprobs.top_logprobs is not None
    assert choice.logprobs.top_logprobs[1] == {"b": pytest.approx(LETTER_LOGPROB, abs=1e-3)}


def test_echo_in_a_stream_comes_first(client: OpenAI) -> None:
    chunks = list(
        client.completions.create(model=MODEL, prompt="abc", max_tokens=2, echo=True, logprobs=0, stream=True)
    )
    assert [chunk.choices[0].text for chunk in chunks] == ["abcd", "e"]
    offsets = [chunk.choices[0].logprobs.text_offset for chunk in chunks if chunk.choices[0].logprobs]
    assert offsets == [[0, 1, 2, 3], [4]]


def test_a_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=user("abc"), max_completion_tokens=4)
    assert (answer.object, answer.choices[0].message.role) == ("chat.completion", "assistant")
    assert answer.choices[0].message.content == "defg"
    assert answer.choices[0].finish_reason == "length"


def test_a_streamed_chat_says_its_role_once(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=user("abc"), max_tokens=3, n=2, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    for index in (0, 1):
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices[0].index == index]
        assert [delta.role for delta in deltas] == ["assistant", None, None]
        assert "".join(delta.content or "" for delta in deltas) == "def"
    assert last.usage is not None
    assert last.usage.completion_tokens == 6


def test_chat_content_may_be_a_list_of_parts_and_fields_may_be_ignored(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=user([{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]),
        max_tokens=2,
        user="somebody",
        metadata={"a": "b"},
        store=True,
    )
    assert answer.choices[0].message.content == "de"


def test_chat_logprobs_have_the_bytes_of_each_token(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=user("abc"), max_tokens=2, logprobs=True, top_logprobs=2
    )
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    first = answer.choices[0].logprobs.content[0]
    assert (first.token, first.bytes, len(first.top_logprobs)) == ("d", [100], 2)
    assert first.logprob == pytest.approx(LETTER_LOGPROB, abs=1e-3)
    assert first.top_logprobs[0].token == "d"


def test_penalties_bias_seed_and_stop_reach_the_engine(client: OpenAI) -> None:
    def text(**fields: Any) -> str:
        return client.completions.create(model=MODEL, prompt="abc", max_tokens=4, **fields).choices[0].text

    assert text(logit_bias={"29": 9}) == "tttt"
    assert text(stop=["f"]) == "de"
    assert text(extra_body={"stop_token_ids": [15]}) == "de"
    assert text(temperature=1, seed=7) == text(temperature=1, seed=7)
    assert text(temperature=1, extra_body={"top_k": 1}) == "defg"
    assert text(presence_penalty=2, logit_bias={"29": 9}) == "tabc"


def test_the_model_is_listed(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another/one")


def test_http_04_an_unknown_model_is_not_answered_by_another(client: OpenAI, c20: Served) -> None:
    before = c20.engine.stats().num_steps
    for model in ("no-such-model-xyz", ""):
        for stream in (False, True):
            with pytest.raises(openai.NotFoundError) as refused:
                client.completions.create(model=model, prompt="abc", stream=stream)
            assert refused.value.code == "model_not_found"
            assert "text/event-stream" not in refused.value.response.headers["content-type"]
            with pytest.raises(openai.NotFoundError):
                client.chat.completions.create(model=model, messages=user("abc"), stream=stream)
    assert c20.engine.stats().num_steps == before


def test_http_03_the_clients_exceptions_carry_the_message(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt="abc", temperature=-1)
    assert isinstance(refused.value.body, dict)
    assert refused.value.body["message"] == "temperature: must be at least 0.0, got -1.0"
    assert refused.value.param == "temperature"


# -- by hand ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("suffix", "x"),
        ("best_of", 3),
        ("tools", [{"type": "function"}]),
        ("response_format", {"type": "json_object"}),
        ("guided_json", {}),
        ("temprature", 1),
        ("prompt_logprobs", 1),  # the engine's own words, which clients know by others
        ("prompt_token_ids", [1]),
    ],
)
def test_a_field_that_is_not_offered_is_refused_by_name(c20: Served, field: str, value: Any) -> None:
    for response in (
        c20.post("/v1/completions", {"prompt": "abc", field: value}),
        c20.post("/v1/chat/completions", {"messages": user("abc"), field: value}),
        c20.generate("abc", 1, **{field: value}),
    ):
        assert assert_error(response, 400, field) == f"{field}: is not offered by this server; leave it out"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("suffix", None), ("best_of", 1), ("tools", []), ("response_format", {"type": "text"})],
        *[("service_tier", "auto"), ("echo", False), ("return_token_ids", False), ("length_penalty", 1.0)],
        *[("skip_special_tokens", True), ("include_stop_str_in_output", False), ("early_stopping", False)],
        *[("add_generation_prompt", True), ("continue_final_message", False)],
    ],
)
def test_a_field_that_asks_for_nothing_is_accepted(c20: Served, field: str, value: Any) -> None:
    for route, body in (("completions", {"prompt": "abc"}), ("chat/completions", {"messages": user("abc")})):
        assert c20.post(f"/v1/{route}", body | {"max_tokens": 1, field: value}).status_code == 200


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user"},
        {"role": "user", "content": None},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "tool", "content": "abc"},
        {"role": ["user"], "content": "abc"},
        {"role": "user", "content": "\ud83d"},
        {"role": "assistant", "content": "abc", "tool_calls": [{"id": "1"}]},
        "abc",
    ],
)
def test_a_message_that_cannot_be_shown_to_the_model_is_refused(c20: Served, message: Any) -> None:
    response = c20.http.post(
        "/v1/chat/completions",
        content=json.dumps({"messages": [message]}),
        headers={"content-type": "application/json"},
    )
    assert "messages[0]" in assert_error(response, 400, "messages") or "surrogate" in response.text


def test_a_messages_neutral_extras_are_no_reason_to_refuse_it(c20: Served) -> None:
    message = {"role": "assistant", "content": "abc", "refusal": None, "tool_calls": [], "name": "x"}
    response = c20.post("/v1/chat/completions", {"messages": [message], "max_tokens": 1})
    assert response.json()["choices"][0]["message"]["content"] == "d"


def test_usage_on_every_chunk_where_that_is_asked_for(c20: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = c20.events("/v1/completions", {"prompt": "abc", "max_tokens": 3, "stream_options": options})
    assert [event["usage"]["completion_tokens"] for event in events] == [1, 2, 3, 3]
    assert_error(c20.post("/v1/completions", {"prompt": "abc", "stream_options": options}), 400, "stream_options")


def test_cached_tokens_are_told_from_the_first_chunk_on() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": [PA, PB], "n": 2, "max_tokens": 3, "ignore_eos": True, "stream_options": options}
    with open_server(newest_phase(), kv_block_size=4) as served:
        served.post("/v1/completions", {"prompt": PA, "max_tokens": 1})
        usages = [event["usage"]["prompt_tokens_details"] for event in served.events("/v1/completions", body)]
        whole = served.post("/v1/completions", {"prompt": PA, "max_tokens": 1}).json()["usage"]
    assert usages == [{"cached_tokens": 4}] * 13
    assert whole["prompt_tokens_details"] == {"cached_tokens": 4}


@pytest.mark.parametrize("phase", [both_kinds[0], *(p for p in PHASES if p.has_pool)], ids=lambda p: p.package[:7])
def test_a_prompt_over_the_length_has_the_code_that_clients_test_for(phase: Phase) -> None:
    settings = {"kv_block_size": 4, "kv_num_blocks": 4} if phase.has_pool else {"max_model_len": 17}
    with open_server(phase, tokenizer=chatting(letter_tokenizer(vocab_size=97)), **settings) as served:
        for stream in (False, True):
            body = {"max_tokens": 1, "stream": stream}
            for prompt in ("a" * 17, ["abc", "a" * 17]):
                response = served.post("/v1/completions", body | {"prompt": prompt})
                assert_error(response, 400, "prompt", "context_length_exceeded")
            response = served.post("/v1/chat/completions", body | {"messages": user("a" * 17)})
            assert_error(response, 400, "messages", "context_length_exceeded")
            assert_error(
                served.post("/generate", body | {"prompt": [5] * 17}), 400, "prompt", "context_length_exceeded"
            )
        assert served.post("/generate", {"prompt": [5], "temperature": -1}).json()["error"]["code"] is None


def test_token_ids_come_back_where_that_is_asked_for(c20: Served) -> None:
    body = {"prompt": "abc", "max_tokens": 2, "return_token_ids": True}
    (choice,) = c20.post("/v1/completions", body).json()["choices"]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([10, 11, 12], [13, 14])
    pieces = [event["choices"][0] for event in c20.events("/v1/completions", body)]
    assert [piece["token_ids"] for piece in pieces] == [[13], [14]]
    body = {"messages": user("abc"), "max_tokens": 2, "return_token_ids": True}
    (choice,) = c20.post("/v1/chat/completions", body).json()["choices"]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([10, 11, 12], [13, 14])
    pieces = [event["choices"][0] for event in c20.events("/v1/chat/completions", body)]
    assert [piece["token_ids"] for piece in pieces] == [[13], [14]]
    assert [piece.get("prompt_token_ids") for piece in pieces] == [[10, 11, 12], None]


def test_a_prompt_may_be_cut_to_its_last_tokens(c20: Served) -> None:
    body = {"prompt": "abcdef", "max_tokens": 1, "truncate_prompt_tokens": 2, "echo": True}
    answer = c20.post("/v1/completions", body).json()
    assert answer["usage"]["prompt_tokens"] == 2
    assert answer["choices"][0]["text"] == "efg"
    assert_error(c20.post("/v1/completions", body | {"truncate_prompt_tokens": 0}), 400, "truncate_prompt_tokens")


def test_one_request_may_ask_for_so_many_completions_and_no_more(c20: Served) -> None:
    response = c20.post("/v1/completions", {"prompt": ["a"] * 65, "n": 2, "max_tokens": 1})
    assert "130 completions" in assert_error(response, 400, "prompt")


@pytest.mark.parametrize("one", ["a", [10]], ids=["texts", "ids"])
def test_prompts_are_counted_before_any_is_tokenized(c20: Served, monkeypatch: pytest.MonkeyPatch, one: Any) -> None:
    """The tokenizer's thread is everybody's: a request that is refused anyway may not hold it."""
    encoded: list[Any] = []
    monkeypatch.setattr(prompt_input, "_encode_one", lambda _, prompt: encoded.append(prompt))
    for num_prompts, n in ((129, 1), (65, 2), (100_000, 1)):
        response = c20.post("/v1/completions", {"prompt": [one] * num_prompts, "n": n})
        assert "one request may ask for 128" in assert_error(response, 400, "prompt")
    assert encoded == []


# -- lengths that no client named ---------------------------------------------------------------------


@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase.has_pool], ids=lambda phase: phase.package[:7])
def test_a_default_length_is_what_there_is_room_for(phase: Phase) -> None:
    """The client of a small server must not be told that a field is wrong which it never sent."""
    with open_server(phase, tokenizer=chatting(letter_tokenizer(97)), kv_block_size=4, kv_num_blocks=4) as served:
        body = {"messages": user("abc"), "ignore_eos": True}
        assert served.post("/v1/chat/completions", body).json()["usage"]["total_tokens"] == 17  # the last is never run
        assert served.post("/v1/chat/completions", body | {"stream": True}).status_code == 200
        for name, value in (("prompt", PA), ("prompt", "abc")):
            usage = served.post("/v1/completions", {name: value, "ignore_eos": True}).json()["usage"]
            assert usage["total_tokens"] == 17
        assert len(served.post("/generate", {"prompt": PA, "ignore_eos": True}).json()["token_ids"]) == 17 - len(PA)
        assert_error(served.post("/v1/chat/completions", {"messages": user("abc" * 6)}), 400, "messages")
        named = served.post("/v1/completions", {"prompt": PA, "max_tokens": 16})
        if phase.number < 9:  # who reserves all must refuse what was asked for and cannot be had
            assert_error(named, 400, "max_tokens")


@pytest.mark.parametrize("phase", both_kinds, ids=both_ids)
def test_a_default_length_ends_at_the_models(phase: Phase) -> None:
    tokenizer = chatting(letter_tokenizer(97))
    with open_server(phase, tokenizer=tokenizer, max_model_len=20) as served:
        answer = served.post("/v1/chat/completions", {"messages": user("abc"), "ignore_eos": True}).json()
        assert (answer["usage"]["total_tokens"], answer["choices"][0]["finish_reason"]) == (20, "length")
        floor = {"prompt": "abc", "ignore_eos": True, "min_tokens": 16}
        assert served.post("/v1/completions", floor).json()["usage"]["completion_tokens"] == 16


def test_str_04_a_chat_has_one_bos() -> None:
    tokenizer = letter_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<1> $A", special_tokens=[("<1>", 1)])
    chatting(tokenizer, "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}")
    with open_server(newest_phase(), cyclic_model(), tokenizer) as served:
        chat = served.post("/v1/chat/completions", {"messages": user("abc"), "max_tokens": 1}).json()
        plain = served.post("/v1/completions", {"prompt": "abc", "max_tokens": 1, "return_token_ids": True}).json()
    assert chat["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"] == 4
    assert plain["choices"][0]["prompt_token_ids"] == [1, 10, 11, 12]


# -- where tokens begin -------------------------------------------------------------------------------


def logprobs_both_ways(served: Served, **fields: Any) -> tuple[list[str], list[dict[str, Any]]]:
    """(text, logprobs) of each choice. Streamed and put together they are the same."""
    body = {"max_tokens": 10, "logprobs": 1, "ignore_eos": True} | fields
    whole = served.post("/v1/completions", body).json()["choices"]
    joined: list[dict[str, Any]] = [{"text": "", **{name: [] for name in choice["logprobs"]}} for choice in whole]
    for (piece,) in (event["choices"] for event in served.events("/v1/completions", body)):
        for name, values in {"text": piece["text"], **piece["logprobs"]}.items():
            joined[piece["index"]][name] += values
    assert joined == [{"text": choice["text"], **choice["logprobs"]} for choice in whole]
    return [choice["text"] for choice in whole], [choice["logprobs"] for choice in whole]


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize(("stop", "num_tokens"), [([], 10), (["ijz"], 10), (["ijk"], 8), (["mz", "efghz"], 10)])
def test_a_stop_string_moves_no_token(c20: Served, stop: list[str], num_tokens: int, echo: bool) -> None:
    texts, logprobs = logprobs_both_ways(c20, prompt=["abc", "bc"], n=2, stop=stop, echo=echo)
    for text, found, num_echoed in zip(texts, logprobs, [3, 3, 2, 2]):
        num_all = num_tokens + num_echoed * echo
        assert found["text_offset"] == list(range(num_all))
        assert text == "".join(found["tokens"])[: len(text)]
        assert len(text) == num_all - 3 * (stop == ["ijk"])


def test_a_special_token_takes_room_only_where_it_can_be_read() -> None:
    tokenizer = letter_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<1> $A", special_tokens=[("<1>", 1)])
    with open_server(newest_phase(), cyclic_model(), tokenizer) as served:

        def found(**fields: Any) -> tuple[str, list[str], list[int]]:
            (text,), (logprobs,) = logprobs_both_ways(served, max_tokens=3, **fields)
            return text, logprobs["tokens"], logprobs["text_offset"]

        echo: dict[str, Any] = {"echo": True}
        assert found(prompt="ab", **echo) == ("abcde", ["<1>", *"abcde"], [0, 0, 1, 2, 3, 4])
        assert found(prompt=[1, 10], **echo) == ("<1>abcd", ["<1>", *"abcd"], [0, 3, 4, 5, 6])
        generated: dict[str, Any] = {"logit_bias": {"1": 9}, "presence_penalty": 2}  # <1> once, and then the letters
        assert found(prompt="j", **generated) == ("ab", ["<1>", "a", "b"], [0, 0, 1])
        assert found(prompt="j", **generated, **echo) == ("jab", ["<1>", "j", "<1>", "a", "b"], [0, 0, 1, 1, 2])


def test_a_character_of_several_tokens_counts_once() -> None:
    pieces = [*(f"<{number}>" for number in range(10)), "ðŁĺ", "Ģ", "ĠĠðŁ", "ĺĢx"]
    tokenizer = Tokenizer(WordLevel({piece: number for number, piece in enumerate(pieces)}, unk_token="<3>"))
    tokenizer.decoder = ByteLevel()
    with open_server(newest_phase(), cyclic_model(4), PreTrainedTokenizerFast(tokenizer_object=tokenizer)) as served:
        (text,), (logprobs,) = logprobs_both_ways(served, prompt=[10, 11], echo=True, max_tokens=8)
        assert text == "😀  😀x😀  😀x😀"
        assert logprobs["text_offset"] == [0, 0, 1, 3, 5, 5, 6, 8, 10, 10]
        (text,), (logprobs,) = logprobs_both_ways(served, prompt=[13], max_tokens=6, stop=["x😀 🙂"])
        assert (text, logprobs["text_offset"]) == ("😀  😀x😀", [0, 0, 1, 3, 5, 5])


def test_pfx_05_prompt_logprobs_of_a_prompt_seen_before(t0: Served) -> None:
    expected = [None, -8.72634, -4.04783, -4.79558, -2.57545, -8.58013, -5.72428, -6.05516, -0.60923]
    body = {"prompt": PA, "max_tokens": 1, "temperature": 0}
    for fields in ({"echo": True, "logprobs": 1}, {}, {"echo": True, "logprobs": 1}):
        (choice,) = t0.post("/v1/completions", body | fields).json()["choices"]
        if fields:
            found = choice["logprobs"]["token_logprobs"]
            assert found == [None, *(pytest.approx(value, abs=1e-3) for value in expected[1:])]


def test_prompt_logprobs_do_not_depend_on_the_chunks(phase: Phase) -> None:
    body = {"prompt": PA, "max_tokens": 1, "echo": True, "logprobs": 2}
    with open_server(phase) as served, open_server(phase, prefill_chunk_size=3) as chunked:
        whole = served.post("/v1/completions", body).json()["choices"][0]["logprobs"]
        parts = chunked.post("/v1/completions", body).json()["choices"][0]["logprobs"]
    assert whole["tokens"] == parts["tokens"]
    assert parts["token_logprobs"][1:] == pytest.approx(whole["token_logprobs"][1:])


def test_smp_06_every_logprob_is_a_number_that_json_knows(t0: Served) -> None:
    body = {"prompt": PA, "max_tokens": 3, "temperature": 1, "top_k": 1, "seed": 1, "logprobs": 5}
    (whole,) = strict_json(t0.post("/v1/completions", body).text)["choices"]
    events = t0.events("/v1/completions", body)
    pieces = [event["choices"][0]["logprobs"] for event in events]
    assert whole["logprobs"]["token_logprobs"] == [value for piece in pieces for value in piece["token_logprobs"]]
    assert all(isinstance(value, float) for value in whole["logprobs"]["token_logprobs"])
    assert all(5 <= len(top) <= 6 for top in whole["logprobs"]["top_logprobs"])


def test_smp_02_a_top_p_of_zero_is_a_value(t0: Served) -> None:
    def answer(**fields: Any) -> Any:
        body = {"prompt": PA, "temperature": 1.0, "seed": 3, "max_tokens": 8, "return_token_ids": True}
        return t0.post("/v1/completions", body | {"ignore_eos": True} | fields)

    def tokens(**fields: Any) -> list[int]:
        return answer(**fields).json()["choices"][0]["token_ids"]

    greedy = T0_OUTPUTS["PA"][:8]
    assert tokens(top_p=0.0) == tokens(top_p=1e-9) == tokens(temperature=0) == greedy
    assert tokens(top_p=1.0) == tokens() == tokens(top_p=None) != greedy
    assert tokens(seed=0) == tokens(seed=0)
    for top_p in (1.5, -0.1):
        assert_error(answer(top_p=top_p), 400, "top_p")
    not_a_number = t0.http.post(
        "/v1/completions",
        content='{"prompt": [5], "top_p": NaN}',
        headers={"content-type": "application/json"},
    )
    assert_error(not_a_number, 400, "top_p")
