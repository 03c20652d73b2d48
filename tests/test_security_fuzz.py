"""Bodies that no client sends by accident, to every route that takes one: no 500, no hang, and the engine lives.

Well-typed bodies, right and wrong ones, come from the schema (test_server_schema.py); here are those that a schema
cannot make: JSON that is none, twice-named fields, numbers of 400 digits, half surrogate pairs, other encodings.
"""

import gzip
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.registry import newest_phase
from shared.server.bodies import ChatBody, CompletionBody, GenerateBody, SamplingBody
from shared.server.live_routes import PaceBody, SendBody
from tests.helpers import assert_clean, letter_tokenizer
from tests.server_helpers import Served, assert_error, chatting, open_server
from tests.test_live_page import Watching, watching

BODIES = {  # every route that takes a body -> what it takes
    "/generate": GenerateBody,
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/live/send": SendBody,
    "/live/pace": PaceBody,
}
GOOD = {  # enough for several blocks of the prefix cache, so that what is hashed is hashed
    "prompt": '"abcabcabcabc"',
    "messages": '[{"role":"user","content":"abcabcabcabc"}]',
    "action": '"step"',
}
DEEP = 3000
ODD = [  # values, as they are written in JSON, or are not
    *("null", "true", "0", "-0", "-1", "1.5", "1e-320", "1e308", "1e999", "-1e999", "NaN", "Infinity", "-Infinity"),
    *("9223372036854775808", "-9223372036854775809", "1" + "0" * 400, "1" + "0" * 5000, "0x10", "01", "1_0", "\u0661"),
    *('""', '"a"', '"\\ud800"', '"\\u0000"', '"\\u202e\\u001b[2J\\n"', '"' + "x" * 5000 + '"', '"\u2028"', "'a'", '"a'),
    *("[]", "[null]", "[[]]", '[""]', '["\\ud800"]', "[1,[2]]", '["a",1]', "[" + "5," * 3000 + "5]", "[1e999]", "[0]"),
    *("{}", '{"":1}', '{"5":1}', '{"5":1e999}', '{"\\ud800":1}', '{"__proto__":{}}', '{"type":"text"}', '{"a":{}}'),
    *("[" * DEEP + "]" * DEEP, '{"a":' * 900 + "1" + "}" * 900, "[" * 20_000, "", "undefined", "/*", "1,", "1}"),
    '[{"role":"user","content":null}]',
    '[{"role":["user"],"content":[{"type":"text","text":"\\ud800"}]}]',
    "{" + ",".join(f'"{number}":1' for number in range(96)) + "}",
]
UNKNOWN = ("", "__class__", "model_config", "self", "body", "\\ud800", "x" * 3000, "tools", "response_format", "echo")
FIELDS = sorted({name for body in BODIES.values() for name in body.model_fields})
TYPES = [
    *("application/json", "application/json; charset=utf-16", "application/problem+json", "text/plain", "", "x/y"),
    *("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/json, text/plain"),
]
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-le", "latin-1", "utf-7")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Short sequences, so that nothing takes long, and no seat is ever too few."""
    sizes = {"max_model_len": 24, "kv_block_size": 4, "kv_num_blocks": 64, "queue_capacity": 10_000}
    tokenizer = chatting(letter_tokenizer(vocab_size=97))
    with open_server(newest_phase(), tokenizer=tokenizer, limits={"body_timeout_s": 2.0}, **sizes) as served:
        yield served


@pytest.fixture(scope="module")
def seen(served: Served) -> Iterator[Watching]:
    """Somebody who watches: without one, the live page's routes look at nothing."""
    with ExitStack() as stack:
        yield stack.enter_context(watching(served))


def written(route: str, seen: Watching, changes: list[tuple[str, str]]) -> str:
    """A right body in which fields are replaced by, or come before, these literals."""
    body = BODIES[route].model_fields
    good = {name: value for name, value in GOOD.items() if name in body}
    good |= {"max_tokens": "2"} if "max_tokens" in body else {}
    good |= {"watcher": f'"{seen.watcher_id}"'} if "watcher" in body else {}
    kept = [(name, value) for name, value in good.items() if name not in {change[0] for change in changes[:1]}]
    return "{" + ",".join(f'"{name}":{value}' for name, value in [*kept, *changes]) + "}"


def post(served: Served, route: str, content: bytes, kind: str = "application/json", **headers: str) -> int:
    """The status of an answer that came in time, and has OpenAI's shape where it is an error."""
    all_headers = {"content-type": kind.encode(), **{name.replace("_", "-"): value for name, value in headers.items()}}
    response = served.http.post(route, content=content, headers=all_headers, timeout=5)
    if response.status_code != 200:
        assert_error(response, response.status_code)
        assert response.status_code < 500, response.text
        assert len(response.content) < 2000, "an error repeats no more than a little of what was sent"
    assert '"engine_error"' not in response.text, "a stream broke"
    return response.status_code


def assert_unharmed(served: Served, seen: Watching) -> None:
    """No step has failed, nobody has left the engine paused, nothing is left, and it serves."""
    assert seen.pace(is_paused=False, seconds_per_step=0.0).status_code == 200
    assert served.engine.stats().requests_finished.get("error", 0) == 0
    served.assert_alive()
    assert_clean(served.engine)
    assert not seen.is_over


def test_the_list_of_bodies_is_complete(served: Served) -> None:
    taking = {route.path for route in routes(served.app) if route.methods - {"GET", "HEAD"}}
    assert taking == set(BODIES)


def routes(router: Any) -> Iterator[Any]:
    """Those of included routers, too, however FastAPI keeps them."""
    for route in router.routes:
        inner = getattr(route, "original_router", None)
        yield from routes(inner) if inner is not None else [route]


@pytest.mark.parametrize("route", BODIES)
def test_every_field_with_every_odd_value(served: Served, seen: Watching, route: str) -> None:
    """Of the fields that all generating routes share, one route will do."""
    shared_fields = SamplingBody.model_fields if route.startswith("/v1/") else {}
    names = [name for name in BODIES[route].model_fields if name not in shared_fields]
    statuses = {post(served, route, written(route, seen, [(name, v)]).encode()) for name in names for v in ODD}
    statuses |= {post(served, route, written(route, seen, [(name, "1")]).encode()) for name in UNKNOWN}
    statuses |= {post(served, route, value.encode()) for value in ODD}
    assert {200, 400} <= statuses <= {200, 400, 404, 409}
    assert_unharmed(served, seen)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[list[tuple[str, str]], Any]:
    """Several fields at once, some of them twice; and how the text becomes bytes."""
    values = st.one_of(
        st.sampled_from(ODD), st.integers().map(str), st.floats().map(json.dumps), st.text().map(json.dumps)
    )
    names = st.one_of(st.sampled_from(FIELDS), st.sampled_from(UNKNOWN))
    changes = draw(st.lists(st.tuples(names, values), max_size=4))
    cut = draw(st.one_of(st.none(), st.integers(0, 200)))
    flip = draw(st.one_of(st.none(), st.tuples(st.integers(0, 200), st.binary(max_size=3))))
    encoding = draw(st.sampled_from(ENCODINGS))

    def encode(text: str) -> bytes:
        content = text.encode(encoding, errors="replace")[:cut]
        return content if flip is None else content[: flip[0]] + flip[1] + content[flip[0] + 1 :]

    return changes, encode


@pytest.mark.parametrize("route", BODIES)
def test_broken_bodies_of_all_kinds(served: Served, seen: Watching, route: str) -> None:
    @settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(body=bodies(), kind=st.sampled_from(TYPES), is_json=st.booleans())
    def send(body: Any, kind: str, is_json: bool) -> None:
        changes, encode = body
        post(served, route, encode(written(route, seen, changes)), "application/json" if is_json else kind)

    send()
    assert_unharmed(served, seen)


@pytest.mark.parametrize("route", BODIES)
def test_what_is_compressed_is_not_unpacked(served: Served, seen: Watching, route: str) -> None:
    content = written(route, seen, []).encode()
    for encoding, sent in (
        ("gzip", gzip.compress(content)),
        ("br", content),
        ("GZIP, identity", content),
        ("", content),
    ):
        assert post(served, route, sent, content_encoding=encoding) == 415
    assert post(served, route, content, content_encoding="identity") == 200
    assert_unharmed(served, seen)
