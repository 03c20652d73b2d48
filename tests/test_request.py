"""What a request may be: every field is checked once, and the error names it."""

import math
from typing import Any

import pytest

from shared.errors import InvalidRequest
from shared.request import Request, SamplingParams

HUGE = 10**5000  # no float, and Python does not write it out


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("max_tokens", [0, -1, 1.5, "10", True, None]),
        ("temperature", [-1, -0.1, math.nan, math.inf, "hot", None, True, HUGE, -HUGE]),
        ("top_p", [1.5, -0.1, math.nan, "1", None, HUGE]),
        ("top_k", [-5, -2, 1.0, None]),
        ("min_p", [-0.1, 1.1, math.nan]),
        ("seed", [1.5, "1", True, 2**70, HUGE]),
        ("repetition_penalty", [0, -1, math.nan]),
        ("presence_penalty", [-2.1, 2.1, math.inf]),
        ("frequency_penalty", [-2.1, 2.1, HUGE]),
        ("logit_bias", [[1], {"a": 1}, {-1: 1}, {1: 101}, {1: math.nan}, {1: HUGE}]),
        ("min_tokens", [-1, 17, 1.5]),
        ("stop", ["", [""], ["a", 1], ["x"] * 17, ["x" * 257], 0, 5, True, False, 1.5, {"a": 1}, {}, {"a"}, b"a"]),
        ("stop_token_ids", [[-1], ["a"], 3, [True], {5: 1}, [-HUGE]]),
        ("ignore_eos", [1, None, "yes"]),
        ("logprobs", [-1, 21, True, 1.0]),
        ("n", [0, -1, 65, 1.0, None]),
    ],
)
def test_a_field_that_cannot_be_is_refused_by_name(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidRequest) as refused:
            SamplingParams(**{field: value})
        assert refused.value.param == field, value
        assert str(refused.value).startswith(f"{field}: ")
        assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [0, 0.0, 1e-40, 2, 100.0]),
        ("top_p", [0.0, 1e-9, 1, 1.0]),
        ("top_k", [-1, 0, 1, 9999999]),
        ("seed", [None, 0, -5, 2**63]),
        ("stop", ["x", ("x", "y"), ["x"], (), None]),
        ("logit_bias", [None, {}, {3: -100}]),
        ("logprobs", [None, 0, 20]),
    ],
)
def test_every_sensible_value_is_taken_zero_included(field: str, values: list[Any]) -> None:
    for value in values:
        SamplingParams(**{field: value})


def test_a_single_stop_string_is_one_and_not_its_letters() -> None:
    assert SamplingParams(stop="ab").stop == ("ab",)


@pytest.mark.parametrize("prompt", [[], "abc", 5, [1.5], [True], [-1], [None], {5: 1}, [-HUGE]])
def test_a_prompt_is_a_non_empty_list_of_ids(prompt: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Request(prompt)
    assert refused.value.param == "prompt_token_ids"


def test_a_request_keeps_its_own_copy() -> None:
    prompt, bias = [5, 6], {3: 1.0}
    request = Request(prompt, SamplingParams(logit_bias=bias))
    prompt.append(7)
    bias[3] = 9.0
    assert request.prompt_token_ids == (5, 6)
    assert request.params.logit_bias == {3: 1.0}


@pytest.mark.parametrize(("field", "value"), [("request_id", ""), ("request_id", 3), ("cache_salt", "")])
def test_names_are_non_empty_strings_or_nothing(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Request([5], **{field: value})
    assert refused.value.param == field
