"""The distribution that tokens are drawn from, against transformers' own processors and warpers."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from shared.logits_processors import process_logits
from shared.sampling_weights import keep_top_p, probabilities
from shared.sequence import Sequence
from shared.tiny_models import tiny_llama
from tests.helpers import PA
from tests.sampling import FIELDS, OUTPUT, VOCAB, make_seq, random_logits


def hf_processed(logits: torch.Tensor, seq: Sequence) -> torch.Tensor:
    """[1, V], by transformers' processors; presence and frequency, which it lacks, by OpenAI's formula."""
    p, ids = seq.params, torch.tensor([seq.token_ids])
    processors = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(p.repetition_penalty)])
    if p.logit_bias:
        processors.insert(0, SequenceBiasLogitsProcessor({(i,): float(b) for i, b in p.logit_bias.items()}))
    scores = processors(ids, logits)
    for token_id in range(logits.shape[-1]):
        times = seq.output_token_ids.count(token_id)
        scores[:, token_id] -= p.presence_penalty * (times > 0) + p.frequency_penalty * times
    ends = [*seq.eos_token_ids, *p.stop_token_ids]
    return MinNewTokensLengthLogitsProcessor(seq.num_prompt_tokens, p.min_tokens, ends)(ids, scores)


def hf_probabilities(logits: torch.Tensor, seq: Sequence) -> torch.Tensor:
    p = seq.params
    warpers = LogitsProcessorList([TemperatureLogitsWarper(p.temperature)])
    if p.top_k > 0:
        warpers.append(TopKLogitsWarper(p.top_k))
    if p.top_p < 1:
        warpers.append(TopPLogitsWarper(p.top_p))
    if p.min_p > 0:
        warpers.append(MinPLogitsWarper(p.min_p))
    return warpers(None, hf_processed(logits, seq)).softmax(-1)  # [1, V]


def our_probabilities(logits: torch.Tensor, seqs: list[Sequence]) -> torch.Tensor:
    return probabilities(process_logits(logits, seqs), [seq.params for seq in seqs])


STRATEGIES = {field: st.sampled_from(values) for field, values in FIELDS.items()}


@given(changes=st.fixed_dictionaries({}, optional=STRATEGIES), seed=st.integers(0, 10**6))
@settings(max_examples=300, deadline=None)
def test_any_combination_of_fields_gives_the_distribution_of_transformers(changes, seed):
    logits = random_logits(seed=seed)
    seq = make_seq(output=OUTPUT, **{"temperature": 1.0} | changes)
    torch.testing.assert_close(our_probabilities(logits, [seq]), hf_probabilities(logits, seq), atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_alone_gives_the_distribution_of_transformers(field):
    for value in FIELDS[field]:
        logits, seq = random_logits(seed=5), make_seq(output=OUTPUT, **{"temperature": 1.0} | {field: value})
        ours = our_probabilities(logits, [seq])
        torch.testing.assert_close(ours, hf_probabilities(logits, seq), atol=1e-12, rtol=1e-9)


def test_processors_and_filters_come_in_the_order_of_generate():
    """Every order of these steps but one gives other scores; `generate` itself says which."""
    settings_ = {"temperature": 0.7, "top_k": 9, "top_p": 0.8, "min_p": 0.1, "repetition_penalty": 1.4}
    bias = {8: 6.0, 62: -3.0, 33: 9.0, 2: 20.0}
    result = tiny_llama().generate(
        torch.tensor([PA]),
        do_sample=True,
        max_new_tokens=4,
        min_new_tokens=3,
        sequence_bias={(i,): b for i, b in bias.items()},
        output_scores=True,
        output_logits=True,
        return_dict_in_generate=True,
        **settings_,
    )
    tokens = result.sequences[0, len(PA) :].tolist()
    for position, (logits, scores) in enumerate(zip(result.logits, result.scores)):
        seq = make_seq(output=tokens[:position], min_tokens=3, logit_bias=bias, **settings_)
        ours = our_probabilities(logits, [seq])
        torch.testing.assert_close(ours, scores.to(ours.dtype).softmax(-1), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("scale", [0.05, 1.0, 3.0])
@pytest.mark.parametrize("top_p", [0.2, 0.9, 0.9999])
def test_top_p_keeps_the_same_tokens_however_many_candidates_it_had_to_look_at(scale, top_p):
    logits = random_logits(2, vocab=20_000, scale=scale)
    kept = keep_top_p(logits.softmax(-1), [top_p, 0.5]) > 0
    for row, threshold in enumerate((top_p, 0.5)):
        assert torch.equal(kept[row : row + 1], TopPLogitsWarper(threshold)(None, logits[row : row + 1]).isfinite())


def test_a_nucleus_that_reaches_top_p_exactly_is_complete():
    weights = torch.tensor([[0.125, 0.5, 0.25, 0.125]])
    for top_p, kept in ((0.5, [1]), (0.75, [1, 2]), (0.7500001, [0, 1, 2, 3])):
        assert keep_top_p(weights, [top_p]).nonzero()[:, 1].tolist() == kept


def test_tokens_that_tie_at_the_edge_of_a_filter_stay_together():
    logits = torch.tensor([[0.0, 2.0, 1.0, 1.0, 1.0, -1.0]])
    for edge in ({"top_k": 2}, {"top_p": 0.5}, {"min_p": math.exp(-1) * 0.999}):
        kept = our_probabilities(logits, [make_seq([1], temperature=1.0, **edge)]) > 0
        assert kept.tolist() == [[False, True, True, True, True, False]]


def test_a_penalty_that_overflows_makes_no_nan():
    logits = torch.full((1, VOCAB), -1.0)
    positive = torch.tensor([3.0, 0.0, -2.0, 5.0, -torch.inf, 1.0, 1.0, 1.0])
    for penalty, seen in itertools.product((1e-320, 1e-40, 1e40, 1e300), (positive, -positive.abs())):
        logits[0, PA] = seen
        result = our_probabilities(logits, [make_seq(repetition_penalty=penalty, temperature=1e-5)])
        assert result.isfinite().all()
        assert result[0, PA[4]] == 0, "what is impossible stays so"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_smp_01_probabilities_at_tiny_and_huge_temperatures_are_finite(dtype):
    temperatures = [1e-5, 1e-3, 1.0, 1e30, 1e300]
    seqs = [make_seq(temperature=t, min_tokens=1) for t in temperatures]  # with a banned token
    result = our_probabilities(random_logits(len(seqs), scale=30, dtype=dtype), seqs)
    assert result.isfinite().all()
    assert result[:, 2].eq(0).all()
