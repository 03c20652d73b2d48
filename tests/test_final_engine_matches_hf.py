"""The final engine under every combination of its techniques, token for token with `generate()`, in fp64.

A seeded pairwise set runs always (every pair of values of two settings occurs), the full product is slow.
That preemptions, hits and accepted drafts really happened is asserted: exactness without them would prove nothing.
"""

import itertools
import random
from collections import Counter
from functools import lru_cache
from typing import Any

import pytest

from shared.reference import greedy_reference
from shared.registry import newest_phase
from shared.tiny_models import FAMILIES, tiny_llama
from tests.helpers import PA, PB, PC, Q, greedy, open_engine, token_lists

pytestmark = pytest.mark.skipif(newest_phase().number < 12, reason="there is no final engine yet")

MAX_TOKENS = 24
SLOTS_IF_TIGHT = 52
PROMPTS = [PA, PB, [*PA, 1, 2], Q[:23], [*Q[:20], 5], PC]  # the third and the fifth share a beginning

Combination = dict[str, Any]

SETTINGS: dict[str, list[Any]] = {
    "pool": ["ample", "swap", "recompute", "swap pool 0"],
    "cache": ["off", "cold", "warm"],
    "speculation": ["off", "ngram", "draft"],
    "chunk": [3, 16, 512],
    "block_size": [1, 3, 7, 16, 32],
}


def full_product() -> list[Combination]:
    return [dict(zip(SETTINGS, values)) for values in itertools.product(*SETTINGS.values())]


def pairwise(seed: int = 0) -> list[Combination]:
    """Greedy cover: every value of a setting meets every value of every other one."""
    combinations = full_product()
    random.Random(seed).shuffle(combinations)
    missing = {pair for combination in combinations for pair in pairs_of(combination)}
    chosen: list[Combination] = []
    while missing:
        best = max(combinations, key=lambda combination: len(missing & pairs_of(combination)))
        chosen.append(best)
        missing -= pairs_of(best)
    return chosen


def pairs_of(combination: Combination) -> set[Any]:
    return set(itertools.combinations(sorted(combination.items(), key=str), 2))


def name_of(combination: Combination) -> str:
    return "-".join(str(value) for value in combination.values())


def model() -> Any:
    """L7: its greedy output repeats itself, so that drafts are accepted."""
    return tiny_llama(seed=7, initializer_range=0.1)


def draft_model() -> Any:
    """Like the target, but for a little noise: right often, and not always."""
    import torch

    draft = model()
    torch.manual_seed(1)
    for parameter in draft.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.002)
    return draft


@lru_cache(maxsize=1)
def expected() -> list[list[int]]:
    return [greedy_reference(model(), prompt, MAX_TOKENS) for prompt in PROMPTS]


def config_of(combination: Combination) -> dict[str, Any]:
    block_size, pool = combination["block_size"], combination["pool"]
    return {
        "kv_block_size": block_size,
        "kv_num_blocks": 1000 if pool == "ample" else -(-SLOTS_IF_TIGHT // block_size) + 1,
        "preemption_mode": "recompute" if pool == "recompute" else "swap",
        "swap_num_blocks": 0 if pool == "swap pool 0" else 200,
        "enable_prefix_caching": combination["cache"] != "off",
        "speculative_method": combination["speculation"],
        "num_speculative_tokens": 3,
        "adaptive_speculation": False,
        "prefill_chunk_size": combination["chunk"],
        "max_batch_size": 5,
    }


@pytest.fixture(scope="module")
def happened() -> Counter[str]:
    """What happened over all combinations that this run holds."""
    return Counter()


def run(combination: Combination, happened: Counter[str]) -> None:
    with open_engine(newest_phase(), model(), None, draft_model(), **config_of(combination)) as engine:
        for _ in range(2 if combination["cache"] == "warm" else 1):
            outputs = engine.generate([greedy(prompt, MAX_TOKENS) for prompt in PROMPTS])
            assert token_lists(outputs) == expected()
        stats = engine.stats()
    happened["preemptions"] += stats.num_preemptions
    happened["hits"] += stats.num_prefix_hit_tokens
    happened["accepted"] += stats.num_accepted_tokens
    happened["rejected"] += stats.num_drafted_tokens - stats.num_accepted_tokens
    if (
        combination["pool"] != "ample" and combination["block_size"] <= 7
    ):  # else a pool this small holds too few at once
        assert stats.num_preemptions >= 1
    if combination["speculation"] != "off":
        assert stats.num_accepted_tokens >= 5
    if combination["cache"] == "warm" and combination["pool"] == "ample" and combination["block_size"] < 8:
        assert stats.num_prefix_hit_tokens >= 20


@pytest.mark.parametrize("combination", pairwise(), ids=name_of)
def test_every_pair_of_settings_matches_hf(combination: Combination, happened: Counter[str]) -> None:
    run(combination, happened)


def test_what_should_have_happened_did(happened: Counter[str]) -> None:
    if not happened:
        pytest.skip("the combinations were not run")
    assert happened["preemptions"] >= 30
    assert happened["hits"] >= 300
    assert happened["accepted"] >= 200
    assert happened["rejected"] >= 50


@pytest.mark.slow
@pytest.mark.parametrize("combination", full_product(), ids=name_of)
def test_the_full_product_matches_hf(combination: Combination, happened: Counter[str]) -> None:
    run(combination, happened)


@pytest.mark.parametrize("speculation", ["ngram", "draft"])
def test_adaptive_draft_lengths_change_nothing_but_the_number_of_steps(speculation: str) -> None:
    settings = config_of({"pool": "swap", "cache": "warm", "speculation": speculation, "chunk": 16, "block_size": 3})
    with open_engine(
        newest_phase(), model(), None, draft_model(), **settings | {"adaptive_speculation": True}
    ) as engine:
        for _ in range(4):
            assert token_lists(engine.generate([greedy(prompt, MAX_TOKENS) for prompt in PROMPTS])) == expected()
        assert engine.stats().num_accepted_tokens > 0


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"llama"}))
def test_everything_at_once_in_every_family(family: str) -> None:
    prompts = [PA, [*PA, 1, 2], Q[:23]]
    wanted = [greedy_reference(FAMILIES[family](), prompt, MAX_TOKENS) for prompt in prompts]
    settings = config_of({"pool": "swap", "cache": "warm", "speculation": "draft", "chunk": 3, "block_size": 3})
    with open_engine(newest_phase(), FAMILIES[family](), None, FAMILIES[family](), **settings) as engine:
        for _ in range(2):
            assert token_lists(engine.generate([greedy(prompt, MAX_TOKENS) for prompt in prompts])) == wanted
        stats = engine.stats()
    assert min(stats.num_preemptions, stats.num_accepted_tokens, stats.num_prefix_hit_tokens) >= 1
