"""A GGUF file, turned once into a Hugging Face folder of float32 weights.

Llama models with a byte-level BPE tokenizer are read here, several times faster than transformers does,
and with the text cut up as the model learned it; other files go through transformers, if it can.
"""

import errno
import importlib.util
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from shared.errors import SetupError
from shared.loading.gguf_file import GgufFile
from shared.loading.gguf_tokenizer import special_token_id, unreadable_tokenizer, write_tokenizer
from shared.loading.model_cache import check_room
from shared.loading.setup_messages import one_line

CONVERSION_VERSION = 2  # raised whenever the same file would be converted to something else
NUM_BYTES_PER_WEIGHT = 4

OUTER_TENSORS = {  # name in a GGUF file -> name in the Hugging Face model
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER_TENSORS = {  # the same after "blk.N." -> after "model.layers.N."
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_DIVISORS = "rope_freqs.weight"  # [head_dim / 2], in files of Llama 3.1 and later
LLAMA3_ORIGINAL_CONTEXT, LLAMA3_LOW, LLAMA3_HIGH = 8192, 1.0, 4.0  # the only values those were ever made with


def convert_gguf(source: Path, folder: Path) -> None:
    """Fills the empty `folder` with config, weights, tokenizer and generation config.

    Holds the float32 weights in memory while it runs.

    Raises SetupError, which names the file, what it has that cannot be read, and what to do; OSError if
    the folder cannot be written.
    """
    gguf = GgufFile(source)
    if (num_files := gguf.get("split.count", 1)) > 1:
        raise _refused(gguf, f"split.count {num_files}: it is one of as many files of a model")
    check_room(folder, gguf.num_weights * NUM_BYTES_PER_WEIGHT)
    if reason := _unreadable(gguf):
        return _convert_with_transformers(source, folder, reason)
    try:
        _convert_llama(gguf, folder)
    except (SetupError, OSError):
        raise
    except Exception as error:  # metadata that contradicts the tensors ends in errors of any kind
        raise gguf.broken(one_line(error)) from error


def _unreadable(gguf: GgufFile) -> str | None:
    """What is not known here about the file, or None."""
    if (architecture := gguf.need("general.architecture")) != "llama":
        return f"architecture {architecture!r}"
    if gguf.get("llama.expert_count", 0):
        return "a mixture of experts"
    return unreadable_tokenizer(gguf)


def _convert_llama(gguf: GgufFile, folder: Path) -> None:
    config = llama_config(gguf)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", _generation_config(gguf))
    write_tokenizer(gguf, folder)
    _write_weights(folder / "model.safetensors", llama_weights(gguf, config))


def llama_config(gguf: GgufFile) -> dict[str, Any]:
    """config.json in the spelling that every transformers version reads (`rope_theta` at the top)."""
    num_heads = gguf.need("llama.attention.head_count")
    hidden_size = gguf.need("llama.embedding_length")
    head_dim = gguf.get("llama.attention.key_length", gguf.get("llama.rope.dimension_count", hidden_size // num_heads))
    _check_plain(gguf, head_dim)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": gguf.num_rows("token_embd.weight"),
        "hidden_size": hidden_size,
        "intermediate_size": gguf.need("llama.feed_forward_length"),
        "num_hidden_layers": gguf.need("llama.block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": gguf.get("llama.attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": gguf.need("llama.context_length"),
        "rms_norm_eps": _short(gguf.need("llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": (rope_theta := _short(gguf.get("llama.rope.freq_base", 10000.0))),
        "rope_scaling": _rope_scaling(gguf, rope_theta, head_dim),
        "tie_word_embeddings": "output.weight" not in gguf.tensor_names,
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        **_special_ids(gguf),
    }


def _check_plain(gguf: GgufFile, head_dim: int) -> None:
    """Raises SetupError for a key that makes the model compute what no Llama in a Hugging Face folder does."""
    plain = {
        "llama.rope.dimension_count": head_dim,  # less: only a part of each head is rotated
        "llama.rope.scaling.attn_factor": 1.0,
        "llama.attention.scale": head_dim**-0.5,
        "llama.attention.causal": True,
    }
    for key, value in plain.items():
        if not math.isclose(found := gguf.get(key, value), value, rel_tol=1e-4):
            raise _refused(gguf, f"{key} {found}, where a Llama has {value}")


def llama_weights(gguf: GgufFile, config: dict[str, Any]) -> dict[str, np.ndarray]:
    """Hugging Face name -> float32 weights, `[out, in]` or `[hidden]`. Raises SetupError."""
    names = _llama_names(config["num_hidden_layers"], config["tie_word_embeddings"])
    if missing := sorted(names.keys() - gguf.tensor_names):
        raise gguf.broken(f"tensor {missing[0]} is missing")
    if unknown := sorted(gguf.tensor_names - names.keys() - {ROPE_DIVISORS}):
        raise _refused(gguf, f"a tensor {unknown[0]}, which a Llama model has no place for")
    num_heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    for theirs, ours in names.items():
        weight = gguf.tensor(theirs)
        kind = theirs.split(".")[-2]
        weights[ours] = _unpermuted(weight, num_heads[kind]) if kind in num_heads else weight
    return weights


def _llama_names(num_layers: int, tied: bool) -> dict[str, str]:
    """Name of every tensor that the file must have -> name in the Hugging Face model."""
    names = dict(OUTER_TENSORS)
    if tied:
        del names["output"]
    for layer in range(num_layers):
        names |= {f"blk.{layer}.{theirs}": f"model.layers.{layer}.{ours}" for theirs, ours in LAYER_TENSORS.items()}
    return {f"{theirs}.weight": f"{ours}.weight" for theirs, ours in names.items()}


def _unpermuted(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of q or k, `[heads * head_dim, in]`, back in the order of transformers' RoPE.

    llama.cpp rotates neighbours (0, 1), (2, 3), ...; transformers rotates halves (0, d/2), (1, d/2 + 1), ...
    """
    pairs = weight.reshape(num_heads, -1, 2, weight.shape[-1])  # [heads, head_dim / 2, 2, in]
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)


def _rope_scaling(gguf: GgufFile, rope_theta: float, head_dim: int) -> dict[str, Any] | None:
    """Long-context scaling of RoPE. Raises SetupError where the file has one that is not read here."""
    factor = gguf.get("llama.rope.scaling.factor", gguf.get("llama.rope.scale_linear"))  # the latter in old files
    kind = gguf.get("llama.rope.scaling.type", "none" if factor in (None, 0, 1) else "linear")  # llama.cpp's default
    if kind != "none":
        raise _refused(gguf, f"RoPE scaling {kind!r}")
    if ROPE_DIVISORS not in gguf.tensor_names:
        return None
    divisors = gguf.tensor(ROPE_DIVISORS)
    factor = float(divisors.max())
    if not np.allclose(divisors, _llama3_divisors(factor, rope_theta, head_dim), rtol=1e-4):
        raise _refused(gguf, f"a RoPE scaling ({ROPE_DIVISORS}) other than Llama 3's")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": LLAMA3_LOW,
        "high_freq_factor": LLAMA3_HIGH,
        "original_max_position_embeddings": LLAMA3_ORIGINAL_CONTEXT,
    }


def _llama3_divisors(factor: float, rope_theta: float, head_dim: int) -> np.ndarray:
    """What Llama 3 divides each frequency by, `[head_dim / 2]`: 1 for short waves, `factor` for long ones."""
    wavelengths = 2 * np.pi * rope_theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = (LLAMA3_ORIGINAL_CONTEXT / wavelengths - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW)
    smooth = np.clip(smooth, 0.0, 1.0)
    return 1 / ((1 - smooth) / factor + smooth)


def _special_ids(gguf: GgufFile) -> dict[str, Any]:
    roles = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    ids = {name: special_token_id(gguf, role) for name, role in roles.items()}
    return {name: token_id for name, token_id in ids.items() if token_id is not None}


def _generation_config(gguf: GgufFile) -> dict[str, Any]:
    """The special ids; the end of a turn ends the output too, where the file tells it from the end of text."""
    ends = {role: special_token_id(gguf, role) for role in ("eos", "eot")}
    eos_ids = sorted({token_id for token_id in ends.values() if token_id is not None})
    return _special_ids(gguf) | ({"eos_token_id": eos_ids} if len(eos_ids) > 1 else {})


def _short(value: float) -> float:
    """A float32 out of the file as people write it: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _write_weights(path: Path, weights: dict[str, np.ndarray]) -> None:
    """Raises OSError, also where safetensors wraps it in an error of its own."""
    try:
        save_file(weights, path, metadata={"format": "pt"})
        path.chmod(0o644)  # safetensors leaves it to its owner alone, but a cache may be shared
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        code = int(number[1]) if number else errno.EIO
        raise OSError(code, os.strerror(code), str(path)) from error


def _refused(gguf: GgufFile, what: str) -> SetupError:
    return SetupError(f"{gguf.path} has {what}; use the model's safetensors instead")


def _convert_with_transformers(source: Path, folder: Path, reason: str) -> None:
    if importlib.util.find_spec("accelerate") is None:
        ways = "pip install accelerate (the `gguf` extra), or use the model's safetensors"
        raise SetupError(f"{source} has {reason}, which is read by transformers with accelerate; {ways}")
    from shared.loading.hf_loading import load_gguf_with_transformers  # imports torch, so only where it is needed

    model, tokenizer = load_gguf_with_transformers(source)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
