"""The hand-written forward against Hugging Face's: logits, families, RoPE kinds, and what it refuses."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any

import pytest
import torch

from phase08_paged_attention.forward import make_forward
from phase08_paged_attention.kernels.cpp_operations import CppOperations
from phase08_paged_attention.native_forward import why_not_native
from phase08_paged_attention.operations import HeadNorms, Rotation, TorchOperations
from phase08_paged_attention.packed_batch import PackedBatch, pack
from phase08_paged_attention.paged_kv_cache import PagedKVCache
from shared.config import EngineConfig
from shared.errors import SetupError
from shared.sequence import Sequence
from shared.step import ScheduledSequence, StepPlan
from shared.tiny_models import FAMILIES, tiny_llama
from tests.fakes import make_sequence
from tests.helpers import Q, rope_fields

NATIVE_FAMILIES = {"llama", "qwen2", "qwen3"}
CPU = torch.device("cpu")
ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"rope_type": "linear", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
}


def with_rope(model_name: str, rope: dict[str, Any], **changes: Any) -> Any:
    fields = rope_fields({"rope_theta": 10000.0} | rope) if rope else {}
    return FAMILIES[model_name](**fields | changes)


class Pages:
    """One sequence, its blocks shuffled, its pool full of NaN; runs tokens through a forward, as many as asked."""

    def __init__(self, model: Any, token_ids: Seq[int], block_size: int = 3) -> None:
        self.seq: Sequence = make_sequence(len(token_ids), name="a")
        self.seq.token_ids[:] = token_ids
        num_blocks = len(token_ids) // block_size + 2
        self.tables = {"a": torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1)).tolist()}
        self.cache = PagedKVCache.for_model(model, num_blocks, block_size)
        self.cache.key.fill_(torch.nan)
        self.cache.value.fill_(torch.nan)

    def batch(self, num_tokens: int) -> PackedBatch:
        plan = StepPlan([ScheduledSequence.next_tokens(self.seq, num_tokens)])
        self.seq.num_computed_tokens += num_tokens
        return pack(plan, self.tables, self.cache.block_size, CPU, scored_rows={0})

    @torch.inference_mode()
    def logits(self, forward: Any, lengths: Seq[int]) -> torch.Tensor:
        """Of every token, `[T, V]`, in chunks of these lengths."""
        return torch.cat([forward(self.batch(length), self.cache) for length in lengths])


@torch.inference_mode()
def hf_logits(model: Any, token_ids: Seq[int]) -> torch.Tensor:
    return model(torch.tensor([list(token_ids)])).logits[0]


@pytest.mark.parametrize("forward", ["native", "native-torch"])
@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("family", sorted(NATIVE_FAMILIES))
def test_fp32_logits_are_hugging_faces_in_chunks_and_decodes(family: str, rope: str, forward: str) -> None:
    token_ids = Q[:70]  # past the 32 positions that yarn and llama3 scale from
    expected = hf_logits(with_rope(family, ROPES[rope]).float(), token_ids)
    model = with_rope(family, ROPES[rope]).float()
    pages = Pages(model, token_ids)
    actual = pages.logits(make_forward(model, EngineConfig(forward=forward)), [40, 1, 1, 7, 20, 1])
    assert (actual - expected).abs().max() <= 2e-5 * expected.abs().max()
    assert torch.equal(actual.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize("family", sorted(NATIVE_FAMILIES))
def test_fp64_logits_are_hugging_faces(family: str) -> None:
    expected = hf_logits(FAMILIES[family](), Q[:40])
    model = FAMILIES[family]()
    actual = Pages(model, Q[:40]).logits(make_forward(model, EngineConfig(forward="native")), [9, 1, 30])
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=0)


WINDOW_IN_ONE_LAYER = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}


def test_a_sliding_window_in_some_layers_is_honoured() -> None:
    model = FAMILIES["qwen2"](**WINDOW_IN_ONE_LAYER)
    if not hasattr(model.model.layers[0].self_attn, "sliding_window"):
        pytest.skip("this version of transformers masks every layer alike, so it is no oracle here")
    expected = hf_logits(FAMILIES["qwen2"](**WINDOW_IN_ONE_LAYER), Q[:40])
    assert (expected - hf_logits(FAMILIES["qwen2"](), Q[:40])).abs().max() > 0.1, "it matters"
    actual = Pages(model, Q[:40]).logits(make_forward(model, EngineConfig(forward="native")), [30, 1, 9])
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=0)


def test_a_window_in_some_layers_is_refused_where_transformers_does_not_say_in_which() -> None:
    model = FAMILIES["qwen2"](**WINDOW_IN_ONE_LAYER)
    for layer in model.model.layers:
        vars(layer.self_attn).pop("sliding_window", None)
    with pytest.raises(SetupError, match='which layers have a sliding window; use "hf"'):
        make_forward(model, EngineConfig(forward="native"))


@pytest.mark.parametrize("is_tied", [False, True])
def test_the_head_is_taken_over_too_unless_it_is_the_embedding(is_tied: bool) -> None:
    expected = hf_logits(tiny_llama(tie_word_embeddings=is_tied), Q[:20])
    model = tiny_llama(tie_word_embeddings=is_tied)
    forward = make_forward(model, EngineConfig(forward="native"))
    assert model.lm_head.weight.numel() == (model.get_input_embeddings().weight.numel() if is_tied else 0)
    torch.testing.assert_close(Pages(model, Q[:20]).logits(forward, [20]), expected, atol=1e-10, rtol=0)


def test_a_token_has_the_same_logits_to_the_last_bit_however_it_was_scheduled() -> None:
    """Nothing that is summed up depends on the neighbours, on where a chunk ends, or on the block size."""
    models = [tiny_llama().float() for _ in range(4)]
    forwards = [make_forward(model, EngineConfig(forward="native")) for model in models]
    whole = Pages(models[0], Q[:70], block_size=16).logits(forwards[0], [70])
    for forward, model, lengths, size in zip(forwards[1:], models[1:], ([1] * 70, [33, 5, 32], [64, 6]), (1, 7, 32)):
        assert torch.equal(Pages(model, Q[:70], block_size=size).logits(forward, lengths), whole)


def test_bf16_weights_are_stored_as_such_and_computed_with_in_fp32() -> None:
    model = tiny_llama().bfloat16()
    expected = hf_logits(tiny_llama().bfloat16().float(), Q[:40])
    forward = make_forward(model, EngineConfig(forward="native"))
    pages = Pages(model, Q[:40])
    assert pages.cache.key.dtype == torch.bfloat16
    actual = pages.logits(forward, [39, 1])
    assert actual.dtype == torch.float32
    assert (actual - expected).abs().max() <= 5e-2 * expected.abs().max(), "only K/V is rounded on the way"


def test_the_weights_are_taken_over_and_the_model_cannot_be_used_twice() -> None:
    model = tiny_llama()
    make_forward(model, EngineConfig(forward="native"))
    assert model.model.layers[0].self_attn.q_proj.weight.numel() == 0, "no second copy in memory"
    with pytest.raises(SetupError, match="load the model again"):
        make_forward(model, EngineConfig())


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - NATIVE_FAMILIES))
def test_other_families_run_on_hugging_faces_forward_and_say_why(family: str) -> None:
    model = FAMILIES[family]()
    assert make_forward(model, EngineConfig()).implementation["forward"] == "hf"
    with pytest.raises(SetupError, match="written for llama, qwen2, qwen3"):
        make_forward(FAMILIES[family](), EngineConfig(forward="native"))


class Adapted(torch.nn.Linear):
    """A linear layer with more to it than its weight, as LoRA's and quantized ones have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def with_an_adapter(model: Any) -> str:
    model.model.layers[1].mlp.up_proj.__class__ = Adapted
    return "model.layers.1.mlp.up_proj"


def with_a_hook(model: Any) -> str:
    model.model.norm.register_forward_pre_hook(lambda _, args: (args[0] + 1,))
    return "model.norm"


def with_another_forward(model: Any) -> str:
    mlp, forward = model.model.layers[0].mlp, model.model.layers[0].mlp.forward
    mlp.forward = lambda x: 2 * forward(x)
    return "model.layers.0.mlp"


@pytest.mark.parametrize("alter", [with_an_adapter, with_a_hook, with_another_forward])
def test_a_model_that_was_altered_runs_on_hugging_faces_forward_as_it_is_now(alter: Callable[[Any], str]) -> None:
    """Its weights alone would give the tokens of the model that it was."""
    models = [tiny_llama() for _ in range(3)]
    part, *_ = map(alter, models)
    forward = make_forward(models[0], EngineConfig())
    assert forward.implementation["forward"] == "hf"
    torch.testing.assert_close(Pages(models[0], Q[:20]).logits(forward, [20]), hf_logits(models[1], Q[:20]))
    with pytest.raises(SetupError, match=f'does not know what {part} computes.*use "hf"'):
        make_forward(models[2], EngineConfig(forward="native"))


def test_a_rope_whose_frequencies_change_with_the_length_is_refused_by_name() -> None:
    model = with_rope("llama", {"rope_type": "dynamic", "factor": 2.0})
    assert why_not_native(model) == "the native forward has no dynamic RoPE (it has default, linear, llama3, yarn)"
    assert make_forward(model, EngineConfig()).implementation["forward"] == "hf"


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 11, 12, 13, 25, 40])
@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(48, 96), (7, 33), (64, 1), (576, 97)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_linear_layers_of_every_shape(
    dtype: torch.dtype, num_inputs: int, num_outputs: int, num_rows: int, num_threads: int
) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(num_outputs, num_inputs).to(dtype), torch.randn(num_outputs).to(dtype)
    x = torch.randn(num_rows, num_inputs)
    expected = x.double() @ weight.double().T + bias.double()
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        actual = CppOperations().linear(weight, bias)(x)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(actual.double(), expected, atol=1e-4, rtol=1e-5)


def test_the_small_operations_are_those_in_plain_pytorch() -> None:
    torch.manual_seed(0)
    cpp, plain = CppOperations(), TorchOperations(torch.float32)
    x, weight = torch.randn(33, 50), torch.randn(50)
    torch.testing.assert_close(cpp.rms_norm(x, weight, 1e-6), plain.rms_norm(x, weight, 1e-6))
    wide = torch.randn(33, 2 * 50) * 20
    torch.testing.assert_close(cpp.silu_multiply(wide), plain.silu_multiply(wide), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e3, 1e6])
def test_silu_is_that_of_plain_pytorch_as_far_as_floats_go(scale: float) -> None:
    """e^-x of a gate below -89 is more than a float holds."""
    gate = torch.cat([torch.linspace(-200, 200, 4001) * scale, torch.tensor([torch.nan, torch.inf])])
    gate_up = torch.cat([gate, torch.linspace(-3, 3, len(gate))])[None]
    expected = TorchOperations(torch.float32).silu_multiply(gate_up)
    torch.testing.assert_close(CppOperations().silu_multiply(gate_up), expected, atol=1e-30, rtol=1e-5, equal_nan=True)


def test_gates_far_below_zero_close() -> None:
    def with_large_gates() -> Any:
        model = tiny_llama().float()
        for layer in model.model.layers:
            layer.mlp.gate_proj.weight.data *= 100  # what they give reaches -1000
        return model

    expected = hf_logits(with_large_gates(), Q[:40])
    model = with_large_gates()
    actual = Pages(model, Q[:40]).logits(make_forward(model, EngineConfig(forward="native")), [30, 1, 9])
    torch.testing.assert_close(actual, expected, atol=1e-4 * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_q_is_rotated_and_kv_written_as_in_plain_pytorch(dtype: torch.dtype, has_norms: bool) -> None:
    model = tiny_llama(head_dim=10).to(dtype)  # 4 query heads, 2 KV heads
    norms = HeadNorms(torch.rand(10), torch.rand(10), 1e-6) if has_norms else None
    torch.manual_seed(0)
    qkv, angles = torch.randn(20, (4 + 2 * 2) * 10), torch.randn(20, 5)
    made = []
    for operations in (CppOperations(), TorchOperations(torch.float32)):
        pages = Pages(model, Q[:20])
        rotation = Rotation(angles.cos(), angles.sin())
        query = operations.place(qkv.clone(), rotation, norms, pages.batch(20), pages.cache, 1)
        made.append((query, pages.cache.key.nan_to_num(99), pages.cache.value.nan_to_num(99)))
    for actual, expected in zip(*made):
        torch.testing.assert_close(actual, expected, atol=2e-2 if dtype == torch.bfloat16 else 1e-5, rtol=1e-5)
