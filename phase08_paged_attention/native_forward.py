"""The whole model by hand: what Hugging Face's Llama, Qwen2 and Qwen3 compute, over pages, with the weights fused.

    x   = embedding                                        [T, C]
    x  += o( attention( rotate( qkv( norm(x) ) ) ) )       each layer: the tokens look at each other,
    x  += down( silu(gate) * up )  of  gate_up( norm(x) )  then each thinks for itself
    logits = head( norm(x) )                               only where they are wanted

Letters: T tokens of the step, K of them whose logits are wanted, C hidden size, I intermediate size, Hq query heads,
H KV heads, D head_dim, V vocabulary.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from phase08_paged_attention.attention_kernel import AttentionKernel, AttentionOptions
from phase08_paged_attention.operations import HeadNorms, Linear, Operations, Rotation
from phase08_paged_attention.packed_batch import PackedBatch
from phase08_paged_attention.paged_kv_cache import PagedKVCache
from shared.kv_sizing import head_dim

FAMILIES = ("llama", "qwen2", "qwen3")  # model_type of the config
ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # frequencies that do not change with the length
KNOWN_PARTS = ("torch.nn.modules.", "transformers.models.", "transformers.activations")  # where their classes are


@dataclass(slots=True)
class Layer:
    """qkv: C -> (Hq + 2 H) D. gate_up: C -> 2 I."""

    attention_norm: torch.Tensor
    qkv: Linear
    head_norms: HeadNorms | None
    options: AttentionOptions
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class NativeForward:
    """Takes a Hugging Face model's weights over: packed by the operations, the originals are freed, and the model
    itself can no longer run."""

    def __init__(self, model: Any, kernel: AttentionKernel, operations: Operations) -> None:
        config = model.config
        self.model = model
        self.kernel = kernel
        self.ops = operations
        self.eps: float = config.rms_norm_eps
        self.inverse_frequencies, self.rope_scale = _rope(model)
        self.embedding = model.get_input_embeddings().weight  # [V, C]
        self.final_norm = self._vector(model.model.norm.weight)
        is_tied = model.lm_head.weight is self.embedding
        self.head = operations.linear(self.embedding) if is_tied else self._fused([model.lm_head])
        self.layers = [self._take_layer(layer, config) for layer in model.model.layers]
        model.weights_are_taken = True

    def __call__(self, batch: PackedBatch, cache: PagedKVCache) -> torch.Tensor:
        """The logits where they are wanted, `[K, V]`."""
        attend = self.kernel.prepare(batch, cache)
        rotation = self._rotation(batch.positions)
        x = F.embedding(batch.token_ids, self.embedding).to(self.ops.dtype)  # [T, C]
        for index, layer in enumerate(self.layers):
            qkv = layer.qkv(self.ops.rms_norm(x, layer.attention_norm, self.eps))  # [T, (Hq + 2 H) D]
            query = self.ops.place(qkv, rotation, layer.head_norms, batch, cache, index)  # [T, Hq, D]
            x += layer.output(attend(index, query, layer.options).flatten(1))
            gate_up = layer.gate_up(self.ops.rms_norm(x, layer.mlp_norm, self.eps))  # [T, 2 I]
            x += layer.down(self.ops.silu_multiply(gate_up))
        return self.head(self.ops.rms_norm(x[batch.logit_index], self.final_norm, self.eps))

    @property
    def implementation(self) -> dict[str, str]:
        return {"forward": "native", "operations": self.ops.name, "attention_kernel": self.kernel.name}

    def _rotation(self, positions: torch.Tensor) -> Rotation:
        angles = positions[:, None].float() * self.inverse_frequencies  # [T, D / 2], fp32 as Hugging Face's
        return Rotation(*((f(angles) * self.rope_scale).to(self.ops.dtype) for f in (torch.cos, torch.sin)))

    def _take_layer(self, layer: Any, config: Any) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        return Layer(
            attention_norm=self._vector(layer.input_layernorm.weight),
            qkv=self._fused([attention.q_proj, attention.k_proj, attention.v_proj]),
            head_norms=self._head_norms(attention),
            options=AttentionOptions(head_dim(config) ** -0.5, getattr(attention, "sliding_window", None)),
            output=self._fused([attention.o_proj]),
            mlp_norm=self._vector(layer.post_attention_layernorm.weight),
            gate_up=self._fused([mlp.gate_proj, mlp.up_proj]),
            down=self._fused([mlp.down_proj]),
        )

    def _fused(self, modules: Seq[Any]) -> Linear:
        """Layers that read the same input, as one: a matrix of all their rows. Each original is freed."""
        weight = torch.cat([module.weight for module in modules])  # [N, C]
        biases = [weight.new_zeros(len(m.weight)) if m.bias is None else m.bias for m in modules]
        bias = torch.cat(biases) if any(m.bias is not None for m in modules) else None  # [N]
        for module in modules:
            module.weight.data = module.weight.new_empty(0)
        return self.ops.linear(weight, bias)

    def _head_norms(self, attention: Any) -> HeadNorms | None:
        if not hasattr(attention, "q_norm"):
            return None
        return HeadNorms(self._vector(attention.q_norm.weight), self._vector(attention.k_norm.weight), self.eps)

    def _vector(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.to(self.ops.dtype)


def why_not_native(model: Any) -> str | None:
    """What about this model the hand-written forward does not compute; None where it can run."""
    config = model.config
    if config.model_type not in FAMILIES:
        return f"the native forward is written for {', '.join(FAMILIES)}, not for {config.model_type}"
    if (part := _altered_part(model)) is not None:
        return f"the native forward does not know what {part} computes: it is no part of Hugging Face's, or was changed"
    if (rope := _rope_type(model)) not in ROPE_TYPES:
        return f"the native forward has no {rope} RoPE (it has {', '.join(ROPE_TYPES)})"
    if config.hidden_act != "silu":
        return f"the native forward has no {config.hidden_act} activation (it has silu)"
    layer = model.model.layers[0]
    if layer.mlp.gate_proj.bias is not None:
        return "the native forward has no biases in the MLP"
    if getattr(config, "use_sliding_window", False) and not hasattr(layer.self_attn, "sliding_window"):
        return "this version of transformers does not say which layers have a sliding window"
    return None


def _altered_part(model: Any) -> str | None:
    """The first part that is more than its weights: one with an adapter, quantized, hooked, or with another forward."""
    for name, part in model.named_modules():
        is_known = type(part).__module__.startswith(KNOWN_PARTS) and "forward" not in vars(part)
        if not is_known or part._forward_hooks or part._forward_pre_hooks:
            return name or type(part).__name__
    return None


def _rope_type(model: Any) -> str:
    return str(getattr(getattr(model.model, "rotary_emb", None), "rope_type", "unknown"))


def _rope(model: Any) -> tuple[torch.Tensor, float]:
    """Frequencies `[D / 2]` and the factor of cos and sin, as Hugging Face scaled them for this checkpoint."""
    module = model.model.rotary_emb
    return module.inv_freq.float(), float(module.attention_scaling)
