"""The suite that holds every phase to Hugging Face's greedy output, token for token over the full length.

fp64 on tiny seeded models for breadth; the real model in fp32 for depth. The reference is computed here.
A failure comes with the explainer's report: the step, the margin, and the first layer that drifts.
"""

import copy
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from shared.config import EngineConfig
from shared.errors import SetupError
from shared.explain import assert_same_tokens
from shared.reference import greedy_reference, top2_margins
from shared.registry import PHASES, Phase
from shared.request import Request, SamplingParams
from shared.tiny_models import FAMILIES
from tests.helpers import PA, PB, PC, Q, greedy, open_engine, phase_ids, reference, step_phases, token_lists

PROMPTS = [PA, PB, PC, Q[:40], Q[:1], Q]
MAX_TOKENS = 24

CHAT_PROMPTS = [
    "Explain in two sentences why the sky is blue.",
    "Write a short poem about a lighthouse.",
    "What is the difference between a list and a tuple in Python?",
    "Name three things to pack for a rainy hike.",
    "Summarize the story of Romeo and Juliet in one sentence.",
    "How do I boil an egg so that the yolk stays soft?",
    "Give me a riddle about time.",
    "What causes the tides?",
]


@pytest.fixture(params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


def expected(family: str, prompts: list[list[int]], max_tokens: int = MAX_TOKENS) -> list[list[int]]:
    return [list(reference(family, tuple(prompt), max_tokens)) for prompt in prompts]


def test_alone_each_prompt_gives_hf_tokens(phase: Phase, family: str) -> None:
    with open_engine(phase, FAMILIES[family]()) as engine:
        alone = [engine.generate([greedy(prompt, MAX_TOKENS)])[0].token_ids for prompt in PROMPTS]
    assert_same_tokens(
        phase.build_engine(), FAMILIES[family], PROMPTS, alone, expected(family, PROMPTS), together=False
    )


def test_together_each_prompt_gives_hf_tokens(phase: Phase, family: str) -> None:
    with open_engine(phase, FAMILIES[family]()) as engine:
        together = token_lists(engine.generate([greedy(prompt, MAX_TOKENS) for prompt in PROMPTS]))
    assert_same_tokens(phase.build_engine(), FAMILIES[family], PROMPTS, together, expected(family, PROMPTS))


@pytest.mark.parametrize("max_batch_size", [1, 2, 4])
def test_batch_size_changes_nothing(phase: Phase, family: str, max_batch_size: int) -> None:
    config = EngineConfig(max_batch_size=max_batch_size)
    with open_engine(phase, FAMILIES[family](), max_batch_size=max_batch_size) as engine:
        outputs = token_lists(engine.generate([greedy(prompt, MAX_TOKENS) for prompt in PROMPTS]))
    assert_same_tokens(
        phase.build_engine(), FAMILIES[family], PROMPTS, outputs, expected(family, PROMPTS), config=config
    )


def test_order_of_arrival_changes_nothing(phase: Phase) -> None:
    prompts = [PA, PB, Q[:40], Q[:1]]
    with open_engine(phase, max_batch_size=3) as engine:
        for order in itertools.permutations(prompts):
            outputs = token_lists(engine.generate([greedy(prompt, 12) for prompt in order]))
            assert outputs == expected("llama", list(order), 12)


def test_a_short_sequence_is_not_changed_by_a_long_neighbour(phase: Phase, family: str) -> None:
    with open_engine(phase, FAMILIES[family]()) as engine:
        short, long = token_lists(engine.generate([greedy(Q[:1], MAX_TOKENS), greedy(Q + Q + PA, 40)]))
    assert short == expected(family, [Q[:1]])[0]
    assert long == expected(family, [Q + Q + PA], 40)[0]


@pytest.mark.parametrize("phase", step_phases, ids=phase_ids[1:])
@pytest.mark.parametrize("steps_before", [1, 2, 5, 11])
def test_joining_midway_changes_nobody(phase: Phase, family: str, steps_before: int) -> None:
    tokens: dict[str, list[int]] = {"early": [], "late": []}
    with open_engine(phase, FAMILIES[family]()) as engine:
        engine.add_request(Request(PA, SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True), request_id="early"))
        for step in itertools.count(1):
            for output in engine.step():
                tokens[output.request_id] += output.token_ids
            if step == steps_before:
                late = Request(Q[:40], SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True), request_id="late")
                engine.add_request(late)
            if step > steps_before and not engine.has_unfinished():
                break
    assert [tokens["early"], tokens["late"]] == expected(family, [PA, Q[:40]])


MADE_FOR: dict[str, tuple[str, dict[str, int], int | None]] = {  # family, field of its config, the longest sequence
    "seq_length": ("Bloom", {"seq_length": 64}, 64),
    "max_seq_len": ("Mpt", {"max_seq_len": 64}, 64),
    "nothing": ("Bloom", {}, None),
}
whole_model_phases = [phase for phase in PHASES if phase.number <= 6]


@pytest.mark.parametrize("phase", whole_model_phases, ids=lambda phase: phase.package[:7])
@pytest.mark.parametrize("named", MADE_FOR)
def test_a_model_whose_longest_sequence_has_another_name_or_none(phase: Phase, named: str) -> None:
    name, field, longest = MADE_FOR[named]
    model = tiny_alibi(name, **field)
    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        pytest.skip("this version of transformers cannot leave logits out for this family")
    if longest is None:
        with pytest.raises(SetupError, match="no longest sequence; set max_model_len"):
            phase.build_engine()(model, EngineConfig(), None)
    wanted = {"max_model_len": 64} if longest is None else {}
    with open_engine(phase, model, **wanted) as engine:
        outputs = engine.generate([greedy(PA, 12), greedy(Q[:60], 12)])
    assert token_lists(outputs) == [greedy_reference(model, PA, 12), greedy_reference(model, Q[:60], 4)]


def tiny_alibi(family: str, **changes: Any) -> Any:
    """Positions as a bias on the scores, which any length can have: such configs name their longest otherwise."""
    config = getattr(transformers, f"{family}Config")(
        vocab_size=97, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, **changes
    )
    model = getattr(transformers, f"{family}ForCausalLM")(config).to(torch.float64).eval()
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.35)
    return model


def test_every_length_of_output_is_a_prefix_of_the_longest(phase: Phase) -> None:
    with open_engine(phase) as engine:
        outputs = token_lists(engine.generate([greedy(PA, n) for n in range(1, MAX_TOKENS + 1)]))
    longest = expected("llama", [PA])[0]
    assert outputs == [longest[:n] for n in range(1, MAX_TOKENS + 1)]


@pytest.mark.parametrize("eos", [(62,), (11, 28), (91, 11), (96,)])
def test_any_eos_of_the_list_ends_where_hf_ends(phase: Phase, eos: tuple[int, ...]) -> None:
    model = FAMILIES["llama"]()
    model.generation_config.eos_token_id = list(eos)
    with open_engine(phase, model) as engine:
        outputs = engine.generate([greedy(p, MAX_TOKENS, ignore_eos=False) for p in (PA, PB)])
    assert token_lists(outputs) == [list(reference("llama", tuple(p), MAX_TOKENS, eos)) for p in (PA, PB)]
    for output in outputs:
        assert output.finish_reason == ("stop" if output.token_ids[-1] in eos else "length")


def test_streamed_tokens_are_the_generated_ones(phase: Phase, family: str) -> None:
    with open_engine(phase, FAMILIES[family]()) as engine:
        streamed = [token for output in engine.stream(greedy(Q[:40], MAX_TOKENS)) for token in output.token_ids]
    assert streamed == expected(family, [Q[:40]])[0]


chunking_phases = [phase for phase in step_phases if phase.number >= 4]


@pytest.mark.parametrize("phase", chunking_phases, ids=lambda phase: phase.package[:7])
@pytest.mark.parametrize(("chunk", "budget"), [(1, 1), (1, 8), (3, 4), (5, 7), (16, 64), (7, 3), (512, 512)])
def test_chunks_and_budgets_change_nothing(phase: Phase, family: str, chunk: int, budget: int) -> None:
    prompts = [PA, Q[:40], Q[:1], PB]
    sizes = {"prefill_chunk_size": chunk, "prefill_budget_tokens": budget, "max_batch_size": 3}
    with open_engine(phase, FAMILIES[family](), **sizes) as engine:
        outputs = token_lists(engine.generate([greedy(prompt, 12) for prompt in prompts]))
    config = EngineConfig(**sizes)
    assert_same_tokens(
        phase.build_engine(), FAMILIES[family], prompts, outputs, expected(family, prompts, 12), config=config
    )


@pytest.mark.parametrize("phase", chunking_phases, ids=lambda phase: phase.package[:7])
def test_one_step_runs_decodes_and_a_chunk_and_stays_exact(phase: Phase) -> None:
    mixed = 0
    tokens: dict[str, list[int]] = {"a": [], "b": []}
    with open_engine(phase, prefill_chunk_size=8, prefill_budget_tokens=9) as engine:
        plan = engine.scheduler.plan

        def watched() -> Any:
            nonlocal mixed
            planned = plan()
            mixed += {item.is_decode for item in planned.items} == {True, False}
            return planned

        engine.scheduler.plan = watched
        for name, prompt in (("a", PA), ("b", Q)):
            engine.add_request(Request(prompt, SamplingParams(max_tokens=24, ignore_eos=True), request_id=name))
        while engine.has_unfinished():
            for output in engine.step():
                tokens[output.request_id] += output.token_ids
    assert mixed >= 10
    assert [tokens["a"], tokens["b"]] == expected("llama", [PA, Q])


paging_phases = [phase for phase in PHASES if phase.number >= 6]


@pytest.mark.parametrize("phase", paging_phases, ids=lambda phase: phase.package[:7])
@pytest.mark.parametrize("kv_block_size", [1, 3, 7, 16, 32])
def test_block_size_changes_nothing(phase: Phase, family: str, kv_block_size: int) -> None:
    prompts = [PA, Q[:40], Q[:1], PB, Q]
    sizes = {"kv_block_size": kv_block_size, "prefill_chunk_size": 16, "max_batch_size": 4}
    with open_engine(phase, FAMILIES[family](), **sizes) as engine:
        outputs = token_lists(engine.generate([greedy(prompt, MAX_TOKENS) for prompt in prompts]))
    config = EngineConfig(**sizes)
    assert_same_tokens(
        phase.build_engine(), FAMILIES[family], prompts, outputs, expected(family, prompts), config=config
    )


@pytest.mark.parametrize("phase", paging_phases, ids=lambda phase: phase.package[:7])
@pytest.mark.parametrize("kv_block_size", [1, 3, 7])
def test_a_pool_that_holds_one_and_a_half_sequences_changes_nothing(phase: Phase, kv_block_size: int) -> None:
    prompts = [PA, PB, PC, Q[:23]]
    num_blocks = (46 + 20) // kv_block_size
    with open_engine(phase, kv_block_size=kv_block_size, kv_num_blocks=num_blocks) as engine:
        outputs = token_lists(engine.generate([greedy(prompt, MAX_TOKENS) for prompt in prompts]))
    assert outputs == expected("llama", prompts)


@pytest.mark.parametrize("phase", paging_phases, ids=lambda phase: phase.package[:7])
def test_prompts_and_outputs_around_block_edges(phase: Phase) -> None:
    lengths = [n for k in (1, 2, 5) for n in (4 * k - 1, 4 * k, 4 * k + 1)]
    requests = [greedy(Q[:length], max_tokens) for length in lengths for max_tokens in (1, 3, 4, 5)]
    with open_engine(phase, kv_block_size=4, max_batch_size=5, prefill_chunk_size=6) as engine:
        outputs = token_lists(engine.generate(requests))
    for request, output in zip(requests, outputs):
        assert output == expected("llama", [list(request.prompt_token_ids)], request.params.max_tokens)[0]


@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase.number >= 8], ids=lambda phase: phase.package[:7])
def test_every_step_is_one_forward_pass_with_prefills_and_decodes_in_it(phase: Phase) -> None:
    with open_engine(phase, prefill_chunk_size=8, prefill_budget_tokens=12, max_batch_size=4) as engine:
        forwards: list[int] = []
        forward = engine.runner.forward
        engine.runner.forward = lambda batch, cache: forwards.append(len(batch.token_ids)) or forward(batch, cache)
        for prompt in (PA, Q[:40], PB):
            engine.add_request(greedy(prompt, 12))
        steps = mixed = 0
        plan = engine.scheduler.plan
        plans: list[Any] = []
        engine.scheduler.plan = lambda: plans.append(plan()) or plans[-1]
        while engine.has_unfinished():
            engine.step()
            steps += 1
            mixed += len({item.is_decode for item in plans[-1].items}) == 2
            assert forwards[-1] == plans[-1].num_tokens, "no padding"
    assert len(forwards) == steps
    assert mixed >= 3


PRESSURE = {
    "swap": {"preemption_mode": "swap", "swap_num_blocks": 64},
    "recompute": {"preemption_mode": "recompute"},
    "swap pool full": {"preemption_mode": "swap", "swap_num_blocks": 3},
    "swap pool 0": {"preemption_mode": "swap", "swap_num_blocks": 0},
}
preempting_phases = [phase for phase in PHASES if phase.number >= 9]


@pytest.mark.parametrize("phase", preempting_phases, ids=lambda phase: phase.package[:7])
@pytest.mark.parametrize("pressure", PRESSURE)
@pytest.mark.parametrize("chunk", [3, 16, 512])
@pytest.mark.parametrize("kv_block_size", [1, 3, 7, 16])
def test_preemption_is_invisible(phase: Phase, pressure: str, chunk: int, kv_block_size: int) -> None:
    prompts = [PA, PB, PC, Q[:23]]
    num_blocks = -(-60 // kv_block_size)  # of 31 + 31 + 31 + 46 slots that they would like to have
    sizes = {"kv_block_size": kv_block_size, "kv_num_blocks": num_blocks, "prefill_chunk_size": chunk}
    with open_engine(phase, **sizes, **PRESSURE[pressure]) as engine:
        outputs = token_lists(engine.generate([greedy(prompt, MAX_TOKENS) for prompt in prompts]))
        assert engine.stats().num_preemptions >= 1
    assert_same_tokens(
        phase.build_engine(),
        FAMILIES["llama"],
        prompts,
        outputs,
        expected("llama", prompts),
        config=EngineConfig(**sizes, **PRESSURE[pressure]),
    )


@pytest.mark.parametrize("phase", preempting_phases, ids=lambda phase: phase.package[:7])
@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_preemption_is_invisible_in_every_family(phase: Phase, family: str, mode: str) -> None:
    prompts = [PA, PB, PC]
    with open_engine(
        phase, FAMILIES[family](), kv_block_size=4, kv_num_blocks=12, preemption_mode=mode, prefill_chunk_size=5
    ) as engine:
        outputs = token_lists(engine.generate([greedy(prompt, MAX_TOKENS) for prompt in prompts]))
        assert engine.stats().num_preemptions >= 1
    assert outputs == expected(family, prompts)


def test_several_completions_of_one_prompt_are_each_the_greedy_one(phase: Phase) -> None:
    with open_engine(phase, max_batch_size=2) as engine:
        several, beside = engine.generate([greedy(PA, 12, n=3), greedy(PB, 12)])
    assert [completion.token_ids for completion in several.outputs] == expected("llama", [PA], 12) * 3
    assert [completion.index for completion in several.outputs] == [0, 1, 2]
    assert beside.token_ids == expected("llama", [PB], 12)[0]


@pytest.fixture(scope="module")
def chat_prompt_ids(real_reference: Any) -> list[list[int]]:
    return [
        real_reference.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        for text in CHAT_PROMPTS
    ]


@pytest.fixture(scope="module")
def real_expected(real_reference: Any, chat_prompt_ids: list[list[int]]) -> list[list[int]]:
    model = real_reference.model
    return [greedy_reference(model, prompt, 64) for prompt in chat_prompt_ids]


def fresh_copy(loaded: Any) -> Callable[[], Any]:
    return lambda: copy.deepcopy(loaded.model)


@pytest.mark.real_model
def test_the_real_model_gives_hf_tokens_on_eight_chats_together(
    phase: Phase, real_model: Any, real_reference: Any, chat_prompt_ids: list[list[int]], real_expected: list[list[int]]
) -> None:
    num_tokens = 24 if 2 <= phase.number <= 6 else 64  # these run phase 1's forward pass, eight times a step
    expected_tokens = [tokens[:num_tokens] for tokens in real_expected]
    engine = phase.build_engine()(real_model.model, EngineConfig(), real_model.tokenizer)
    outputs = engine.generate([greedy(prompt, num_tokens) for prompt in chat_prompt_ids])
    engine.close()
    assert_same_tokens(
        phase.build_engine(), fresh_copy(real_reference), chat_prompt_ids, token_lists(outputs), expected_tokens
    )


@pytest.mark.real_model
def test_the_reference_is_never_near_a_tie_on_these_chats(
    real_reference: Any, chat_prompt_ids: list[list[int]], real_expected: list[list[int]]
) -> None:
    """Else the comparison above would test luck: fp32 noise on these logits is below 1e-4."""
    margins = [
        min(top2_margins(real_reference.model, prompt, output))
        for prompt, output in zip(chat_prompt_ids, real_expected)
    ]
    assert min(margins) > 1e-3
