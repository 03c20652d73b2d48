"""The OpenAPI schema against the server: generated requests, right and wrong ones, and no 500 for any of them."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from shared.registry import newest_phase
from shared.server.live_routes import live_routes
from tests.helpers import letter_tokenizer
from tests.server_helpers import Served, chatting, open_server

POSTS = ["POST /generate", "POST /v1/completions", "POST /v1/chat/completions"]
PROMPTS = [{"prompt": "abc"}, {"prompt": ["abc", "d"]}, {"messages": [{"role": "user", "content": "abc"}]}]
LIVE = ["GET /events", "GET /live/about", "POST /live/send", "POST /live/pace"]  # the page's own, not in the schema
GETS = ["GET /", "GET /health", "GET /metrics", "GET /metrics/summary", "GET /v1/models", "GET /v1/models/{model}"]
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Short sequences, so that no example takes long."""
    with open_server(newest_phase(), tokenizer=chatting(letter_tokenizer(vocab_size=97)), max_model_len=24) as served:
        yield served


@pytest.fixture(scope="module")
def api(served: Served) -> Any:
    return schemathesis.openapi.from_url(f"{served.url}/openapi.json")


def validate(api: Any, label: str, mode: GenerationMode, checks: Any = CHECKS, **changes: Any) -> set[int]:
    """Send generated requests, with these changes in their bodies; the statuses that came back."""
    operation = next(found.ok() for found in api.get_all_operations() if found.ok().label == label)
    statuses: set[int] = set()

    @settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        if isinstance(case.body, dict):
            case.body |= changes
        statuses.add(case.call_and_validate(checks=checks).status_code)

    send()
    return statuses


def modes_of(label: str) -> list[GenerationMode]:
    """What takes nothing cannot be given anything wrong."""
    return [GenerationMode.POSITIVE, *([GenerationMode.NEGATIVE] if label.startswith("POST") else [])]


@pytest.fixture(scope="module")
def page_api(served: Served) -> Any:
    """A schema of the live page's routes, as FastAPI would write it."""
    service = served.app.state.service
    app = FastAPI()
    for route in live_routes(service).routes:
        assert isinstance(route, APIRoute)
        route.include_in_schema = True
        app.router.routes.append(route)
    schema = schemathesis.openapi.from_dict(app.openapi())
    schema.config.update(base_url=served.url)
    return schema


@pytest.mark.parametrize("label", [*POSTS, *GETS])
def test_what_the_schema_allows_gets_the_answers_that_it_promises(api: Any, label: str) -> None:
    statuses = validate(api, label, GenerationMode.POSITIVE)
    assert max(statuses) < 500


@pytest.mark.parametrize(("label", "prompt"), [*zip(POSTS, PROMPTS)])
def test_fields_are_served_in_any_combination(api: Any, label: str, prompt: dict[str, Any]) -> None:
    quiet = dict.fromkeys(("model", "stream_options", "stop_token_ids", "logit_bias", "top_logprobs", "min_tokens"))
    statuses = validate(api, label, GenerationMode.POSITIVE, **prompt, **quiet)
    assert 200 in statuses
    assert max(statuses) < 500


@pytest.mark.parametrize(("label", "mode"), [(label, mode) for label in LIVE for mode in modes_of(label)])
def test_the_pages_own_routes_have_no_500_either(page_api: Any, label: str, mode: GenerationMode) -> None:
    """Nobody watches, and so nobody may send or pause: 409. Who does is in test_security_fuzz.py."""
    statuses = validate(page_api, label, mode, checks=[not_a_server_error])
    assert statuses <= ({406} if label == "GET /events" else {200, 400, 409})


@pytest.mark.parametrize("label", POSTS)
def test_what_the_schema_forbids_is_refused(api: Any, label: str) -> None:
    assert max(validate(api, label, GenerationMode.NEGATIVE)) < 500


def test_the_list_of_routes_is_complete_and_no_route_promises_a_422(api: Any) -> None:
    operations = [found.ok() for found in api.get_all_operations()]
    assert {operation.label for operation in operations} == {*POSTS, *GETS}
    assert not [operation.label for operation in operations if "422" in operation.definition.raw["responses"]]
