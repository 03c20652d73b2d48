"""Log-probabilities of sampled tokens and of prompts."""

import math

import pytest
import torch

from shared.tiny_models import tiny_llama
from shared.token_logprobs import LEAST_LOGPROB, MAX_ROWS, prompt_logprobs, token_logprobs
from tests.helpers import PA
from tests.sampling import GREEDY_PA, VOCAB, random_logits


def test_smp_06_impossible_alternatives_are_left_out_and_a_taken_one_stays_finite():
    logits = torch.tensor([[0.0, -torch.inf, 1.0, -torch.inf]])
    possible, impossible = token_logprobs(logits.repeat(2, 1), [2, 1], [4, 4])
    assert list(possible.top) == list(impossible.top) == [2, 0]
    assert possible.logprob == pytest.approx(possible.top[2]) == pytest.approx(-math.log1p(math.exp(-1)))
    assert impossible.logprob == LEAST_LOGPROB


def test_of_equal_alternatives_the_lower_id_comes_first_however_many_are_asked_for():
    logits = torch.zeros(3, 12, dtype=torch.bfloat16)
    logits[:, [9, 3, 6]] = 1.0
    for entry, num_top in zip(token_logprobs(logits, [3, 3, 3], [1, 2, 5]), (1, 2, 5)):
        assert list(entry.top) == [3, 6, 9, 0, 1][:num_top]


@pytest.mark.parametrize("num_top", [1, 5, 20])
def test_of_more_equals_than_are_asked_for_the_lowest_ids_are_reported(num_top):
    logits = torch.zeros(3, VOCAB)
    logits[1:, 40] = 1.0
    logits[2, :50] = -torch.inf
    entries = token_logprobs(logits, [3, 3, 3], [num_top] * 3)
    expected = [range(VOCAB), [40, *(i for i in range(VOCAB) if i != 40)], [*range(50, VOCAB)]]
    assert [list(entry.top) for entry in entries] == [list(ids)[:num_top] for ids in expected]


def test_smp_06_logits_that_are_no_numbers_leave_the_logprobs_finite():
    logits = torch.zeros(4, 6)
    logits[0, 2], logits[1, 3], logits[2], logits[3] = torch.inf, torch.inf, torch.nan, -torch.inf
    for entry in token_logprobs(logits, [2] * 4, [6] * 4):
        assert all(map(math.isfinite, [entry.logprob, *entry.top.values()]))


def test_pfx_05_prompt_logprobs_have_none_for_the_first_token():
    expected = [-8.72634, -4.04783, -4.79558, -2.57545, -8.58013, -5.72428, -6.05516, -0.60923]
    token_ids = [*PA, GREEDY_PA[0]]
    first, *others = prompt_logprobs(tiny_llama()(torch.tensor([token_ids])).logits[0].detach(), token_ids, 1)
    assert first is None
    assert [entry.logprob for entry in others] == pytest.approx(expected, abs=1e-3)
    assert others[-1].top == {GREEDY_PA[0]: others[-1].logprob}


def test_prompt_logprobs_of_a_long_prompt_line_up_with_its_tokens():
    token_ids = [(7 * i * i + 3) % VOCAB for i in range(2 * MAX_ROWS + 2)]
    logits = random_logits(len(token_ids))
    expected = [row[token_id].item() for row, token_id in zip(logits.log_softmax(-1), token_ids[1:])]
    entries = prompt_logprobs(logits, token_ids, 0)[1:]
    assert [entry.token_id for entry in entries] == token_ids[1:]
    assert [entry.logprob for entry in entries] == pytest.approx(expected)
    assert prompt_logprobs(logits[:1], token_ids[:1], 3) == [None]
