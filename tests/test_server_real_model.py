"""The server over the default model and its tokenizer. STR-01, STR-03, STR-04, CON-02."""

import copy
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from shared.model_loader import load_model
from shared.prompt_encoding import encode_chat, encode_text
from shared.registry import newest_phase, phase_by_number
from shared.tiny_models import tiny_llama
from tests.server_helpers import Served, open_server

pytestmark = pytest.mark.real_model

GRINS = "\N{GRINNING FACE}" * 4


@pytest.fixture(scope="module")
def smol(real_model_folder: str) -> Iterator[Served]:
    loaded = load_model(real_model_folder)
    with open_server(newest_phase(), loaded.model, loaded.tokenizer, kv_num_blocks=256, swap_num_blocks=16) as served:
        yield served


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def joined(events: list[Any]) -> str:
    return "".join(event["choices"][0]["delta"].get("content", "") for event in events)


def test_str_01_a_character_of_several_tokens_comes_whole(smol: Served) -> None:
    body = {"messages": user(f"Repeat exactly: {GRINS}"), "temperature": 0, "max_tokens": 24}
    events = smol.events("/v1/chat/completions", body)
    (choice,) = smol.post("/v1/chat/completions", body).json()["choices"]
    assert joined(events) == choice["message"]["content"] == f"Repeat exactly: {GRINS}"
    assert "\ufffd" not in str(events)
    assert events[-1]["choices"][0]["finish_reason"] == choice["finish_reason"] == "stop"


def test_str_01_on_the_native_route(smol: Served, real_reference: Any) -> None:
    prompt = encode_chat(real_reference.tokenizer, user(f"Repeat exactly: {GRINS}"))
    *events, last = smol.events("/generate", {"prompt": prompt, "max_new_tokens": 24})
    assert "".join(event["text"] for event in events) == f"Repeat exactly: {GRINS}"
    expected = [48010, 3869, 42, 15107, 242, 218, 10813, 242, 218, 10813, 242, 218, 10813, 242, 218, 2]
    assert [token for event in events for token in event["token_ids"]] == expected
    assert last["finish_reason"] == "stop"


def test_tokens_that_are_parts_of_characters_have_their_bytes(smol: Served) -> None:
    body = {"messages": user(f"Repeat exactly: {GRINS}"), "max_tokens": 6, "logprobs": True}
    content = smol.post("/v1/chat/completions", body).json()["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content[:3]] == ["Repeat", " exactly", ":"]
    assert content[4]["token"].startswith("bytes:\\x")
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == "Repeat exactly: \N{GRINNING FACE}"


def test_str_03_the_leading_space_stays(smol: Served) -> None:
    body = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 8, "return_token_ids": True}
    (choice,) = smol.post("/v1/completions", body).json()["choices"]
    events = smol.events("/v1/completions", body)
    assert choice["token_ids"] == [7042, 30, 198, 198, 504, 2988, 314, 42]
    assert choice["text"] == "".join(event["choices"][0]["text"] for event in events) == " Paris.\n\nThe answer is:"


def test_str_04_the_template_adds_no_second_bos(smol: Served) -> None:
    answer = smol.post("/v1/chat/completions", {"messages": user("Hi"), "max_tokens": 1}).json()
    assert answer["usage"]["prompt_tokens"] == 31


def test_con_02_one_tokenizer_serves_many_clients(real_reference: Any) -> None:
    tokenizer = real_reference.tokenizer
    model = tiny_llama(vocab_size=len(tokenizer), max_position_embeddings=4096, num_hidden_layers=1).float()
    rng = random.Random(2)

    def job(number: int) -> tuple[str, dict[str, Any], int]:
        """Where to post what, and how many prompt tokens that is."""
        text = "".join(rng.choices("abcdefgh .,\n0123\u00e9", k=rng.randint(1, 2000)))
        keep_last = rng.choice([None, None, 7])
        body = {"max_tokens": 1, "truncate_prompt_tokens": keep_last}
        if number % 2:
            num_tokens = len(encode_chat(tokenizer, user(text)))
            return "/v1/chat/completions", body | {"messages": user(text)}, min(num_tokens, keep_last or num_tokens)
        num_tokens = len(encode_text(tokenizer, text))
        return "/v1/completions", body | {"prompt": text}, min(num_tokens, keep_last or num_tokens)

    jobs = [job(number) for number in range(16 * 50)]
    with open_server(phase_by_number(3), model, copy.deepcopy(tokenizer), queue_capacity=1000) as served:

        def send(job: tuple[str, dict[str, Any], int]) -> tuple[int, int]:
            response = served.post(job[0], job[1])
            return response.status_code, response.json()["usage"]["prompt_tokens"]

        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(send, jobs))
    assert answers == [(200, num_tokens) for _, _, num_tokens in jobs]


def test_tokens_begin_where_the_text_says(smol: Served) -> None:
    text = f"Repeat: {GRINS} \N{GRINNING FACE}"
    body = {"prompt": text, "max_tokens": 3, "echo": True, "logprobs": 0, "stop": ["\n\n\n"]}
    (choice,) = smol.post("/v1/completions", body).json()["choices"]
    found = choice["logprobs"]
    for token, offset in zip(found["tokens"], found["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(token) or token.startswith("bytes:")
    assert len(text) in found["text_offset"]
    chunks = [event["choices"][0]["logprobs"]["text_offset"] for event in smol.events("/v1/completions", body)]
    assert [offset for chunk in chunks for offset in chunk] == found["text_offset"]
