"""The sampler as engines use it: each sequence's token, in any company."""

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from shared.errors import InvalidRequest
from shared.logits_processors import process_logits
from shared.request import SamplingParams
from shared.sampler import Sampler, draw
from shared.tiny_models import tiny_llama
from shared.uniform import uniform
from tests.helpers import PA, PB
from tests.sampling import FIELDS, GREEDY_PA, OUTPUT, VOCAB, make_seq, random_logits


@pytest.fixture(scope="module")
def t0() -> Any:
    return tiny_llama()


@torch.inference_mode()
def next_logits(model, seqs) -> torch.Tensor:
    return torch.stack([model(torch.tensor([seq.token_ids])).logits[0, -1] for seq in seqs])  # [B, V]


def generate(model, seqs, num_tokens, dtype=torch.float64) -> list[list[int]]:
    """A plain loop around the sampler: what an engine does, without an engine."""
    for _ in range(num_tokens):
        for seq, token in zip(seqs, Sampler().sample(next_logits(model, seqs).to(dtype), seqs)):
            seq.token_ids.append(token.token_id)
    return [seq.output_token_ids for seq in seqs]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_smp_01_tiny_temperatures_are_greedy(t0, dtype):
    cold = [make_seq(temperature=t) for t in (1e-3, 1e-4, 1e-5, 1e-8, 1e-38, 1e-40, 0)]
    outputs = generate(t0, [*cold, make_seq(temperature=1.0)], 8, dtype)
    assert outputs[:-1] == [GREEDY_PA[:8]] * len(cold)
    assert outputs[-1] != GREEDY_PA[:8]


def test_smp_02_top_p_zero_is_the_narrowest_and_one_is_off(t0):
    def outputs(**params):
        return generate(t0, [make_seq(temperature=1.0, seed=3, **params)], 8)[0]

    assert outputs(top_p=0.0) == outputs(top_p=1e-9) == GREEDY_PA[:8]
    assert outputs(top_p=1.0) == outputs() != GREEDY_PA[:8]
    assert outputs() == generate(t0, [make_seq(temperature=1.0, seed=3)], 8)[0]
    for wrong in (1.5, -0.1, math.nan):
        with pytest.raises(InvalidRequest) as refused:
            SamplingParams(top_p=wrong)
        assert refused.value.param == "top_p"


def test_smp_02_seed_zero_is_a_seed(t0):
    zero, one = (generate(t0, [make_seq(temperature=1.0, seed=seed)], 8)[0] for seed in (0, 1))
    assert zero == generate(t0, [make_seq(temperature=1.0, seed=0)], 8)[0]
    assert zero != one


def test_smp_03_top_k_over_the_vocabulary_and_disabled_in_one_batch(t0):
    def seq(**params):
        return make_seq(seed=5, **{"temperature": 1.0} | params)

    settings_ = [{"top_k": k} for k in (97, 98, 9999999, 0, -1)] + [{}, {"top_k": 1}, {"top_k": 3}, {"temperature": 0}]
    solo = [generate(t0, [seq(**params)], 6)[0] for params in settings_]
    assert generate(t0, [seq(**params) for params in settings_], 6) == solo
    assert all(output == solo[0] for output in solo[:6])
    assert solo[6] == solo[8] == GREEDY_PA[:6]
    assert solo[0] != solo[7]
    with pytest.raises(InvalidRequest):
        SamplingParams(top_k=-5)


def test_smp_04_a_seeded_sequence_does_not_depend_on_its_neighbours(t0):
    def seeded(seed=42):
        return make_seq(temperature=0.8, seed=seed)

    alone = generate(t0, [seeded()], 16)[0]
    neighbours = [make_seq(PB, temperature=1.0, seed=1000 + i) for i in range(7)]
    assert generate(t0, [*neighbours[:3], seeded(), *neighbours[3:]], 16)[3] == alone

    joined_late = seeded()
    generate(t0, [joined_late], 5)
    torch.manual_seed(7)
    generate(t0, [make_seq(PB, temperature=0.0), joined_late], 6)
    generate(t0, [joined_late, make_seq(PB, temperature=2.0)], 5)
    assert joined_late.output_token_ids == alone
    assert generate(t0, [seeded(43)], 16)[0] != alone


def test_smp_06_logprobs_are_finite_in_strict_json(t0):
    seq = make_seq(temperature=1.0, top_k=1, logprobs=5)
    token = Sampler().sample(next_logits(t0, [seq]), [seq])[0]
    assert token.token_id == GREEDY_PA[0]
    assert len(token.logprobs.top) == 5  # of the model's own distribution: top_k does not shorten it
    assert json.loads(json.dumps([token.logprobs.logprob, *token.logprobs.top.values()], allow_nan=False))


def test_spc_05_repetition_penalty_counts_prompt_and_output_at_each_position():
    model = tiny_llama(seed=7, initializer_range=0.1)
    expected = [79, 42, 31, 47, 93, 51, 70, 77, 7, 85, 20, 77, 61, 68, 64, 49, 2, 5, 2, 5, 5, 5, 91, 26]
    assert generate(model, [make_seq(eos=(), repetition_penalty=1.3)], 24) == [expected]


def test_greedy_rows_take_the_most_likely_token_whatever_the_filters(t0):
    assert generate(t0, [make_seq(eos=()), make_seq(top_k=3, top_p=0.1, min_p=0.5)], 24) == [GREEDY_PA] * 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_greedy_takes_the_first_of_equal_logits_in_any_batch(dtype):
    logits = torch.zeros(4, 50_000, dtype=dtype)
    logits[:, [7, 400, 49_999]] = 3.0
    torch.set_num_threads(2)  # a batch of one is then cut in two
    for batch in (1, 4):
        seqs = [make_seq()] * batch
        assert [token.token_id for token in Sampler().sample(logits[:batch], seqs)] == [7] * batch


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.operations.append(function.overloadpacket.__name__)
        return function(*args, **kwargs or {})


def test_an_all_greedy_batch_costs_one_pass_over_the_logits_and_a_sum_that_shows_nan():
    logits, seqs = random_logits(8), [make_seq() for _ in range(8)]
    with _Recorder() as recorder:
        Sampler().sample(logits, seqs)
    assert recorder.operations == ["max", "sum"]


def test_no_sequences_give_no_tokens():
    assert Sampler().sample(torch.empty(0, VOCAB), []) == []


def test_min_tokens_bans_every_end_until_it_is_reached():
    logits = torch.zeros(1, VOCAB)
    last = VOCAB - 1
    logits[0, [2, 7, last]] = torch.tensor([9.0, 8.0, 7.0])

    def choose(num_output: int) -> int:
        seq = make_seq(output=[1] * num_output, eos=(2, -1, 5000), stop_token_ids=[7], min_tokens=3)
        return Sampler().sample(logits, [seq])[0].token_id

    assert [choose(n) for n in (0, 2, 3)] == [last, last, 2], "an EOS of -1 is no token"


def test_sampling_leaves_the_logits_and_the_neighbours_rows_as_they_are():
    logits = random_logits(3)
    before = logits.clone()
    edited = make_seq(logit_bias={4: 100}, repetition_penalty=2.0, presence_penalty=1.0, min_tokens=2, logprobs=1)
    processed = process_logits(logits, [make_seq(), edited, make_seq()])
    Sampler().sample(logits, [make_seq(), edited, make_seq(temperature=1.0, top_p=0.3)])
    assert torch.equal(logits, before)
    assert torch.equal(processed[[0, 2]], before[[0, 2]])
    assert not torch.equal(processed[1], before[1])


def test_logits_that_no_request_changes_are_not_copied():
    logits = random_logits(2)
    assert process_logits(logits, [make_seq(), make_seq(temperature=1.0, top_k=3)]) is logits


OPTIONAL = {field: st.sampled_from(values) for field, values in FIELDS.items() if field != "temperature"}


@given(
    rows=st.lists(
        st.fixed_dictionaries({"temperature": st.sampled_from([0.0, 0.4, 1.0, 3.0])}, optional=OPTIONAL), max_size=7
    ),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 10**6),
)
@example(rows=[{"temperature": 0.0}] * 6, dtype=torch.bfloat16, seed=2498)  # equal logits
@settings(max_examples=100, deadline=None)
def test_a_rows_token_and_logprobs_do_not_depend_on_the_other_rows(rows, dtype, seed):
    logits = random_logits(len(rows), dtype=dtype, seed=seed)
    seqs = [make_seq(output=OUTPUT[:i], seed=seed + i, logprobs=i % 3 or None, **row) for i, row in enumerate(rows)]
    together = Sampler().sample(logits, seqs)
    assert together == [Sampler().sample(logits[i : i + 1], [seq])[0] for i, seq in enumerate(seqs)]


def test_a_row_of_a_large_vocabulary_does_not_depend_on_the_other_rows():
    """torch cuts the sum over one long row into parts for its threads, and sums many rows each in one go."""
    logits = random_logits(4, vocab=49_152, dtype=torch.float32)
    torch.set_num_threads(2)
    rows = [{}, {"top_p": 0.97}, {"top_k": 40, "top_p": 0.9}, {"min_p": 0.01}]
    for seed in range(5):
        seqs = [make_seq(seed=seed, temperature=1.1, **row) for row in rows]
        together = Sampler().sample(logits, seqs)
        assert together == [Sampler().sample(logits[i : i + 1], [seq])[0] for i, seq in enumerate(seqs)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("where", "logit", "name"),
    [
        (slice(None), torch.nan, "NaN"),
        (7, torch.nan, "NaN"),
        (7, torch.inf, "infinite"),
        (slice(None), -torch.inf, "infinite"),
    ],
)
def test_a_row_without_a_highest_number_does_not_take_the_batch_down(where, logit, name, temperature):
    logits = random_logits(2)
    seqs = [make_seq(temperature=temperature, seed=i, logprobs=2) for i in range(2)]
    healthy = Sampler().sample(logits, seqs)[1]
    logits[0, where] = logit
    broken, other = Sampler().sample(logits, seqs)
    assert broken.error == f"the model's logits are {name}"
    assert other == healthy


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_impossible_tokens_and_a_sum_that_overflows_are_no_errors(dtype):
    logits = torch.full((2, VOCAB), 3e4, dtype=dtype)
    logits[1, 1:] = -torch.inf
    assert [token.error for token in Sampler().sample(logits, [make_seq(), make_seq()])] == [None, None]


def test_logprobs_are_of_the_raw_logits_and_only_for_rows_that_ask():
    logits = random_logits(3)
    seqs = [make_seq(logit_bias={4: 100}, logprobs=n) for n in (None, 0, 3)]
    none, chosen_only, three = Sampler().sample(logits, seqs)
    expected = logits.log_softmax(-1)
    assert none.logprobs is None
    assert chosen_only.logprobs.top == {}
    assert chosen_only.logprobs.logprob == pytest.approx(expected[1, 4].item())
    assert three.logprobs.token_id == three.token_id == 4
    assert list(three.logprobs.top) == expected[2].argsort(descending=True)[:3].tolist()
    assert list(three.logprobs.top.values()) == pytest.approx(expected[2].sort(descending=True).values[:3].tolist())


def test_sampling_neither_reads_nor_moves_torchs_generator():
    logits, seqs = random_logits(2), [make_seq(temperature=1.0, top_p=0.9, seed=i) for i in range(2)]
    torch.manual_seed(0)
    state, first = torch.get_rng_state(), Sampler().sample(logits, seqs)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    assert Sampler().sample(logits, seqs) == first


def test_the_random_number_is_that_of_the_seed_the_completion_and_the_position():
    logits = random_logits()
    for position in range(len(PA), len(PA) + 20):
        seq = make_seq(output=[3] * (position - len(PA)), temperature=1.0, seed=11, index=4)
        expected = draw(logits.softmax(-1), [uniform(11, 4, position)]).tolist()
        assert [token.token_id for token in Sampler().sample(logits, [seq])] == expected


def test_completions_of_one_request_differ(t0):
    outputs = generate(t0, [make_seq(temperature=1.0, index=i) for i in range(4)], 8)
    assert len({tuple(output) for output in outputs}) == 4
