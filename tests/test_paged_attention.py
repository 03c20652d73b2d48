"""Phase 8's attention against a loop over single numbers, and what it refuses."""

import math
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

from phase08_paged_attention.attention_kernel import AttentionOptions
from phase08_paged_attention.engine import build_engine
from phase08_paged_attention.gather_attention import attend
from phase08_paged_attention.paged_attention import install, paged_attention
from phase08_paged_attention.paged_kv_cache import PagedKVCache, zeros
from shared.config import EngineConfig
from shared.errors import InvalidConfig, InvalidRequest, SetupError
from shared.reference import greedy_reference
from shared.registry import Phase
from shared.request import Request, SamplingParams
from shared.tiny_models import tiny_gemma2, tiny_llama
from tests.helpers import rope_fields


def slow_attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seen: torch.Tensor,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """The definition, one query and head at a time. Shapes as for `attend`."""
    output = torch.zeros_like(query)
    num_batch, num_queries, num_heads, _ = query.shape
    per_group = num_heads // key.shape[1]
    for b in range(num_batch):
        for q in range(num_queries):
            for h in range(num_heads):
                places = seen[b, q].nonzero().flatten().tolist()
                scores = [float(query[b, q, h] @ key[b, h // per_group, s]) * scale for s in places]
                if softcap is not None:
                    scores = [softcap * math.tanh(score / softcap) for score in scores]
                highest = max(scores)
                weights = [math.exp(score - highest) for score in scores]
                for place, weight in zip(places, weights):
                    output[b, q, h] += weight / sum(weights) * value[b, h // per_group, place]
    return output


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(4, 4, 8), (4, 2, 8), (6, 1, 5), (1, 1, 3)])
def test_attention_is_what_its_definition_says(
    num_heads: int, num_kv_heads: int, head_dim: int, softcap: float | None
) -> None:
    torch.manual_seed(0)
    query = torch.randn(2, 3, num_heads, head_dim, dtype=torch.float64)
    key, value = (torch.randn(2, num_kv_heads, 7, head_dim, dtype=torch.float64) for _ in range(2))
    seen = torch.rand(2, 3, 7) < 0.5
    seen[..., 0] = True
    actual = attend(query, key, value, seen, AttentionOptions(0.3, softcap=softcap))
    expected = slow_attend(query, key, value, seen, 0.3, softcap)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=0)


def test_the_pool_is_addressed_by_slot_and_begins_as_zeros() -> None:
    cache = PagedKVCache(
        num_layers=2,
        num_blocks=5,
        block_size=4,
        num_kv_heads=3,
        head_dim=2,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    assert cache.key.shape == cache.value.shape == (2, 5, 3, 4, 2)
    assert not cache.key.any()
    key, value = torch.randn(2, 3, 2), torch.randn(2, 3, 2)
    cache.write(1, torch.tensor([6, 19]), key, value)
    assert torch.equal(cache.key[1, 6 // 4, :, 6 % 4], key[0])
    assert torch.equal(cache.value[1, 19 // 4, :, 19 % 4], value[1])
    assert not cache.key[0].any(), "the other layer is untouched"
    read_key, read_value = cache.read(1, torch.tensor([[19, 6]]))  # [1, 3, 2, 2]
    assert torch.equal(read_key[0].transpose(0, 1), key.flip(0))
    assert torch.equal(read_value[0].transpose(0, 1), value.flip(0))
    assert cache.num_bytes == 2 * 2 * 5 * 4 * 3 * 2 * 4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_lazy_zeros_are_zeros_of_every_dtype(dtype: torch.dtype) -> None:
    for shape in ((3, 2, 5), (3, 0, 5)):
        made = zeros(shape, dtype, torch.device("cpu"))
        assert made.dtype == dtype
        assert torch.equal(made, torch.zeros(shape, dtype=dtype))


def test_a_model_whose_attention_cannot_be_replaced_is_refused_by_name() -> None:
    model = tiny_llama()
    model._supports_attention_backend = False
    with pytest.raises(SetupError, match="LlamaForCausalLM"):
        install(model)


def test_a_feature_that_is_not_honoured_is_refused_by_name() -> None:
    layer = tiny_gemma2().model.layers[0].self_attn
    tensor = torch.zeros(1, 1, 1, 1)
    with pytest.raises(SetupError, match="Gemma2Attention asks for s_aux, which paged attention has not"):
        paged_attention(layer, tensor, tensor, tensor, None, paged=None, s_aux=torch.zeros(4))  # type: ignore[arg-type]


def test_such_a_model_is_refused_when_the_engine_is_built_and_not_by_its_first_request() -> None:
    """gpt-oss adds attention sinks to the softmax."""
    if "gpt_oss" not in CONFIG_MAPPING:
        pytest.skip("this version of transformers has no gpt-oss")
    config = AutoConfig.for_model(
        "gpt_oss",
        vocab_size=97,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        num_local_experts=2,
        num_experts_per_tok=1,
        max_position_embeddings=64,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(SetupError, match="GptOssAttention asks for s_aux"):
        build_engine(model, EngineConfig(kv_num_blocks=4))


SMALL: dict[str, Any] = {
    **{"vocab_size": 97, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"max_position_embeddings": 64, "pad_token_id": 0},
}


def family(model_type: str, **fields: Any) -> Any:
    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"this version of transformers has no {model_type}")
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **SMALL | fields)
    return AutoModelForCausalLM.from_config(config).to(torch.float32 if "moe" in model_type else torch.float64).eval()


def with_attention_of_ours(model_type: str, **fields: Any) -> Any:
    model = family(model_type, **fields)
    if not getattr(model, "_supports_attention_backend", False):
        pytest.skip(f"this version of transformers lets no attention of ours into {model_type}")
    return model


@pytest.mark.parametrize(
    ("model_type", "fields", "message"),
    [
        (
            "llama4_text",
            {"num_local_experts": 2, "num_key_value_heads": 2, "head_dim": 8},
            "layers of chunked_attention",
        ),
        ("diffllama", {"num_key_value_heads": 2}, "does not attend once in each of its layers"),
        ("doge", {"num_key_value_heads": 2}, "makes a mask of its own"),
        (
            "phimoe",
            {"num_key_value_heads": 2, "num_local_experts": 2, "sliding_window": 8},
            "window in its masks alone",
        ),
        ("nemotron", {"num_key_value_heads": 2, "head_dim": 8}, "is not handed what the model was called with"),
        ("biogpt", {}, "does not take an attention of our own"),
    ],
)
def test_a_family_that_attends_in_another_way_is_refused_when_the_engine_is_built(
    model_type: str, fields: dict[str, Any], message: str
) -> None:
    model = family(model_type, **fields) if model_type == "biogpt" else with_attention_of_ours(model_type, **fields)
    with pytest.raises(SetupError, match=f"{message}|llama4_text needs transformers 4.53"):
        build_engine(model, EngineConfig(kv_num_blocks=8, kv_block_size=4))


OF_GPT = {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4}  # its own words


@pytest.mark.parametrize(
    ("model_type", "fields"),
    [
        ("phimoe", {"num_key_value_heads": 2, "num_local_experts": 2, "sliding_window": None}),
        ("gpt2", OF_GPT),
        ("gpt_neox", {}),
        ("gptj", OF_GPT),
    ],
)
def test_families_that_are_not_built_like_llama_are_served(model_type: str, fields: dict[str, Any]) -> None:
    """phimoe too, once it has no window, which it is refused for above."""
    prompts = [[5, 17, 33], [8, 2, 4, 9, 11]]
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    engine = build_engine(with_attention_of_ours(model_type, **fields), EngineConfig(kv_num_blocks=16, kv_block_size=4))
    try:
        outputs = engine.generate([Request(prompt, params) for prompt in prompts])
    finally:
        engine.close()
    model = family(model_type, **fields)
    assert [output.token_ids for output in outputs] == [greedy_reference(model, prompt, 8) for prompt in prompts]


def test_a_past_that_is_no_kv_is_refused_in_every_phase(phase: Phase) -> None:
    model = family("lfm2", num_key_value_heads=2, layer_types=["conv", "full_attention"])
    with pytest.raises(SetupError, match="lfm2 has layers of conv, whose past is no K/V: no phase runs it"):
        phase.build_engine()(model, EngineConfig(), None, None)
    mamba = AutoConfig.for_model("mamba", vocab_size=97, hidden_size=32, num_hidden_layers=1, state_size=4)
    with pytest.raises(SetupError, match="mamba has no attention, and so no K/V: no phase runs it"):
        phase.build_engine()(AutoModelForCausalLM.from_config(mamba), EngineConfig(), None, None)


def test_longrope_is_served_up_to_the_length_where_its_angles_change(phase: Phase) -> None:
    """Beyond it, one long neighbour would change the angles of everybody in its step."""
    original = "original_max_position_embeddings"
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0, 5.0, 6.0, 7.0],
    }
    fields = {"num_key_value_heads": 2, original: 32, **rope_fields({**rope, original: 32})}
    if scaling := fields.get("rope_scaling"):  # transformers 4 wants these three alone, and has "type"
        factors = {name: scaling[name] for name in ("short_factor", "long_factor")}
        fields["rope_scaling"] = {"type": "longrope", **factors}
    prompts = [[5, 17, 33], [(7 * i) % 97 for i in range(24)]]
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    engine = phase.build_engine()(family("phi3", **fields), EngineConfig(prefill_chunk_size=8), None, None)
    try:
        outputs = engine.generate([Request(prompt, params) for prompt in prompts])
        with pytest.raises(InvalidRequest, match="a sequence may hold 32"):
            engine.generate([Request([1] * 40, params)])
    finally:
        engine.close()
    model = family("phi3", **fields)
    assert [output.token_ids for output in outputs] == [greedy_reference(model, prompt, 8) for prompt in prompts]
    with pytest.raises(InvalidConfig, match="max_model_len: 64 is over the model's own limit, 32"):
        phase.build_engine()(model, EngineConfig(max_model_len=64), None, None)
