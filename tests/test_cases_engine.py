"""Acceptance cases from public bug reports, the engine's part, named by their ids. Values are the cases' own.

The parts that need HTTP are in the server's tests.
"""

import asyncio
import itertools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from nbclient import NotebookClient
from transformers import LlamaForCausalLM

from shared.config import EngineConfig
from shared.errors import InvalidRequest, SetupError
from shared.model_loader import load_model
from shared.prompt_encoding import encode_chat, encode_text
from shared.reference import greedy_reference, top2_margins
from shared.registry import PHASES, Phase
from shared.request import Request, SamplingParams
from shared.tiny_models import tiny_llama
from tests.helpers import (
    PA,
    PB,
    PC,
    T0_OUTPUTS,
    Q,
    assert_alive,
    assert_clean,
    cyclic_model,
    greedy,
    letter_tokenizer,
    named,
    open_engine,
    phase_ids,
    reference,
    rope_fields,
    slow_down,
    step_phases,
    token_lists,
)
from tests.test_guards import ROOT

GREEDY_PA = T0_OUTPUTS["PA"]


def sampled(max_tokens: int, prompt: list[int] = PA, **params: Any) -> Request:
    return Request(prompt, SamplingParams(max_tokens=max_tokens, **{"ignore_eos": True} | params))


# -- scheduler ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
def test_sch_03_the_first_token_can_end_the_request(phase: Phase, streamed: bool) -> None:
    model = tiny_llama()
    model.generation_config.eos_token_id = 8
    with open_engine(phase, model) as engine:
        requests = [greedy(PA, 16, ignore_eos=False), greedy(PA, 1), greedy(PB, 4)]
        streams = engine.streams(requests)
        steps = [list(stream) for stream in streams] if streamed else []
        outputs = [stream.result() for stream in streams]
    assert [(o.token_ids, o.finish_reason) for o in outputs[:2]] == [([8], "stop"), ([8], "length")]
    assert outputs[2].token_ids == [52, 59, 73, 26]
    for stream in steps:
        assert [step.finish_reason is not None for step in stream].count(True) == 1


def test_sch_03_every_other_way_to_end_with_the_first_token(phase: Phase) -> None:
    model = tiny_llama()
    model.generation_config.eos_token_id = 8
    requests = [
        greedy(PA, 16, ignore_eos=False, n=2),
        greedy(PA, 16, stop_token_ids=[8]),
        greedy(PA, 1, n=2),
        greedy(PB, 4),
    ]
    with open_engine(phase, model) as engine:
        for _ in range(2):  # the second time, the prompt is cached where there is a cache
            *ended, beside = engine.generate(requests)
            found = [(c.token_ids, c.finish_reason) for output in ended for c in output.outputs]
            assert found == [([8], "stop")] * 3 + [([8], "length")] * 2
            assert beside.token_ids == [52, 59, 73, 26]


@pytest.mark.parametrize("phase", [p for p in step_phases if p.number >= 4], ids=lambda p: p.package[:7])
def test_sch_02_decodes_go_on_while_a_long_prompt_is_prefilled(phase: Phase) -> None:
    settings = {"prefill_budget_tokens": 16, "prefill_chunk_size": 8, "kv_block_size": 4, "kv_num_blocks": 128}
    with open_engine(phase, enable_prefix_caching=False, **settings) as engine:
        tokens: dict[str, list[int]] = {"a": [], "b": []}
        engine.add_request(Request(PA, SamplingParams(max_tokens=60, ignore_eos=True), request_id="a"))
        step_until(engine, tokens, lambda: len(tokens["a"]) == 4)
        engine.add_request(Request(Q, SamplingParams(max_tokens=2, ignore_eos=True), request_id="b"))
        before = len(tokens["a"])
        while not tokens["b"]:
            had = len(tokens["a"])
            step_until(engine, tokens, lambda had=had: len(tokens["a"]) > had, max_steps=1)
        assert len(tokens["a"]) - before >= 11
        step_until(engine, tokens, lambda: not engine.has_unfinished())
    assert tokens["b"] == [18, 83]
    assert tokens["a"] == list(reference("llama", tuple(PA), 60))


@pytest.mark.parametrize("phase", [p for p in step_phases if p.number >= 4], ids=lambda p: p.package[:7])
@pytest.mark.parametrize(("budget", "chunk"), [(4, 16), (9, 8), (17, 1)])
def test_sch_02_with_two_long_prompts_and_other_budgets(phase: Phase, budget: int, chunk: int) -> None:
    tokens: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    with open_engine(phase, prefill_budget_tokens=budget, prefill_chunk_size=chunk) as engine:
        engine.add_request(Request(PA, SamplingParams(max_tokens=200, ignore_eos=True, n=2), request_id="a"))
        step_until(engine, tokens, lambda: len(tokens["a"]) >= 4)
        for name, prompt in (("b", Q), ("c", Q[:40])):
            engine.add_request(Request(prompt, SamplingParams(max_tokens=2, ignore_eos=True), request_id=name))
        while not (tokens["b"] and tokens["c"]):
            had = len(tokens["a"])
            step_until(engine, tokens, lambda: True)
            assert len(tokens["a"]) == had + 2
        engine.abort("a")
        step_until(engine, tokens, lambda: not engine.has_unfinished())
    assert (tokens["b"], tokens["c"]) == ([18, 83], [37, 60])


def step_until(engine: Any, tokens: dict[str, list[int]], condition: Any, max_steps: int = 1000) -> None:
    """Step by hand, collecting each request's tokens, until the condition holds."""
    for _ in range(max_steps):
        for output in engine.step():
            tokens[output.request_id] += output.token_ids
        if condition():
            return
    raise AssertionError(f"not true after {max_steps} steps")


paging_phases = [p for p in PHASES if p.number >= 6]


@pytest.mark.parametrize("phase", paging_phases, ids=lambda p: p.package[:7])
def test_sch_01_a_prompt_over_the_whole_pool_is_refused_and_blocks_nobody(phase: Phase) -> None:
    with open_engine(phase, kv_block_size=4, kv_num_blocks=8, max_model_len=128) as engine:
        with pytest.raises(InvalidRequest, match="40 tokens, but the K/V pool holds 32") as refused:
            engine.stream(greedy(Q[:40], 4))
        assert refused.value.param == "prompt_token_ids"
        assert engine.generate([greedy(PA, 4)])[0].token_ids == [8, 62, 18, 72]
        assert_clean(engine)


@pytest.mark.parametrize("phase", paging_phases, ids=lambda p: p.package[:7])
def test_sch_01_a_slot_decides(phase: Phase) -> None:
    with open_engine(phase, kv_block_size=4, kv_num_blocks=8, max_model_len=128) as engine:
        for one_over in (greedy(Q[:33], 1), greedy(Q[:33], 1, n=2)):
            with pytest.raises(InvalidRequest, match="33 tokens"):
                engine.generate([greedy(PA, 4), one_over])
        assert_clean(engine)
        full, beside = engine.generate([greedy(Q[:32], 1), greedy(PA, 4)])
    assert tuple(full.token_ids) == reference("llama", tuple(Q[:32]), 1)
    assert beside.token_ids == [8, 62, 18, 72]


def test_sch_01_a_prompt_over_the_models_length_is_refused_where_there_is_no_pool_too(phase: Phase) -> None:
    with open_engine(phase, max_model_len=32) as engine:
        with pytest.raises(InvalidRequest, match="32 tokens") as refused:
            engine.stream(greedy(Q[:32], 4))
        assert refused.value.param == "prompt_token_ids"
        longest = engine.generate([greedy(Q[:31], 4)])[0]
        assert (tuple(longest.token_ids), longest.finish_reason) == (reference("llama", tuple(Q[:31]), 1), "length")
        assert_alive(engine)


@pytest.mark.parametrize("phase", [p for p in paging_phases if p.number < 9], ids=lambda p: p.package[:7])
def test_a_request_that_could_outgrow_the_pool_is_refused_where_nobody_gives_memory_back(phase: Phase) -> None:
    with open_engine(phase, kv_block_size=4, kv_num_blocks=8) as engine:
        assert engine.generate([greedy(PA, 25)])[0].token_ids[:24] == GREEDY_PA, "32 slots, the last token needs none"
        with pytest.raises(InvalidRequest, match="8 prompt tokens and 26 more need 33 slots") as refused:
            engine.generate([greedy(PA, 26)])
        assert refused.value.param == "max_tokens"
        assert_alive(engine)


# -- blocks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", paging_phases, ids=lambda p: p.package[:7])
@pytest.mark.parametrize("n", [1, 3])
def test_kv_01_kv_02_an_abort_gives_all_blocks_back(phase: Phase, n: int) -> None:
    with open_engine(phase, kv_block_size=4, kv_num_blocks=400, prefill_chunk_size=4) as engine:
        for steps in (1, 3, 120):  # in prefill, and in decode
            engine.add_request(
                Request(Q * 4, SamplingParams(max_tokens=60, ignore_eos=True, n=n, temperature=1.0), request_id="x")
            )
            for _ in range(steps):
                engine.step()
            assert engine.stats().kv_blocks_used > 0
            engine.abort("x")
            assert_clean(engine)
        assert_alive(engine)


# -- sampling -----------------------------------------------------------------------------------------


def test_smp_01_tiny_temperatures_are_greedy(phase: Phase) -> None:
    temperatures = [1e-3, 1e-4, 1e-5, 1e-8, 1e-38, 1e-40, 1.0, 0.0]
    with open_engine(phase, tiny_llama().to(torch.float32), max_batch_size=8) as engine:
        outputs = engine.generate([sampled(8, temperature=t, seed=1) for t in temperatures])
    for temperature, output in zip(temperatures, outputs):
        if temperature != 1.0:
            assert output.token_ids == GREEDY_PA[:8], temperature
    assert outputs[6].token_ids != GREEDY_PA[:8]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_smp_01_in_every_element_type_and_with_filters(phase: Phase, dtype: torch.dtype) -> None:
    """After a prompt without near-ties in any of the types: between two equal logits a draw may go either way."""
    cold = [sampled(8, PC, temperature=t) for t in (1e-3, 1.1e-5, 9e-6, 1e-37, 1e-300, 5e-324)]
    cold += [sampled(8, PC, temperature=1e-4, **filters) for filters in ({"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.5})]
    with open_engine(phase, tiny_llama().to(dtype), max_batch_size=16) as engine:
        expected = engine.generate([greedy(PC, 8)])[0].token_ids
        *outputs, hot = engine.generate([*cold, sampled(8, PC, temperature=1e308, seed=1)])
    assert min(top2_margins(tiny_llama().to(dtype), PC, expected)) > 0.3
    assert token_lists(outputs) == [expected] * len(cold)
    assert len(hot.token_ids) == 8


def test_smp_02_zero_is_a_value_and_not_unset(phase: Phase) -> None:
    with open_engine(phase) as engine:
        narrow = engine.generate([sampled(8, temperature=1.0, seed=3, top_p=p) for p in (0.0, 1e-9)])
        full, omitted = engine.generate(
            [sampled(8, temperature=1.0, seed=3, top_p=1.0), sampled(8, temperature=1.0, seed=3)]
        )
        zero_seed = engine.generate([sampled(8, temperature=1.0, seed=0) for _ in range(2)])
        cold = engine.generate([sampled(8, temperature=0, seed=3)])
    assert token_lists(narrow) == [GREEDY_PA[:8]] * 2
    assert full.token_ids == omitted.token_ids != GREEDY_PA[:8]
    assert zero_seed[0].token_ids == zero_seed[1].token_ids
    assert token_lists(cold) == [GREEDY_PA[:8]]
    for value in (1.5, -0.1, float("nan")):
        with pytest.raises(InvalidRequest) as refused:
            SamplingParams(top_p=value)
        assert refused.value.param == "top_p"


def test_smp_03_any_top_k_in_any_company(phase: Phase) -> None:
    params: list[dict[str, int]] = [{"top_k": k} for k in (97, 98, 9999999, 0, -1)]
    params += [{}, {"top_k": 1}, {"top_k": 3}, {"top_k": 2**31}, {"top_k": 2**70}]
    requests = [sampled(6, temperature=1.0, seed=5, **p) for p in params]
    with open_engine(phase, max_batch_size=16) as engine:
        solo = [engine.generate([request])[0].token_ids for request in requests]
        batch = token_lists(engine.generate([*requests, greedy(PB, 6)]))
        assert_alive(engine)
    assert all(tokens == solo[0] for tokens in solo[:6])
    assert solo[8] == solo[9] == solo[0], "far over what fits into 32 or 64 bits"
    assert solo[6] == [8, 62, 18, 72, 11, 28]
    assert batch == [*solo, T0_OUTPUTS["PB"][:6]]
    with pytest.raises(InvalidRequest) as refused:
        SamplingParams(top_k=-5)
    assert refused.value.param == "top_k"


def test_smp_04_a_seeded_request_does_not_depend_on_its_neighbours(phase: Phase) -> None:
    request = sampled(16, temperature=0.8, seed=42)
    with open_engine(phase, max_batch_size=8) as engine:
        alone = engine.generate([request])[0].token_ids
        neighbours = [sampled(16, prompt, temperature=1.0) for prompt in (PA, PB, PC, Q[:40], Q[:3], Q, PB)]
        crowded = engine.generate([*neighbours[:3], request, *neighbours[3:]])[3].token_ids
        coming_and_going = [sampled(n, PB, temperature=1.0) for n in (1, 2, 3, 5, 8, 13, 4, 6, 7, 9)]
        changing = engine.generate([*coming_and_going[:5], request, *coming_and_going[5:]])[5].token_ids
        torch.manual_seed(0)
        again = engine.generate([request])[0].token_ids
        other = engine.generate([sampled(16, temperature=0.8, seed=43)])[0].token_ids
    assert crowded == changing == again == alone
    assert other != alone


@pytest.mark.parametrize("phase", step_phases, ids=phase_ids[1:])
def test_smp_04_the_users_own_random_numbers_do_not_matter_between_steps(phase: Phase) -> None:
    tokens: dict[str, list[int]] = {"a": [], "b": []}
    with open_engine(phase) as engine:
        for name in tokens:
            params = SamplingParams(max_tokens=16, temperature=0.8, seed=42, ignore_eos=True)
            engine.add_request(Request(PA, params, request_id=name))
            while engine.has_unfinished():
                if name == "b":
                    torch.manual_seed(1)
                step_until(engine, tokens, lambda: True)
    assert tokens["a"] == tokens["b"]


def test_smp_05_generation_config_does_not_penalize_unasked(phase: Phase, tmp_path: Path) -> None:
    save(tiny_llama(), tmp_path, generation_config={"repetition_penalty": 1.5})
    with open_engine(phase, load_saved(tmp_path)) as engine:
        unset, explicit = engine.generate([greedy(PA, 12), greedy(PA, 12, repetition_penalty=1.0)])
        penalized = engine.generate([greedy(PA, 12, repetition_penalty=1.5)])[0].token_ids
    assert unset.token_ids == explicit.token_ids == [8, 62, 18, 72, 11, 28, 59, 91, 7, 4, 86, 95]
    assert penalized == [46, 37, 56, 86, 39, 71, 73, 15, 88, 95, 25, 14]


def test_smp_05_nothing_else_is_taken_from_generation_config(phase: Phase, tmp_path: Path) -> None:
    others = {"do_sample": True, "temperature": 0.6, "top_k": 20, "max_new_tokens": 3, "suppress_tokens": [8]}
    save(tiny_llama(), tmp_path, generation_config=others)
    with open_engine(phase, load_saved(tmp_path)) as engine:
        assert engine.generate([greedy(PA, 12)])[0].token_ids == GREEDY_PA[:12]


# -- text ---------------------------------------------------------------------------------------------


@pytest.mark.real_model
def test_str_01_characters_of_several_tokens_come_whole(phase: Phase, real_model: Any) -> None:
    with open_engine(phase, real_model.model, real_model.tokenizer, kv_num_blocks=64) as engine:
        prompt = encode_chat(real_model.tokenizer, [{"role": "user", "content": "Repeat exactly: 😀😀😀😀"}])
        request = Request(prompt, SamplingParams(max_tokens=24))
        stream = engine.stream(request)
        deltas = [output.text for output in stream]
        output = stream.result()
        whole = engine.generate([request])[0]
    assert "".join(deltas) == output.text == whole.text == "Repeat exactly: 😀😀😀😀"
    assert not any("�" in delta for delta in deltas)
    assert output.token_ids == [48010, 3869, 42, 15107, 242, 218, 10813, 242, 218, 10813, 242, 218, 10813, 242, 218, 2]
    assert output.finish_reason == "stop"


@pytest.mark.real_model
def test_str_03_the_leading_space_is_kept(phase: Phase, real_model: Any) -> None:
    tokenizer = real_model.tokenizer
    with open_engine(phase, real_model.model, tokenizer, kv_num_blocks=64) as engine:
        prompt = encode_text(tokenizer, "The capital of France is")
        request = Request(prompt, SamplingParams(max_tokens=8))
        deltas = [output.text for output in engine.stream(request)]
        output = engine.generate([request])[0]
    assert output.token_ids == [7042, 30, 198, 198, 504, 2988, 314, 42]
    assert "".join(deltas) == output.text == " Paris.\n\nThe answer is:"
    assert "The capital of France is" + output.text == tokenizer.decode(prompt + output.token_ids)


# -- numerics -----------------------------------------------------------------------------------------


def test_num_01_head_dim_comes_from_the_config(phase: Phase) -> None:
    with open_engine(phase) as engine:
        outputs = engine.generate([greedy(prompt, 24) for prompt in (PA, PB, PC)])
    assert token_lists(outputs) == list(T0_OUTPUTS.values())


@pytest.mark.parametrize("changes", [{"head_dim": None}, {"head_dim": 32}, {"num_key_value_heads": 1}], ids=str)
def test_num_01_other_shapes_of_heads(phase: Phase, changes: dict[str, Any]) -> None:
    with open_engine(phase, tiny_llama(**changes)) as engine:
        outputs = engine.generate([greedy(prompt, 24) for prompt in (PA, PB, PC)])
    model = tiny_llama(**changes)
    assert token_lists(outputs) == [greedy_reference(model, prompt, 24) for prompt in (PA, PB, PC)]


def test_num_01_kv_bytes_per_token() -> None:
    from shared.kv_sizing import kv_bytes_per_token

    config = tiny_llama().config
    assert kv_bytes_per_token(config, itemsize=8) == 2 * 2 * 2 * 16 * 8
    config.head_dim = None
    assert kv_bytes_per_token(config, itemsize=4) == 2 * 2 * 2 * (48 // 4) * 4


@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_theta"])
def test_num_02_rope_theta_survives_both_spellings(phase: Phase, tmp_path: Path, spelling: str) -> None:
    rope = {"rope_type": "default", "rope_theta": 500000.0}
    save(tiny_llama(**rope_fields(rope)), tmp_path)
    spelled: dict[str, Any] = {"rope_parameters": rope} if spelling == "rope_parameters" else {"rope_theta": 500000.0}
    rewrite(
        tmp_path / "config.json",
        lambda c: {k: v for k, v in c.items() if not k.startswith("rope_")} | spelled,
    )
    with open_engine(phase, load_saved(tmp_path)) as engine:
        assert engine.generate([greedy(Q, 8)])[0].token_ids == [52, 44, 50, 56, 52, 23, 4, 72]


NUM_03 = {
    (5,): [62, 92, 56, 71, 56, 1],
    tuple(PA[:7]): [39, 25, 30, 37, 75, 84],
    tuple(Q[:64]): [9, 20, 2, 15, 78, 75],
}


@pytest.mark.parametrize("chunk", [3, 64])
def test_num_03_neighbours_do_not_leak(phase: Phase, chunk: int) -> None:
    with open_engine(phase, prefill_chunk_size=chunk, max_batch_size=3) as engine:
        for prompt, expected in NUM_03.items():
            assert engine.generate([greedy(prompt, 6)])[0].token_ids == expected
        engine.generate([greedy(Q[n : n + 9], 5) for n in range(50)])
        for order in itertools.permutations(NUM_03):
            outputs = engine.generate([greedy(prompt, 6) for prompt in order])
            assert token_lists(outputs) == [NUM_03[prompt] for prompt in order]


# -- model loading ------------------------------------------------------------------------------------


def test_lod_01_every_eos_of_the_list_counts(phase: Phase, tmp_path: Path) -> None:
    save(tiny_llama(), tmp_path, generation_config={"eos_token_id": [2, 28]})
    with open_engine(phase, load_saved(tmp_path)) as engine:
        output = engine.generate([greedy(PA, 24, ignore_eos=False)])[0]
    assert (output.token_ids, output.finish_reason) == ([8, 62, 18, 72, 11, 28], "stop")
    (tmp_path / "generation_config.json").unlink()
    with open_engine(phase, load_saved(tmp_path)) as engine:
        output = engine.generate([greedy(PA, 24, ignore_eos=False)])[0]
    assert (output.token_ids, output.finish_reason) == (GREEDY_PA, "length")


@pytest.mark.parametrize("eos", ["28", [28, "2"], [[28]], True, 28.0])
def test_lod_01_an_eos_that_is_no_id_is_refused_and_not_overrun(phase: Phase, eos: Any) -> None:
    model = tiny_llama()
    model.generation_config.eos_token_id = eos
    with pytest.raises(SetupError, match=r"eos_token_id: .* is no token id"):
        phase.build_engine()(model, EngineConfig(kv_num_blocks=8))


@pytest.mark.parametrize("head_in_file", [False, True])
def test_lod_02_tied_embeddings(phase: Phase, tmp_path: Path, head_in_file: bool) -> None:
    save(tiny_llama(tie_word_embeddings=True), tmp_path)
    if head_in_file:
        add_head(tmp_path / "model.safetensors")
    with open_engine(phase, load_saved(tmp_path)) as engine:
        assert engine.generate([greedy(PA, 8)])[0].token_ids == [65, 75, 32, 50, 72, 20, 75, 39]


def save(model: LlamaForCausalLM, folder: Path, generation_config: dict[str, Any] | None = None) -> None:
    model.save_pretrained(folder)
    rewrite(folder / "generation_config.json", lambda config: config | (generation_config or {}))


def rewrite(path: Path, change: Any) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def load_saved(folder: Path) -> Any:
    return load_model(str(folder), dtype="float64", device="cpu").model


def add_head(path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    assert "lm_head.weight" not in tensors
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, path, metadata={"format": "pt"})


# -- notebooks ----------------------------------------------------------------------------------------


def test_nbk_01_generate_works_inside_a_running_event_loop(phase: Phase) -> None:
    async def main(engine: Any) -> list[int]:
        return engine.generate([greedy(PA, 4)])[0].token_ids

    with open_engine(phase) as engine:
        assert [asyncio.run(main(engine)) for _ in range(2)] == [[8, 62, 18, 72]] * 2


def test_nbk_01_a_notebook_cell_can_run_twice() -> None:
    setup = (
        "from shared.config import EngineConfig; from shared.registry import PHASES\n"
        "from shared.tiny_models import tiny_llama; from tests.helpers import PA, greedy\n"
        "engines = [phase.build_engine()(tiny_llama(), EngineConfig()) for phase in PHASES]"
    )
    cell = "assert all(e.generate([greedy(PA, 4)])[0].token_ids == [8, 62, 18, 72] for e in engines)"
    cells = [nbformat.v4.new_code_cell(source) for source in (setup, cell, cell)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(ROOT)}}).execute()


NBK_02 = """
import os, signal, threading, time
from shared.config import EngineConfig
from shared.registry import PHASES
from shared.tiny_models import tiny_llama
from tests.helpers import PA, PB, assert_clean, greedy, slow_down

for phase in PHASES:
    engine = phase.build_engine()(tiny_llama(), EngineConfig())
    slow_down(engine)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    started = time.perf_counter()
    try:
        engine.generate([greedy(PA, 400)])
    except KeyboardInterrupt:
        assert time.perf_counter() - started < 2.5
        outputs = engine.generate([greedy(PB, 4)])
        assert [output.token_ids for output in outputs] == [[52, 59, 73, 26]], outputs
        assert_clean(engine)
        print(phase.number, flush=True)
print("done", flush=True)
"""


def test_nbk_02_after_ctrl_c_the_engine_is_usable_and_the_interpreter_exits() -> None:
    lines, exit_code = run_until(NBK_02, "done")
    assert lines == [str(phase.number) for phase in PHASES]
    assert exit_code == 0


ABANDONED = """
from shared.config import EngineConfig
from shared.registry import PHASES
from shared.tiny_models import tiny_llama
from tests.helpers import PA, greedy, slow_down

streams = []
for phase in PHASES:
    engine = phase.build_engine()(tiny_llama(), EngineConfig())
    slow_down(engine)
    streams.append(engine.stream(greedy(PA, 400)))
    next(streams[-1])
print("left", flush=True)
"""


def test_abandoned_streams_do_not_keep_the_interpreter() -> None:
    assert run_until(ABANDONED, "left") == ([], 0)


def run_until(program: str, last_line: str) -> tuple[list[str], int]:
    """The lines a program prints before `last_line`, and its exit code: it must exit within 2 s of that line."""
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    lines: list[str] = []
    for line in process.stdout or ():
        if line.strip() == last_line:
            break
        lines.append(line.strip())
    return lines, process.wait(timeout=2)


# -- concurrency --------------------------------------------------------------------------------------


def test_con_01_a_second_request_with_a_live_id_is_refused_and_the_first_unharmed(phase: Phase) -> None:
    with open_engine(phase) as engine:
        slow_down(engine, 0.002)
        first = engine.stream(named("x", PA, 24))
        with pytest.raises(InvalidRequest) as refused:
            engine.stream(named("x", PB, 24))
        assert refused.value.param == "request_id"
        with pytest.raises(InvalidRequest):
            engine.generate([Request(PA, request_id="y"), Request(PB, request_id="y")])
        assert first.result().token_ids == GREEDY_PA
        assert engine.generate([named("x", PB, 24)])[0].token_ids == T0_OUTPUTS["PB"]
        assert_clean(engine)
        assert engine.stats().generated_tokens == 48
        assert_alive(engine)


# -- swap and preemption ------------------------------------------------------------------------------

preempting_phases = [p for p in PHASES if p.number >= 9]
TIGHT = {"kv_block_size": 4, "kv_num_blocks": 10}


@pytest.mark.parametrize("phase", preempting_phases, ids=lambda p: p.package[:7])
@pytest.mark.parametrize("swap_num_blocks", [0, 1, 3])
@pytest.mark.timeout(30)
def test_swp_01_a_full_swap_space_stalls_nobody(phase: Phase, swap_num_blocks: int) -> None:
    with open_engine(phase, **TIGHT, swap_num_blocks=swap_num_blocks) as engine:
        outputs = engine.generate([greedy(prompt, 24) for prompt in (PA, PB, PC)])
        assert engine.stats().num_preemptions >= 1
    assert token_lists(outputs) == list(T0_OUTPUTS.values())


SWP_02 = [(PHASES[-2], True, 0)] + [(PHASES[-1], caching, k) for caching in (False, True) for k in (0, 3)]


@pytest.mark.parametrize(
    ("phase", "caching", "k"), SWP_02, ids=[f"{p.package[:7]}-cache {c}-ngram {k}" for p, c, k in SWP_02]
)
@pytest.mark.parametrize("mode", ["swap", "recompute"])
@pytest.mark.parametrize("chunk", [5, 512])
def test_swp_02_no_token_is_doubled_or_lost_by_preemption(
    phase: Phase, caching: bool, k: int, mode: str, chunk: int
) -> None:
    settings = {"preemption_mode": mode, "swap_num_blocks": 32, "prefill_chunk_size": chunk}
    settings |= {"enable_prefix_caching": caching, **(spec_settings("ngram", k) if k else {})}
    with open_engine(phase, **TIGHT, **settings) as engine:
        streams = engine.streams([greedy(prompt, 24) for prompt in (PA, PB, PC)])
        steps = [list(stream) for stream in streams]
        outputs = [stream.result() for stream in streams]
        assert engine.stats().num_preemptions >= 1
        assert engine.stats().prompt_tokens == 24
        assert engine.stats().generated_tokens == 72
    for stream, output, expected in zip(steps, outputs, T0_OUTPUTS.values()):
        assert [token for step in stream for token in step.token_ids] == output.token_ids == expected
        assert output.metrics.first_token_time == stream[0].time


@pytest.mark.parametrize("phase", preempting_phases, ids=lambda p: p.package[:7])
@pytest.mark.parametrize(("kv_block_size", "kv_num_blocks"), [(8, 5), (1, 33), (4, 8)])
@pytest.mark.parametrize("swap_num_blocks", [0, 2, 40])
def test_swp_01_in_pools_of_other_shapes(
    phase: Phase, kv_block_size: int, kv_num_blocks: int, swap_num_blocks: int
) -> None:
    settings = {"kv_block_size": kv_block_size, "kv_num_blocks": kv_num_blocks, "swap_num_blocks": swap_num_blocks}
    with open_engine(phase, **settings) as engine:
        outputs = engine.generate([greedy(PA, 24, n=2), *(greedy(prompt, 24) for prompt in (PB, PC))])
        assert engine.stats().num_preemptions >= 1
    assert [completion.token_ids for completion in outputs[0].outputs] == [GREEDY_PA] * 2
    assert token_lists(outputs[1:]) == list(T0_OUTPUTS.values())[1:]


@pytest.mark.parametrize("phase", preempting_phases, ids=lambda p: p.package[:7])
@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_smp_04_a_seeded_request_that_is_preempted_gives_the_same_tokens(phase: Phase, mode: str) -> None:
    request = sampled(16, temperature=0.8, seed=42)
    with open_engine(phase, **TIGHT, preemption_mode=mode) as engine:
        alone = engine.generate([request])[0].token_ids
        victims: list[str] = []
        engine.events.subscribe(lambda event: victims.append(event.request_id) if event.kind == "preempted" else None)
        streams = engine.streams([greedy(PB, 24), greedy(PC, 24), request])
        crowded = [stream.result().token_ids for stream in streams][2]
    assert streams[2].request_id in victims
    assert crowded == alone


@pytest.mark.parametrize("phase", preempting_phases, ids=lambda p: p.package[:7])
def test_a_request_that_outgrows_the_pool_alone_ends_with_length_and_what_it_has(phase: Phase) -> None:
    with open_engine(phase, kv_block_size=4, kv_num_blocks=5) as engine:
        output = engine.generate([greedy(PA, 100)])[0]
    assert (output.token_ids, output.finish_reason) == (GREEDY_PA[:13], "length"), "20 slots, the last needs none"


@pytest.mark.parametrize("phase", preempting_phases, ids=lambda p: p.package[:7])
def test_an_abort_while_swapped_frees_host_memory(phase: Phase) -> None:
    with open_engine(phase, **TIGHT, swap_num_blocks=32) as engine:
        for name, prompt in (("a", PA), ("b", PB), ("c", PC)):
            params = SamplingParams(max_tokens=24, ignore_eos=True)
            engine.add_request(Request(prompt, params, request_id=name))
        while engine.stats().num_swapped == 0:
            engine.step()
        swapped = engine.scheduler.swapped[0].request_id
        engine.abort(swapped)
        assert engine.stats().swap_blocks_used == 0
        for name in {"a", "b", "c"} - {swapped}:
            engine.abort(name)


# -- prefix cache -------------------------------------------------------------------------------------

final_phases = [p for p in PHASES if p.number >= 12]
for_final_phases = pytest.mark.parametrize("phase", final_phases, ids=lambda p: p.package[:7])


@for_final_phases
@pytest.mark.parametrize("n", [1, 4])
def test_kv_03_a_partly_filled_block_has_one_writer(phase: Phase, n: int) -> None:
    prompt = PA[:6]
    if n == 1:
        requests = [sampled(12, prompt, temperature=1.0, seed=seed) for seed in (1, 2, 3, 4)]
    else:
        requests = [sampled(12, prompt, temperature=1.0, seed=1, n=n)]
    tables: list[dict[str, list[int]]] = []
    with open_engine(phase, kv_block_size=4) as engine:
        streams = engine.streams(requests)
        execute = engine.runner.execute

        def watched(plan: Any) -> Any:
            tables.append({name: list(table) for name, table in engine.scheduler.allocator.block_tables.items()})
            return execute(plan)

        engine.runner.execute = watched
        together = [completion.token_ids for stream in streams for completion in stream.result().outputs]
    alone = []
    for request in requests:
        with open_engine(phase, kv_block_size=4) as engine:
            alone += [completion.token_ids for completion in engine.generate([request])[0].outputs]
    assert together == alone
    for step in tables:
        owners = Counter(block for table in step.values() for block in table)
        shared = {block for block, num_tables in owners.items() if num_tables > 1}
        assert shared <= {table[0] for table in step.values()}
    if n == 4:
        assert any(len(step) == 4 and len({table[0] for table in step.values()}) == 1 for step in tables)


@for_final_phases
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize(("kv_block_size", "length"), [(4, 7), (16, 18), (16, 32), (2, 5)])
def test_kv_03_with_other_tails(phase: Phase, caching: bool, kv_block_size: int, length: int) -> None:
    requests = [sampled(12, Q[:length], temperature=1.0, seed=seed) for seed in (1, 2)]
    requests.append(sampled(12, Q[:length], temperature=1.0, seed=3, n=4))

    def tokens(engine: Any) -> list[list[list[int]]]:
        return [[completion.token_ids for completion in output.outputs] for output in engine.generate(requests)]

    with open_engine(PHASES[1]) as engine:
        alone = tokens(engine)
    with open_engine(phase, kv_block_size=kv_block_size, enable_prefix_caching=caching) as engine:
        assert tokens(engine) == tokens(engine) == alone


@for_final_phases
def test_pfx_01_a_full_hit_leaves_a_token_to_compute(phase: Phase) -> None:
    with open_engine(phase, kv_block_size=4) as engine:
        for prompt, most in ((PA, 7), (Q[:4], 3), (Q[:12], 11)):
            outputs = [engine.generate([greedy(prompt, 6)])[0] for _ in range(3)]
            assert all(output.token_ids == outputs[0].token_ids for output in outputs)
            assert all(output.num_cached_tokens <= most for output in outputs)
            assert outputs[0].prompt_token_ids == list(prompt)
            if prompt is PA:
                assert outputs[0].token_ids == [8, 62, 18, 72, 11, 28]
                assert [output.num_cached_tokens for output in outputs] == [0, 4, 4]


@for_final_phases
@pytest.mark.parametrize("kv_block_size", [1, 2, 8, 16])
def test_pfx_01_full_hits_in_blocks_of_other_sizes(phase: Phase, kv_block_size: int) -> None:
    with open_engine(phase, kv_block_size=kv_block_size) as engine:
        for prompt in (PA, Q[:16], Q[:48], Q[:1]):
            expected = list(reference("llama", tuple(prompt), 6))
            for _ in range(2):
                alone, several = engine.generate([greedy(prompt, 6), greedy(prompt, 6, n=2)])
                assert [alone.token_ids, *(c.token_ids for c in several.outputs)] == [expected] * 3
                assert alone.num_cached_tokens < len(prompt)
        turn = engine.generate([greedy(PA, 24)])[0].token_ids
        after = engine.generate([greedy([*PA, *turn, 9], 6)])[0]
        assert tuple(after.token_ids) == reference("llama", (*PA, *turn, 9), 6)
        assert after.num_cached_tokens == 31 // kv_block_size * kv_block_size, "its own output is cached, too"


@for_final_phases
def test_pfx_03_the_same_prompt_twice_in_one_step(phase: Phase) -> None:
    with open_engine(phase, kv_block_size=4, prefill_budget_tokens=256) as engine:
        twice = engine.generate([greedy(Q[:40], 8)] * 2)
        third = engine.generate([greedy(Q[:40], 8)])[0]
    assert token_lists([*twice, third]) == [[37, 60, 59, 51, 15, 62, 83, 8]] * 3
    assert third.num_cached_tokens in (36, 39)


@for_final_phases
@pytest.mark.parametrize("kv_num_blocks", [64, 16], ids=["room", "pressure"])
@pytest.mark.parametrize("chunk", [3, 256])
def test_pfx_03_many_of_one_beginning_in_one_step(phase: Phase, kv_num_blocks: int, chunk: int) -> None:
    settings = {"kv_block_size": 4, "kv_num_blocks": kv_num_blocks, "prefill_chunk_size": chunk}
    prompts = [Q[:40], [*Q[:40], 7], Q[:40], Q[:23]]
    with open_engine(phase, **settings, prefill_budget_tokens=256) as engine:
        for _ in range(2):
            outputs = engine.generate([*(greedy(prompt, 8) for prompt in prompts), greedy(Q[:40], 8, n=3)])
            assert [tuple(o.token_ids) for o in outputs[:4]] == [reference("llama", tuple(p), 8) for p in prompts]
            assert [c.token_ids for c in outputs[4].outputs] == [[37, 60, 59, 51, 15, 62, 83, 8]] * 3


@for_final_phases
@pytest.mark.parametrize("first_is_aborted", [False, True])
def test_pfx_04_a_block_is_shared_only_once_it_is_computed(phase: Phase, first_is_aborted: bool) -> None:
    tokens: dict[str, list[int]] = {"a": [], "b": []}
    with open_engine(phase, kv_block_size=4, prefill_chunk_size=8, prefill_budget_tokens=16) as engine:
        engine.add_request(Request(Q, SamplingParams(max_tokens=4, ignore_eos=True), request_id="a"))
        for _ in range(3):
            engine.step()
        num_computed = engine.scheduler.running[0].num_computed_tokens
        engine.add_request(Request([*Q, 1], SamplingParams(max_tokens=4, ignore_eos=True), request_id="b"))
        while len(engine.scheduler.running) < 2:  # until nothing that it shares is coming
            step_until(engine, tokens, lambda: True)
        assert engine.scheduler.running[1].num_cached_tokens <= num_computed
        assert engine.scheduler.running[1].num_cached_tokens > 0
        if first_is_aborted:
            step_until(engine, tokens, lambda: True)
            engine.abort("a")
        step_until(engine, tokens, lambda: not engine.has_unfinished())
    assert tokens["b"] == [48, 15, 23, 4]


@for_final_phases
@pytest.mark.parametrize("num_steps", [1, 2, 5, 11, 12, 13])
@pytest.mark.parametrize("num_more", [0, 1, 2])
def test_pfx_04_an_abort_at_any_other_step(phase: Phase, num_steps: int, num_more: int) -> None:
    tokens: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    settings = {"kv_block_size": 4, "prefill_chunk_size": 8, "prefill_budget_tokens": 16, "kv_num_blocks": 60}
    with open_engine(phase, **settings) as engine:
        engine.add_request(Request(Q, SamplingParams(max_tokens=4, ignore_eos=True), request_id="a"))
        for _ in range(num_steps):
            engine.step()
        engine.add_request(Request([*Q, 1], SamplingParams(max_tokens=4, ignore_eos=True), request_id="b"))
        engine.add_request(Request(Q[:40], SamplingParams(max_tokens=4, ignore_eos=True), request_id="c"))
        for _ in range(num_more):
            step_until(engine, tokens, lambda: True)
        engine.abort("a")
        step_until(engine, tokens, lambda: not engine.has_unfinished())
    assert tokens["b"] == [48, 15, 23, 4]
    assert tokens["c"] == [37, 60, 59, 51]


@for_final_phases
def test_smp_04_a_seeded_request_is_the_same_the_second_time_with_its_prompt_cached(phase: Phase) -> None:
    request = sampled(16, temperature=0.8, seed=42)
    with open_engine(phase, kv_block_size=4) as engine:
        first, second = (engine.generate([request])[0] for _ in range(2))
    assert second.num_cached_tokens > 0
    assert first.token_ids == second.token_ids


# -- speculation --------------------------------------------------------------------------------------


def spec_settings(method: str, k: int) -> dict[str, Any]:
    return {"speculative_method": method, "num_speculative_tokens": k, "adaptive_speculation": False}


def letters_engine(phase: Phase, method: str, k: int, num_letters: int = 20, eos: int = 2) -> Any:
    model, draft = cyclic_model(num_letters), cyclic_model(num_letters)
    model.generation_config.eos_token_id = eos
    return open_engine(phase, model, letter_tokenizer(num_letters), draft, **spec_settings(method, k))


def letters(text: str, base: int = 10) -> list[int]:
    return [base + ord(letter) - ord("a") for letter in text]


@for_final_phases
@pytest.mark.parametrize("method", ["off", "ngram", "draft"])
@pytest.mark.parametrize("k", range(1, 9))
def test_spc_01_an_eos_inside_a_draft_ends_there(phase: Phase, method: str, k: int) -> None:
    with letters_engine(phase, method, k, eos=16) as engine:
        steps = list(engine.stream(Request(letters("abcdefghabcd"), SamplingParams(max_tokens=12))))
    assert [token for step in steps for token in step.token_ids] == [14, 15, 16]
    assert [step.finish_reason for step in steps if step.finish_reason] == ["stop"]


@for_final_phases
@pytest.mark.parametrize(
    ("eos", "tokens", "reason"), [(17, [15, 16, 17], "stop"), (22, [15, 16, 17, 18, 19], "length")]
)
def test_spc_02_the_first_end_in_token_order_decides(phase: Phase, eos: int, tokens: list[int], reason: str) -> None:
    with letters_engine(phase, "ngram", 6, eos=eos) as engine:
        output = engine.generate([Request(letters("abcdefghijabcde"), SamplingParams(max_tokens=5))])[0]
    assert (output.token_ids, output.finish_reason) == (tokens, reason)


@for_final_phases
@pytest.mark.parametrize("method", ["ngram", "draft"])
@pytest.mark.parametrize("k", [1, 4, 8])
def test_spc_01_spc_02_every_other_way_to_end_inside_a_draft(phase: Phase, method: str, k: int) -> None:
    def ended(max_tokens: int, **params: Any) -> list[tuple[str, str | None]]:
        request = Request(letters("abcdefghabcd"), SamplingParams(max_tokens=max_tokens, **params))
        return [(completion.text, completion.finish_reason) for completion in engine.generate([request])[0].outputs]

    with letters_engine(phase, method, k, eos=16) as engine:
        assert ended(12, n=2) == [("ef", "stop")] * 2
        assert ended(12, min_tokens=4) == [("efabcdef", "stop")], "the EOS cannot be chosen as the third"
        for max_tokens in range(1, 8):
            short = "length" if max_tokens < 5 else "stop"
            assert ended(max_tokens, ignore_eos=True, stop_token_ids=[18]) == [("efgh"[:max_tokens], short)]
            assert ended(max_tokens, ignore_eos=True, stop=["ij"]) == [
                ("efgh", "stop") if max_tokens >= 6 else ("efghi"[:max_tokens], "length")
            ]
    settings = spec_settings(method, k) | {"max_model_len": 18}
    with open_engine(phase, cyclic_model(), None, cyclic_model(), **settings) as engine:
        output = engine.generate([greedy(letters("abcdefghabcd"), 99)])[0]
    assert (output.token_ids, output.finish_reason) == (letters("efghij"), "length"), "the model's length"


@for_final_phases
def test_spc_03_exactly_max_tokens_are_delivered_and_counted(phase: Phase) -> None:
    with letters_engine(phase, "ngram", 4, num_letters=5) as engine:
        for max_tokens in range(1, 13):
            before = engine.stats().generated_tokens
            output = engine.generate([greedy(letters("abcdeabcde"), max_tokens)])[0]
            assert output.text == "abcdeabcdeab"[:max_tokens]
            assert len(output.token_ids) == max_tokens == engine.stats().generated_tokens - before
        assert engine.stats().num_accepted_tokens > 10


@for_final_phases
@pytest.mark.parametrize("draft_vocab", [72, 60])
def test_spc_04_a_draft_with_another_vocabulary_works(phase: Phase, draft_vocab: int) -> None:
    draft = cyclic_model(vocab_size=draft_vocab)
    with open_engine(phase, cyclic_model(), letter_tokenizer(), draft, **spec_settings("draft", 3)) as engine:
        assert engine.generate([greedy(letters("abcde"), 10)])[0].text == "fghijklmno"
        hot = engine.generate([sampled(20, [63, 62], temperature=3.0, n=4), sampled(20, [63], temperature=3.0, seed=1)])
        assert [len(completion.token_ids) for output in hot for completion in output.outputs] == [20] * 5
    with open_engine(phase, None, None, tiny_llama(vocab_size=104), **spec_settings("draft", 3)) as engine:
        assert engine.generate([greedy(PA, 24)])[0].token_ids == GREEDY_PA


@for_final_phases
@pytest.mark.parametrize("method", ["off", "ngram", "draft"])
def test_spc_05_penalties_hold_under_speculation(phase: Phase, method: str) -> None:
    def l7() -> Any:
        return tiny_llama(seed=7, initializer_range=0.1)

    with open_engine(phase, l7(), None, l7(), **spec_settings(method, 4)) as engine:
        penalized = engine.generate([greedy(PA, 24, repetition_penalty=1.3)])[0].token_ids
        engine.generate([greedy(PA, 24)])
        assert method == "off" or engine.stats().num_accepted_tokens > 0
    assert penalized == [
        *[79, 42, 31, 47, 93, 51, 70, 77, 7, 85, 20, 77],
        *[61, 68, 64, 49, 2, 5, 2, 5, 5, 5, 91, 26],
    ]


SPC_05 = [
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.7, "temperature": 1.3, "seed": 5, "top_p": 0.9},
    {"repetition_penalty": 0.7},
    {"logit_bias": {42: 5.0, 11: -100.0}},
    {"min_tokens": 20, "ignore_eos": False},
    {"stop_token_ids": [11]},
    {"temperature": 1.0, "seed": 0, "n": 3, "min_p": 0.05},
]


@for_final_phases
@pytest.mark.parametrize("method", ["ngram", "draft"])
def test_spc_05_whatever_else_changes_a_choice_holds_under_speculation(phase: Phase, method: str) -> None:
    def l7() -> Any:
        return tiny_llama(seed=7, initializer_range=0.1)

    def tokens(engine: Any) -> list[list[list[int]]]:
        outputs = engine.generate([greedy(PA, 24, **params) for params in SPC_05])
        return [[completion.token_ids for completion in output.outputs] for output in outputs]

    with open_engine(phase, l7()) as engine:
        plain = tokens(engine)
    with open_engine(phase, l7(), None, l7(), **spec_settings(method, 4)) as engine:
        assert tokens(engine) == plain
        assert engine.stats().num_accepted_tokens > 0


@for_final_phases
@pytest.mark.parametrize("method", ["ngram", "draft"])
def test_a_seeded_request_is_the_same_with_speculation(phase: Phase, method: str) -> None:
    def l7() -> Any:
        return tiny_llama(seed=7, initializer_range=0.1)

    requests = [sampled(24, temperature=0.3, seed=seed) for seed in range(8)]
    with open_engine(phase, l7()) as engine:
        plain = token_lists(engine.generate(requests))
    with open_engine(phase, l7(), None, l7(), **spec_settings(method, 4)) as engine:
        assert token_lists(engine.generate(requests)) == plain
        assert engine.stats().num_accepted_tokens > 0


# -- logprobs -----------------------------------------------------------------------------------------

PFX_05 = [-8.72634, -4.04783, -4.79558, -2.57545, -8.58013, -5.72428, -6.05516]  # of PA's tokens after the first


@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_pfx_05_prompt_logprobs_in_any_company_and_any_chunks(phase: Phase, chunk: int) -> None:
    asked = Request(PA, SamplingParams(max_tokens=1, logprobs=1, prompt_logprobs=1))
    with open_engine(phase, prefill_chunk_size=chunk, kv_block_size=4) as engine:
        for _ in range(2):
            stream, beside = engine.streams([asked, greedy(PB, 3)])
            output = next(stream)
            assert beside.result().token_ids == T0_OUTPUTS["PB"][:3]
            assert output.prompt_logprobs is not None
            assert output.prompt_logprobs[0] is None
            values = [entry.logprob for entry in output.prompt_logprobs[1:]]
            assert values == pytest.approx(PFX_05, abs=1e-3)
            assert output.logprobs is not None
            assert output.logprobs[0].logprob == pytest.approx(-0.60923, abs=1e-3)
            engine.generate([greedy(PA, 1)])


def test_logprobs_are_those_of_the_models_own_distribution(phase: Phase) -> None:
    with open_engine(phase) as engine:
        output = engine.generate([greedy(PA, 6, logprobs=3)])[0]
    model = tiny_llama()
    with torch.inference_mode():
        logits = model(torch.tensor([PA + GREEDY_PA[:6]])).logits[0].log_softmax(-1)
    logprobs = output.outputs[0].logprobs
    assert logprobs is not None
    for position, entry in enumerate(logprobs, len(PA) - 1):
        best = logits[position].topk(3)
        assert list(entry.top) == best.indices.tolist()
        assert list(entry.top.values()) == pytest.approx(best.values.tolist(), abs=1e-5)
        assert entry.logprob == pytest.approx(logits[position, entry.token_id].item(), abs=1e-5)


def test_spc_05_a_repetition_penalty_counts_prompt_and_output(phase: Phase) -> None:
    """The case's list with speculation off; with it on is the final phase's."""
    with open_engine(phase, tiny_llama(seed=7, initializer_range=0.1)) as engine:
        penalized, plain = engine.generate([greedy(PA, 24, repetition_penalty=1.3), greedy(PA, 6)])
    assert penalized.token_ids == [
        *[79, 42, 31, 47, 93, 51, 70, 77, 7, 85, 20, 77],
        *[61, 68, 64, 49, 2, 5, 2, 5, 5, 5, 91, 26],
    ]
    assert plain.token_ids == [79, 42, 42, 11, 42, 11]
