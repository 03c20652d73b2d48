"""Replayed decodes are the eager ones, and only decodes are replayed. On a CPU a recording runs its tensors again."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from phase08_paged_attention.decode_graphs import DecodeGraphs
from shared.config import EngineConfig
from shared.errors import SetupError
from shared.reference import greedy_reference
from shared.registry import phase_by_number
from shared.tiny_models import FAMILIES, tiny_llama
from tests.helpers import (
    PA,
    PB,
    PC,
    Q,
    assert_clean,
    cyclic_model,
    greedy,
    open_engine,
    reference,
    token_lists,
)

Run = Callable[[], torch.Tensor]


class Recorder:
    """What a CUDA graph does, with the same tensors, and slower."""

    def __init__(self) -> None:
        self.num_recordings = 0
        self.num_replays = 0

    def __call__(self, run: Run) -> Run:
        self.num_recordings += 1
        output = run().clone()  # a graph's logits are always at the same place

        def replay() -> torch.Tensor:
            self.num_replays += 1
            return output.copy_(run())

        return replay


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def with_graphs(engine: Any, recorder: Recorder, max_rows: int = 6, max_blocks: int = 64) -> Any:
    runner = engine.runner
    runner.forward = DecodeGraphs(runner.forward, max_rows, max_blocks, recorder)
    return engine


@pytest.mark.parametrize(
    ("number", "kernel", "family"),
    [(8, "torch", "qwen3"), (8, "cpp", "llama"), (9, "numba", "llama"), (12, "cpp", "qwen3")],
)
def test_replayed_decodes_give_hf_tokens(recorder: Recorder, number: int, kernel: str, family: str) -> None:
    prompts = [PA, PB, PC, Q[:1], Q[:40], Q, PA[:3]]
    settings = {"kv_block_size": 3, "kv_num_blocks": 400, "prefill_chunk_size": 16, "attention_kernel": kernel}
    with open_engine(phase_by_number(number), FAMILIES[family](), **settings) as engine:
        with_graphs(engine, recorder)
        outputs = engine.generate([greedy(prompt, 10 + 3 * i) for i, prompt in enumerate(prompts)])
        expected = [list(reference(family, tuple(prompt), 10 + 3 * i)) for i, prompt in enumerate(prompts)]
        assert token_lists(outputs) == expected
        assert_clean(engine)
    assert recorder.num_replays >= 20
    assert 3 <= recorder.num_recordings <= 4  # sizes 8, 4, 2, 1


def test_a_step_with_a_prompt_a_guess_or_too_many_rows_runs_as_ever(recorder: Recorder) -> None:
    prompt = [*range(10, 30), *range(10, 16)]  # the model goes round this circle: every guess is right
    settings = {"speculative_method": "ngram", "adaptive_speculation": False}
    with open_engine(phase_by_number(12), cyclic_model(), **settings) as engine:
        with_graphs(engine, recorder)
        outputs = engine.generate([greedy(prompt, 24)])
        assert token_lists(outputs) == [greedy_reference(cyclic_model(), prompt, 24)]
        assert engine.stats().num_accepted_tokens >= 16
    assert recorder.num_replays <= 1  # the last token, with no room for a guess
    few = Recorder()
    with open_engine(phase_by_number(8)) as engine:
        with_graphs(engine, few, max_rows=1, max_blocks=1)
        outputs = engine.generate([greedy(Q[:40], 24), greedy(Q, 24)])
        assert token_lists(outputs) == [list(reference("llama", tuple(p), 24)) for p in (Q[:40], Q)]
    assert few.num_recordings == few.num_replays == 0  # tables are longer than one block


def test_copies_of_the_first_row_write_nothing_else(recorder: Recorder) -> None:
    """Three rows in a graph of four: the pool is what eager steps leave. (In C++ company does not change a bit.)"""
    pools = []
    for wrap in (False, True):
        with open_engine(phase_by_number(8), tiny_llama().float(), kv_num_blocks=64) as engine:
            if wrap:
                with_graphs(engine, recorder)
            engine.generate([greedy(prompt, 12) for prompt in (PA, PB, PC)])
            pools.append(engine.runner.cache.key.clone())
    assert recorder.num_replays > 0
    assert torch.equal(pools[0].nan_to_num(7.0), pools[1].nan_to_num(7.0))


def test_without_what_it_needs_it_is_refused_by_name() -> None:
    config = EngineConfig(cuda_graphs=True)
    with pytest.raises(SetupError, match=r"cuda_graphs: .* here are cpu, native and .*: leave it off"):
        phase_by_number(8).build_engine()(tiny_llama(), config)
