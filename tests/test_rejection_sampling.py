"""Guesses that were drawn at random leave the distribution of the answers as it is.

Chi-square tests at FALSE_ALARM = 1e-6: so often would a right verifier fail one, over all seeds; the seeds here are
fixed, so each test says the same in every run. That the tests can tell is shown with wrong verifiers, planted.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from phase12_prefix_and_spec import draft_model, verification
from phase12_prefix_and_spec.acceptance import accepted_draws
from phase12_prefix_and_spec.verification import DraftedRow, choose_by_rejection
from shared.logits_processors import process_logits
from shared.registry import newest_phase
from shared.request import Request, SamplingParams
from shared.sampler import draw
from shared.sampling_weights import probabilities
from shared.tiny_models import tiny_llama
from shared.uniform import uniform
from tests.helpers import open_engine
from tests.sampling import make_seq

FALSE_ALARM = 1e-6
FEWEST_EXPECTED = 10  # per cell; rarer outcomes are counted together, so that chi-square holds in the tail as well


def chance_of(counts: Mapping[Any, int], expected: Mapping[Any, float]) -> float:
    """How likely counts this far from the expected probabilities, or further, are by chance; 0 for impossible ones."""
    total = sum(counts.values())
    if any(not expected.get(outcome) for outcome in counts):
        return 0.0
    cells = [(counts.get(outcome, 0), p * total) for outcome, p in expected.items() if p * total >= FEWEST_EXPECTED]
    rest = total - sum(count for count, _ in cells), total - sum(wanted for _, wanted in cells)
    cells += [rest] if rest[1] >= FEWEST_EXPECTED else []
    statistic = sum((count - wanted) ** 2 / wanted for count, wanted in cells)
    half_freedom, half = torch.tensor([(len(cells) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half_freedom, half))


# -- the rule, alone --------------------------------------------------------------------------------------

V, K, NUM_ROWS = 6, 3, 5_000


@pytest.mark.parametrize(
    ("p", "q", "u", "expected"),
    [
        ([0.5], [0.5], [0.999], 1),
        ([0.9], [0.1], [0.999], 1),
        ([0.2], [0.8], [0.24], 1),
        ([0.2], [0.8], [0.25], 0),
        ([0.0], [0.8], [0.0], 0),
        ([0.5, 0.1, 0.9], [0.5, 0.9, 0.1], [0.1, 0.5, 0.1], 1),
        ([float("nan")], [0.5], [0.0], 0),
        ([0.5], [float("nan")], [0.0], 0),
        ([], [], [], 0),
    ],
)
def test_a_guess_stands_with_p_over_q_if_all_before_it_do(p: Any, q: Any, u: Any, expected: int) -> None:
    assert accepted_draws(p, q, u) == expected


def random_distributions(num_rows: int, seed: int) -> torch.Tensor:
    """`[rows, V]`, some tokens impossible."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(num_rows, V, generator=generator, dtype=torch.float64) ** 3
    weights[weights < 0.01] = 0
    return weights / weights.sum(-1, keepdim=True)


def tokens_by_place(seed: int, purpose: str = "draft") -> tuple[list[Counter[int]], torch.Tensor]:
    """What comes out of many rows at each place, and p, `[1 + K, V]`: a place's p depends on the place alone here, so
    its tokens are distributed as p whatever came before. purpose: of the number that guesses are drawn with."""
    target, other = random_distributions(1 + K, seed), random_distributions(K, seed + 1000)
    draft = (target[:K] + other) / 2
    rows, unnumbered = [], [make_seq(output=[0] * count, temperature=1.0) for count in range(1 + K)]
    for number in range(NUM_ROWS):
        futures = [replace(seq, seed=seed * NUM_ROWS + number) for seq in unnumbered]
        numbers = [uniform(seq.seed, 0, len(seq.token_ids), purpose) for seq in futures[:K]]
        rows.append(DraftedRow(draw(draft, numbers).tolist(), target, futures, draft))
    counts: list[Counter[int]] = [Counter() for _ in range(1 + K)]
    for token_ids in choose_by_rejection(rows, [target] * NUM_ROWS):
        for place, token_id in enumerate(token_ids):
            counts[place][token_id] += 1
    return counts, target


def least_chance(seed: int, purpose: str = "draft") -> float:
    counts, target = tokens_by_place(seed, purpose)
    return min(chance_of(of_place, dict(enumerate(p))) for of_place, p in zip(counts, target.tolist()))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_comes_out_at_each_place_is_distributed_as_the_targets(seed: int) -> None:
    assert least_chance(seed) > FALSE_ALARM


WRONG: dict[str, tuple[str, Callable[..., Any]]] = {
    "the token after a fallen guess comes from p": ("left_over", lambda target, _, count: target[count]),
    "every guess stands": ("accepted_draws", lambda p, *_: len(p)),
    "p and q are mixed up": ("accepted_draws", lambda p, q, u: accepted_draws(q, p, u)),
    "a guess stands with probability p": ("accepted_draws", lambda p, q, u: accepted_draws(p, [1.0] * len(q), u)),
    "what is left over is of the place before": (
        "left_over",
        lambda target, drawn, count, right=verification.left_over: right(target, drawn, max(0, count - 1)),
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_verifier_is_found_out(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, *WRONG[wrong])
    assert least_chance(seed=1) < FALSE_ALARM


@pytest.mark.parametrize("purpose", ["", "accept"])
def test_a_guess_drawn_with_a_number_that_verifies_it_is_found_out(purpose: str) -> None:
    assert least_chance(1, purpose) < FALSE_ALARM


def test_where_rounding_leaves_nothing_over_the_token_comes_from_the_target() -> None:
    p = torch.tensor([[0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])
    assert verification.left_over(p, p[:1], 0).tolist() == [0.0, 0.5, 0.5]
    assert verification.left_over(p, torch.full((1, 3), torch.nan), 0).tolist() == [0.0, 0.5, 0.5]
    assert verification.left_over(p, torch.tensor([[0.0, 1.0, 0.0]]), 0).tolist() == [0.0, 0.0, 0.5]
    assert verification.left_over(p, p[:1], 1).tolist() == [0.0, 0.0, 1.0]


# -- the engine, against every possible answer --------------------------------------------------------------

TINY: dict[str, Any] = {
    **{"vocab_size": 5, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8},
    "initializer_range": 0.2,
}
EVERY_PAIR = [0, 0, 1, 0, 2, 0, 3, 0, 4, 1, 1, 2, 1, 3, 1, 4, 2, 2, 3, 2, 4, 3, 3, 4, 4, 0]  # n-gram always has a guess
PROMPT, MAX_TOKENS, NUM_ANSWERS = EVERY_PAIR, 4, 1500
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"ignore_eos": True},
    "all settings at once": {
        **{"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": -0.4, "logit_bias": {1: 1.5}},
        **{"top_k": 4, "top_p": 0.95, "min_p": 0.02, "min_tokens": 2, "stop_token_ids": (4,)},
    },
}


def target_model() -> Any:
    return tiny_llama(seed=3, **TINY)


def noisy_draft() -> Any:
    draft = target_model()
    torch.manual_seed(1)
    for parameter in draft.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.15)
    return draft


def all_answers(params: SamplingParams) -> dict[tuple[int, ...], float]:
    """Every answer -> its probability, by the model's logits and the sampler's own distribution (which other tests
    hold against transformers')."""
    model, eos = target_model(), () if params.ignore_eos else (2,)
    fields = {name: getattr(params, name) for name in ("temperature", "max_tokens", *SETTINGS["all settings at once"])}
    open_answers: dict[tuple[int, ...], float] = {(): 1.0}
    ended: dict[tuple[int, ...], float] = {}
    for _ in range(MAX_TOKENS):
        seqs = [make_seq(PROMPT, answer, eos=eos, **fields) for answer in open_answers]
        with torch.inference_mode():
            logits = model(torch.tensor([seq.token_ids for seq in seqs])).logits[:, -1]
        following = probabilities(process_logits(logits, seqs), [params] * len(seqs)).tolist()
        grown = {
            (*answer, token): chance * p
            for (answer, chance), row in zip(open_answers.items(), following)
            for token, p in enumerate(row)
            if p > 0
        }
        ended |= {answer: p for answer, p in grown.items() if answer[-1] in (*eos, *params.stop_token_ids)}
        open_answers = {answer: p for answer, p in grown.items() if answer not in ended}
    return ended | open_answers


def run_answers(
    method: str, params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> tuple[Counter[tuple[int, ...]], dict[str, int]]:
    """How often each answer came, and how many guesses were verified for that."""
    monkeypatch.setattr("shared.input_processor.secrets.randbits", random.Random(0).getrandbits)
    settings = {"speculative_method": method, "num_speculative_tokens": 3, "adaptive_speculation": False}
    settings["prefill_budget_tokens"] = 2000  # guesses get what prompts leave
    with open_engine(
        newest_phase(), target_model(), None, noisy_draft(), max_batch_size=200, kv_num_blocks=1000, **settings
    ) as engine:
        outputs = engine.generate([Request(PROMPT, params)] * NUM_ANSWERS)
        stats = engine.stats()
    happened = {"accepted": stats.num_accepted_tokens, "all": stats.num_drafted_tokens}
    return Counter(tuple(output.token_ids) for output in outputs), happened


@pytest.mark.parametrize("method", ["draft", "ngram"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_answers_under_speculation_are_as_likely_as_without(
    method: str, settings: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.9, **SETTINGS[settings])
    expected = all_answers(params)
    assert sum(expected.values()) == pytest.approx(1)
    answers, num_guesses = run_answers(method, params, monkeypatch)
    assert chance_of(answers, expected) > FALSE_ALARM
    assert num_guesses["accepted"] > 100
    assert num_guesses["all"] - num_guesses["accepted"] > 100


@pytest.mark.parametrize("wrong", ["the token after a fallen guess comes from p", "every guess stands"])
def test_a_wrong_verifier_is_found_out_in_the_engine(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.9, **SETTINGS["plain"])
    monkeypatch.setattr(verification, *WRONG[wrong])
    answers, _ = run_answers("draft", params, monkeypatch)
    assert chance_of(answers, all_answers(params)) < FALSE_ALARM


def test_only_unseeded_sampled_requests_have_their_guesses_drawn() -> None:
    sampler = draft_model.GuessSampler(5)
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.9, 0.3]] * 3, dtype=torch.float64)
    seqs = [make_seq(temperature=0.0), make_seq(temperature=1.0), make_seq(temperature=1.0)]
    seqs[1].request = Request(seqs[1].request.prompt_token_ids, SamplingParams(temperature=1.0, seed=4))
    greedy, seeded, unseeded = sampler.sample(logits, seqs)
    assert greedy.token_id == 3
    assert greedy.drawn_from is None
    assert seeded.drawn_from is None
    assert seeded.token_id == draw(logits[:1].softmax(-1), [uniform(1, 0, 8)]).item(), "with the target's own number"
    torch.testing.assert_close(unseeded.drawn_from, logits[2].softmax(-1))
