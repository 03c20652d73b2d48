"""GGUF files become Hugging Face folders that give the same tokens; what cannot be read is named."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from safetensors.numpy import load_file
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from shared.errors import SetupError
from shared.loading.gguf_convert import convert_gguf
from shared.loading.hf_loading import load_hf_tokenizer
from shared.model_loader import load_model
from tests.tiny_gguf import TOKENS, UNMERGED, llama, write_gguf

PROMPT = [5, 117, 133, 8, 21, 240, 11, 3]
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 50000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def converted(tmp_path: Path, model: LlamaForCausalLM, **changes: Any) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    convert_gguf(write_gguf(tmp_path / "tiny.gguf", model, **changes), folder)
    return folder


def tokenizer_of(tmp_path: Path, **changes: Any) -> PreTrainedTokenizerBase:
    return load_hf_tokenizer(converted(tmp_path, llama(), **changes))


def greedy(model: Any, prompt: list[int], num_tokens: int = 24) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False)
    return out[0, len(prompt) :].tolist()


def ids_of(*tokens: str) -> list[int]:
    return [TOKENS.index(token) for token in tokens]


@pytest.mark.parametrize("tie", [True, False])
def test_a_converted_model_gives_the_tokens_of_the_model_it_was_made_from(tmp_path: Path, tie: bool) -> None:
    model = llama(tie=tie)
    loaded = load_model(str(converted(tmp_path, model)), device="cpu")
    assert greedy(loaded.model, PROMPT) == greedy(model, PROMPT)
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], weight), name


def test_keys_that_say_what_is_so_anyway_change_nothing(tmp_path: Path) -> None:
    keys = {
        "llama__rope__scaling__factor": 1.0,
        "llama__rope__scale_linear": 0.0,
        "llama__attention__key_length": 16,
        "llama__attention__scale": 0.25,
        "llama__attention__causal": True,
        "split__count": 1,
    }
    model = llama()
    folder = converted(tmp_path, model, **keys)
    assert greedy(load_model(str(folder), device="cpu").model, PROMPT) == greedy(model, PROMPT)


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0, GGMLQuantizationType.F16])
def test_quantized_weights_are_what_gguf_dequantizes_them_to(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    model = llama()
    weights = load_file(converted(tmp_path, model, quantization=kind) / "model.safetensors")
    for name in ("model.embed_tokens", "model.layers.1.self_attn.q_proj", "model.layers.0.mlp.down_proj"):
        original = model.get_submodule(name).weight.detach().numpy()
        expected = dequantize(quantize(original, kind), kind)  # by rows, so the order of rows does not matter
        np.testing.assert_array_equal(weights[f"{name}.weight"], expected)
        assert weights[f"{name}.weight"].dtype == np.float32


def test_the_rope_scaling_of_llama_3_is_recognized(tmp_path: Path) -> None:
    model = llama(rope=LLAMA3_ROPE)
    plain = 1 / 50000.0 ** (np.arange(0, 16, 2) / 16)
    divisors = (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
    assert divisors.max() == pytest.approx(8.0)
    folder = converted(tmp_path, model, extra={"rope_freqs.weight": divisors})
    prompt = [3 + (7 * i * i + 3 * i + 5) % 97 for i in range(96)]
    assert greedy(load_model(str(folder), device="cpu").model, prompt) == greedy(model, prompt)


def test_special_ids_and_the_end_of_a_turn_reach_the_generation_config(tmp_path: Path) -> None:
    folder = converted(tmp_path, llama(), tokenizer__ggml__eot_token_id=0)
    config = json.loads((folder / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, 2, 2)
    assert load_model(str(folder)).model.generation_config.eos_token_id == [0, 2]


def test_smollm_splits_digits_before_merging(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path)
    assert tokenizer("  12").input_ids == ids_of("ĠĠ", "1", "2")
    assert tokenizer(" th").input_ids == ids_of("Ġth")


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe"])
def test_other_known_pre_tokenizers_keep_short_numbers_whole(tmp_path: Path, pre: str) -> None:
    tokenizer = tokenizer_of(tmp_path, tokenizer__ggml__pre=pre)
    assert tokenizer("12", add_special_tokens=False).input_ids == ids_of("12")


def test_llama_3_groups_digits_by_three(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, tokenizer__ggml__pre="llama-bpe")
    assert tokenizer("00012", add_special_tokens=False).input_ids == ids_of("0", "0", "0", "12")
    assert tokenizer("0012", add_special_tokens=False).input_ids == ids_of("0", "0", "1", "2")


def test_llama_3_takes_a_word_that_is_a_token_without_merging(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, tokenizer__ggml__pre="llama-bpe")
    assert tokenizer(UNMERGED, add_special_tokens=False).input_ids == ids_of(UNMERGED)


def test_gpt_2_reaches_a_token_by_merges_only(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, tokenizer__ggml__pre="gpt-2")
    assert tokenizer(UNMERGED).input_ids == ids_of("x", "y", "z")


def test_a_bos_is_added_where_the_file_asks_for_it(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, tokenizer__ggml__add_bos_token=True)
    assert tokenizer("th").input_ids == [1, *ids_of("th")]


def test_text_survives_the_tokenizer_byte_for_byte(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path)
    text = " Größe: 12 € , don't !\n\n\t👍 "
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_the_tokenizer_knows_its_special_tokens_and_chat_template(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path)
    specials = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id)
    assert specials == (1, 2, 2, 0)
    assert tokenizer("<|im_end|>th").input_ids == [2, *ids_of("th")]
    assert tokenizer.decode([2, *ids_of("th")], skip_special_tokens=True) == "th"
    assert set(tokenizer("th")) == {"input_ids", "attention_mask"}
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "th"}], tokenize=False)
    assert chat == "<|im_start|>th<|im_end|>"


@pytest.mark.parametrize("quantization", [GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0])
def test_other_files_go_through_transformers_where_accelerate_is_installed(
    tmp_path: Path, quantization: GGMLQuantizationType
) -> None:
    pytest.importorskip("accelerate")
    folder = converted(tmp_path, llama(), quantization=quantization, tokenizer__ggml__pre="viking")
    (tmp_path / "known").mkdir()
    known = converted(tmp_path / "known", llama(), quantization=quantization)
    expected, weights = load_file(known / "model.safetensors"), load_file(folder / "model.safetensors")
    assert weights.keys() == expected.keys()
    for name, weight in weights.items():
        np.testing.assert_array_equal(weight, expected[name])
    assert load_model(str(folder)).tokenizer is not None


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another architecture": ({"architecture": "qwen9"}, "architecture 'qwen9'"),
    "a mixture of experts": ({"llama__expert_count": 8}, "a mixture of experts"),
    "a sentencepiece tokenizer": ({"tokenizer__ggml__model": "llama"}, "tokenizer 'llama'"),
    "an unknown pre-tokenizer": ({"tokenizer__ggml__pre": "viking"}, "pre-tokenizer 'viking'"),
    "a stretched rope": ({"llama__rope__scaling__type": "yarn"}, "RoPE scaling 'yarn'"),
    "a rope stretched without a type": ({"llama__rope__scaling__factor": 4.0}, "RoPE scaling 'linear'"),
    "a rope stretched as of old": ({"llama__rope__scale_linear": 4.0}, "RoPE scaling 'linear'"),
    "a stronger rope": ({"llama__rope__scaling__attn_factor": 1.5}, "llama.rope.scaling.attn_factor 1.5"),
    "heads rotated in part": (
        {"llama__attention__key_length": 16, "llama__rope__dimension_count": 8},
        "llama.rope.dimension_count 8, where a Llama has 16",
    ),
    "a scale of its own": ({"llama__attention__scale": 0.5}, "llama.attention.scale 0.5, where a Llama has 0.25"),
    "attention to what comes later": ({"llama__attention__causal": False}, "llama.attention.causal False"),
    "one file of several": ({"split__count": 2, "split__no": 0}, "split.count 2"),
    "an unknown rope table": ({"extra": {"rope_freqs.weight": np.arange(1, 9, dtype=np.float32)}}, "rope_freqs.weight"),
    "an attention bias": ({"extra": {"blk.0.attn_q.bias": np.zeros(64, np.float32)}}, "blk.0.attn_q.bias"),
    "a missing tensor": ({"without": "blk.1.ffn_up.weight"}, "blk.1.ffn_up.weight is missing"),
    "a missing key": ({"without": "llama.block_count"}, "llama.block_count"),
    "heads that do not fit": ({"llama__attention__head_count_kv": 3}, "cannot reshape"),
    "heads per layer": ({"llama__attention__head_count": [4, 4]}, "not a GGUF file that can be read"),
    "a merge of unknown tokens": ({"tokenizer__ggml__merges": ["th th"]}, "out of vocabulary"),
    "an id past the vocabulary": ({"tokenizer__ggml__bos_token_id": 9999}, "out of range"),
    "a repeated token": ({"tokenizer__ggml__tokens": [*TOKENS[:-1], TOKENS[0]]}, "repeats a token"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)  # no accelerate
    changes, message = REFUSED[case]
    with pytest.raises(SetupError, match=message) as raised:
        converted(tmp_path, llama(), **changes)
    assert "tiny.gguf" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("size", [0, 3, 100, 5000, -1000])
def test_a_torn_file_is_refused(tmp_path: Path, size: int) -> None:
    whole = write_gguf(tmp_path / "whole.gguf", llama()).read_bytes()
    torn = tmp_path / "torn.gguf"
    torn.write_bytes(whole[:size])
    with pytest.raises(SetupError, match=r"torn\.gguf is not a GGUF file that can be read"):
        convert_gguf(torn, tmp_path)
