"""The random number behind each token, and what is drawn with it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.sampler import Sampler, draw, first_above
from shared.sampling_weights import probabilities
from shared.uniform import uniform
from tests.sampling import make_seq

FALSE_ALARM_RATE = 1e-6

WEIGHTS = st.lists(st.sampled_from([0.0, 0.0, 1e-30, 1e-9, 0.1, 1.0]), min_size=1, max_size=40).filter(any)
UNIFORMS = st.one_of(st.sampled_from([0.0, 1e-300, 0.5, 1 - 2**-24, 1 - 2**-53]), st.floats(0, 1, exclude_max=True))


@given(weights=WEIGHTS, u=UNIFORMS, dtype=st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=300, deadline=None)
def test_a_token_of_weight_zero_is_never_drawn(weights, u, dtype):
    token_id = draw(torch.tensor([weights], dtype=dtype), [u]).item()
    assert weights[token_id] > 0


@given(weights=st.lists(st.integers(0, 9), min_size=1, max_size=20).filter(any), u=UNIFORMS)
@settings(max_examples=300, deadline=None)
def test_the_draw_is_the_inverse_of_the_cumulated_weights(weights, u):
    point = min(u * sum(weights), math.nextafter(sum(weights), 0))
    expected = next(i for i in range(len(weights)) if sum(weights[: i + 1]) > point)
    assert draw(torch.tensor([weights], dtype=torch.float64), [u]).tolist() == [expected]


def test_the_ends_of_the_interval_hit_the_first_and_the_last_possible_token():
    weights = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]]).repeat(2, 1)
    assert draw(weights, [0.0, 1 - 2**-53]).tolist() == [1, 4]


def test_a_sum_that_wobbles_where_the_weight_is_zero_draws_no_impossible_token():
    weights = torch.tensor([[0.5, 0.0, 0.3]])
    wobbling = torch.tensor([[0.5, 0.5001, 0.8]])  # as the parallel sum of a GPU may be
    assert first_above(torch.tensor([[0.50005]]), wobbling, weights).tolist() == [[0]]


def chi_square_p_value(counts: torch.Tensor, expected: torch.Tensor) -> float:
    statistic = ((counts - expected) ** 2 / expected).sum()
    return torch.special.gammaincc(torch.tensor((len(counts) - 1) / 2.0), statistic / 2).item()


@pytest.mark.parametrize("vary", ["seed", "index", "position"])
def test_frequencies_follow_the_probabilities(vary):
    """Pearson's chi-square on 20,000 draws; a fair sampler would fail it with FALSE_ALARM_RATE."""
    num_draws, logits = 20_000, torch.tensor([[2.0, 1.0, 0.0, 1.5, -0.5, 0.7, -9.0, 2.2]])
    seqs = [make_seq([1], temperature=1.3, top_k=6, min_p=0.05) for _ in range(num_draws)]
    for n, seq in enumerate(seqs):
        if vary == "position":
            seq.token_ids = range(n + 1)  # only its length is read
        else:
            setattr(seq, vary, n)
    probs = probabilities(logits.double(), [seqs[0].params])[0]
    tokens = [token.token_id for token in Sampler().sample(logits.expand(num_draws, -1), seqs)]
    counts = torch.tensor(tokens).bincount(minlength=8).double()
    possible = probs > 0
    assert possible.sum() == 6
    assert counts[~possible].sum() == 0
    assert chi_square_p_value(counts[possible], probs[possible] * num_draws) > FALSE_ALARM_RATE


@pytest.mark.parametrize("key", [lambda n: (n, 0, 9), lambda n: (1, n, 9), lambda n: (1, 0, n)])
def test_uniforms_are_uniform_along_each_part_of_their_key(key):
    """Largest distance to the diagonal; by the DKW inequality at most FALSE_ALARM_RATE fair samples exceed it."""
    num_values = 20_000
    values = torch.tensor([uniform(*key(n)) for n in range(num_values)], dtype=torch.float64).sort().values
    distance = (values - torch.arange(1, num_values + 1) / num_values).abs().max().item()
    assert distance < math.sqrt(math.log(2 / FALSE_ALARM_RATE) / (2 * num_values)) + 1 / num_values


def test_uniforms_are_pinned_so_that_a_seed_means_the_same_in_every_release():
    values = [uniform(42, 0, 8), uniform(42, 1, 8), uniform(42, 0, 9), uniform(-1, 0, 0)]
    assert values == [0.3631909513475443, 0.1795772043472812, 0.03235867141754378, 0.798662648634058]
    assert len({uniform(s, i, p) for s in range(5) for i in range(5) for p in range(20)}) == 500
