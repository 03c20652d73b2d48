"""What one client can learn of another's prompts: through answers, events, metrics, logs, and the prefix cache.

That a page's own request is shown to its sender alone is in test_live_page.py; that salted keys never meet, and that
salted requests do not wait for each other's blocks, in test_prefix_cache.py and test_prefix_in_flight.py.
"""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shared.registry import newest_phase
from tests.helpers import letter_tokenizer, wait_until, wrap_model_forward
from tests.server_helpers import Served, assert_error, chatting, open_server
from tests.test_live_page import Watching, watching

SECRET = "tsrqponmlkjihgfedcba"  # letters of the tokenizer, a token each
SECRET_IDS = [10 + ord(letter) - ord("a") for letter in SECRET]
SALT = "the salt of tenant a"
GETS = ("/", "/health", "/metrics", "/metrics/summary", "/v1/models", "/openapi.json", "/live/about")
GENERATING = ("/generate", "/v1/completions", "/v1/chat/completions")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Without drafts: how many tokens a step verifies depends on what steps cost. Every test has its own prompt."""
    tokenizer = chatting(letter_tokenizer(vocab_size=97))
    sizes = {"kv_block_size": 4, "kv_num_blocks": 128, "prefill_chunk_size": 8}
    with open_server(newest_phase(), tokenizer=tokenizer, speculative_method="off", **sizes) as served:
        yield served


def body_of(route: str, text: str, **fields: Any) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": text}]} if "chat" in route else {"prompt": text}
    return prompt | {"max_tokens": 12, "ignore_eos": True} | fields


def turned(places: int) -> str:
    """Another prompt: no beginning of the one is a beginning of the other."""
    return SECRET[places:] + SECRET[:places]


def words_of(text: str, ids: list[int]) -> set[str]:
    """How a text may be written down: as it is, backwards, as ids."""
    return {text, text[:12], json.dumps(ids), json.dumps(ids, separators=(",", ":"))[1:-1], repr(tuple(ids))[1:-1]}


# -- what can be read -----------------------------------------------------------------------------------


def test_nobody_else_is_shown_a_prompt_an_answer_or_a_salt(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    words = words_of(SECRET, SECRET_IDS) | {SALT}
    with watching(served) as seen:
        for route in GENERATING:
            fields = {"cache_salt": SALT, "stop": [SECRET[::-1]], "user": SECRET, "logprobs": "chat" in route or 1}
            answer = served.post(route, body_of(route, SECRET, **fields)).json()
            choice = answer if route == "/generate" else answer["choices"][0]
            text = choice.get("text") or choice["message"]["content"]
            assert len(text) > 20
            served.events(route, body_of(route, SECRET, **fields))
            words |= {text, text[:20]}
        assert_error(served.post(GENERATING[1], {"prompt": [5, SECRET]}), 400, "prompt")
        assert_error(served.post(GENERATING[2], {"messages": [{"role": SECRET, "content": SECRET}]}), 400, "messages")
        assert_error(served.post(GENERATING[0], {"prompt": SECRET, "logit_bias": {SECRET: 1}}), 400, "logit_bias")
        seen.wait_for("finished", 6)
        shown = {path: served.http.get(path).text for path in GETS}
    shown |= {"/events": json.dumps(seen.records), "log": caplog.text}
    assert '"reason": "refused: messages"' in shown["log"], "or the log was not read"
    for place, text in shown.items():
        found = [word for word in words if word in text]
        assert not found, f"{place} has {found}"


@pytest.mark.parametrize("route", GENERATING)
def test_a_step_that_fails_over_one_prompt_tells_the_others_and_health_nothing_of_it(
    served: Served, caplog: pytest.LogCaptureFixture, route: str
) -> None:
    """All requests of a step end with it."""
    failing = iter([True])

    def fail() -> None:
        if next(failing, False):
            raise ValueError(f"cannot run {SECRET}")

    wrap_model_forward(served.engine, fail)
    message = assert_error(served.post(route, body_of(route, "abc")), 500, code="engine_error")
    assert "ValueError" in message
    health = served.http.get("/health")
    assert SECRET not in message + health.text
    assert SECRET in caplog.text, "the operator can find out"
    wait_until(lambda: served.http.get("/health").status_code == 200, 5)


# -- what can be measured -------------------------------------------------------------------------------


def metric(served: Served, name: str) -> float:
    families = text_string_to_metric_families(served.http.get("/metrics").text)
    return next(sample.value for family in families for sample in family.samples if sample.name == name)


def measured(served: Served, seen: Watching, route: str, text: str, **fields: Any) -> dict[str, Any]:
    """Everything countable that comes of a request of one's own. Times are left out: they follow the counts."""
    before = {name: metric(served, name) for name in COUNTERS}
    num_finished = len(seen.of_kind("finished"))
    answer = served.post(route, body_of(route, text, max_tokens=2, **fields)).json()
    seen.wait_for("finished", num_finished + 1)
    rows = [row for step in seen.of_kind("step") for row in step["rows"] if row[0] == answer["id"]]
    hits = [record["tokens"] for record in seen.of_kind("prefix_hit") if record["id"] == answer["id"]]
    return {
        "cached_tokens": answer["usage"]["prompt_tokens_details"]["cached_tokens"],
        "prefill": [row[1:4] for row in rows if row[1] == "p"],
        "hits": hits,
        **{name: metric(served, name) - value for name, value in before.items()},
    }


COUNTERS = ("pageserve_num_steps_total", "pageserve_num_prefix_hit_tokens_total")


@pytest.mark.parametrize(("route", "prompt"), [*zip(GENERATING, map(turned, (1, 2, 3)))])
def test_with_a_salt_a_right_guess_measures_as_a_wrong_one_does(served: Served, route: str, prompt: str) -> None:
    with watching(served) as seen:
        served.post(route, body_of(route, prompt, cache_salt=SALT))
        seen.wait_for("finished")
        for salt in ("another salt", None):
            right = measured(served, seen, route, prompt, cache_salt=salt)
            wrong = measured(served, seen, route, prompt[::-1], cache_salt=salt)
            assert right == wrong
            assert (right["cached_tokens"], len(right["prefill"]), right["hits"]) == (0, 3, [0])
        own = measured(served, seen, route, prompt, cache_salt=SALT)
        assert own["cached_tokens"] == 16, "whoever has the salt has the use of the cache"


@pytest.mark.parametrize(("route", "prompt"), [*zip(GENERATING, map(turned, (4, 5, 6)))])
def test_without_a_salt_every_one_of_these_figures_tells(served: Served, route: str, prompt: str) -> None:
    """Or the test above would pass whatever the engine did."""
    with watching(served) as seen:
        served.post(route, body_of(route, prompt))
        seen.wait_for("finished")
        right = measured(served, seen, route, prompt)
        wrong = measured(served, seen, route, prompt[::-1])
        assert all(right[name] != wrong[name] for name in right)


@pytest.mark.parametrize("route", GENERATING)
@pytest.mark.parametrize("salt", ["", 5, ["a"], "\ud800", "x" * 257])
def test_a_salt_that_cannot_be_one_is_refused_before_it_reaches_a_step(served: Served, route: str, salt: Any) -> None:
    """A prompt of several blocks: it would be hashed with the salt, in a step that others share."""
    content = json.dumps(body_of(route, SECRET, cache_salt=salt))
    response = served.http.post(route, content=content, headers={"content-type": "application/json"})
    assert_error(response, 400, "cache_salt")
    served.assert_alive()


def test_a_salt_of_any_language_is_one(served: Served) -> None:
    salt = "ключ \N{SNOWMAN} \x00\n" + "x" * 200
    answers = [served.post("/generate", body_of("/generate", SECRET, cache_salt=salt)).json() for _ in range(2)]
    assert [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers] == [0, 16]
