"""A tiny Llama model in a GGUF file, written key by key as llama.cpp's converter writes it.

Its vocabulary: three control tokens, the 256 bytes, a few merges, one of them of two digits, and
UNMERGED, a token that no merges lead to.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM

from tests.helpers import rope_fields

CONTROL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ Ġ", "t h", "Ġ th", "1 2"]
UNMERGED = "xyz"
TOKENS = [*CONTROL_TOKENS, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES), UNMERGED]
METADATA: Mapping[str, Any] = {
    "general.name": "Tiny",
    "llama.block_count": 2,
    "llama.context_length": 512,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 50000.0,
    "llama.rope.dimension_count": 16,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3] * len(CONTROL_TOKENS) + [1] * (len(TOKENS) - len(CONTROL_TOKENS)),
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.padding_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.chat_template": "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}",
}
NAMES = {
    "embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}


def llama(tie: bool = True, rope: dict[str, Any] | None = None) -> LlamaForCausalLM:
    """The model that METADATA describes, in float32."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        initializer_range=0.35,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tie,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        **rope_fields(rope or {"rope_type": "default", "rope_theta": 50000.0}),
    )
    return LlamaForCausalLM(config).eval()


def write_gguf(
    path: Path,
    model: LlamaForCausalLM,
    architecture: str = "llama",
    quantization: GGMLQuantizationType = GGMLQuantizationType.F32,
    without: str = "",
    extra: Mapping[str, np.ndarray] | None = None,
    **metadata: Any,
) -> Path:
    """`without` leaves out a tensor or a key; `metadata` changes keys, their dots written as two underscores."""
    writer = GGUFWriter(path, architecture)
    changed = {key.replace("__", "."): value for key, value in metadata.items()}
    for key, value in {**METADATA, **changed}.items():
        if key != without:
            _add(writer, key, value)
    for name, weight in {**_gguf_tensors(model), **(extra or {})}.items():
        if name != without:
            kind = quantization if weight.ndim == 2 else GGMLQuantizationType.F32
            writer.add_tensor(name, quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    adders.get(type(value), writer.add_array)(key, value)


def _gguf_tensors(model: LlamaForCausalLM) -> dict[str, np.ndarray]:
    tensors = {}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        module = name.removesuffix(".weight")
        theirs = next(theirs for ours, theirs in NAMES.items() if module.endswith(ours))
        layer = f"blk.{module.split('.')[2]}." if ".layers." in module else ""
        heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}.get(theirs)
        array = weight.numpy() if heads is None else _permuted(weight.numpy(), heads)
        tensors[f"{layer}{theirs}.weight"] = np.ascontiguousarray(array)
    return tensors


def _permuted(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """llama.cpp's `LlamaModel.permute`."""
    rows = weight.shape[0] // num_heads // 2
    return weight.reshape(num_heads, 2, rows, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
