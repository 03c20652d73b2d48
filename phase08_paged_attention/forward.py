"""One forward pass over a packed batch: Hugging Face's or our own, and with which kernel. Chosen once, with reasons."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch

from phase08_paged_attention.attention_kernel import AttentionKernel
from phase08_paged_attention.decode_graphs import DecodeGraphs, cuda_graph
from phase08_paged_attention.gather_attention import GatherAttention
from phase08_paged_attention.kernels.cpp_attention import CppAttention
from phase08_paged_attention.kernels.cpp_library import STORED_AS
from phase08_paged_attention.kernels.cpp_operations import CppOperations
from phase08_paged_attention.kernels.flashinfer_attention import HEAD_DIMS, FlashInferAttention
from phase08_paged_attention.kernels.unavailable import KernelUnavailable
from phase08_paged_attention.native_forward import NativeForward, why_not_native
from phase08_paged_attention.operations import Operations, TorchOperations
from phase08_paged_attention.packed_batch import PackedBatch
from phase08_paged_attention.paged_attention import Paged, install
from phase08_paged_attention.paged_kv_cache import PagedKVCache
from shared.config import EngineConfig
from shared.errors import SetupError
from shared.kv_sizing import head_dim
from shared.loading.setup_messages import say
from shared.one_thread import one_thread


def _numba() -> AttentionKernel:
    from phase08_paged_attention.kernels.numba_attention import NumbaAttention  # importing Numba takes a while

    return NumbaAttention()


def _triton() -> AttentionKernel:
    from phase08_paged_attention.kernels.triton_attention import TritonAttention

    return TritonAttention()


class Candidate(NamedTuple):
    """make: raises KernelUnavailable. device: type it runs on, None for any. dtypes: of the pool; empty for any.

    head_dims: empty for any.
    """

    make: Callable[[], AttentionKernel]
    device: str | None = None
    dtypes: tuple[torch.dtype, ...] = ()
    head_dims: tuple[int, ...] = ()


KERNELS = {  # the fastest first
    "cpp": Candidate(CppAttention, "cpu", tuple(STORED_AS)),
    "numba": Candidate(_numba, "cpu", (torch.float32, torch.float64, torch.bfloat16)),
    "triton": Candidate(_triton, "cuda", (torch.float32, torch.bfloat16, torch.float16)),
    "flashinfer": Candidate(FlashInferAttention, "cuda", (torch.bfloat16, torch.float16), HEAD_DIMS),
    "torch": Candidate(GatherAttention),
}


class Forward(Protocol):
    """implementation: what computes: "forward", "attention_kernel", and with our own forward "operations"."""

    model: Any
    kernel: AttentionKernel

    @property
    def implementation(self) -> Mapping[str, str]: ...

    def __call__(self, batch: PackedBatch, cache: PagedKVCache) -> torch.Tensor:
        """The logits where they are wanted, `[K, V]`. Call it under torch.inference_mode()."""


class HFForward:
    """Hugging Face's own layers, with attention that goes through the pages. Any family of theirs."""

    def __init__(self, model: Any, kernel: AttentionKernel) -> None:
        install(model)
        self.model = model
        self.kernel = kernel

    @property
    def implementation(self) -> dict[str, str]:
        return {"forward": "hf", "attention_kernel": self.kernel.name}

    def __call__(self, batch: PackedBatch, cache: PagedKVCache) -> torch.Tensor:
        output = self.model(
            input_ids=batch.token_ids[None],  # [1, T]
            position_ids=batch.positions[None],  # [1, T]
            use_cache=False,
            logits_to_keep=batch.logit_index,
            paged=Paged(cache, batch.slots, self.kernel.prepare(batch, cache)),
        )
        return output.logits[0]  # [K, V]


def make_forward(model: Any, config: EngineConfig) -> Forward:
    """Raises SetupError where the settings ask for what this model or machine has not."""
    forward = _eager(model, config)
    return _with_graphs(forward, config) if config.cuda_graphs else forward


def _eager(model: Any, config: EngineConfig) -> Forward:
    if getattr(model, "weights_are_taken", False):
        raise SetupError("this model's weights were packed for another engine's native forward: load the model again")
    kernel = make_kernel(model, config.attention_kernel)
    why_not = why_not_native(model)
    if config.forward == "hf" or (config.forward == "auto" and why_not):
        return HFForward(model, kernel)
    if why_not:
        raise SetupError(f'forward: {why_not}; use "hf"')
    with one_thread():  # weights are packed here, and steps are run in the engine's thread
        return NativeForward(model, kernel, make_operations(model, config.forward))


def _with_graphs(forward: Forward, config: EngineConfig) -> Forward:
    """Raises SetupError where a step cannot be recorded: what asks the GPU for a number on the way cannot be."""
    device, made = forward.model.device.type, forward.implementation
    if device != "cuda" or made["forward"] != "native" or made["attention_kernel"] != "triton":
        raise SetupError(
            "cuda_graphs: decodes are recorded on a CUDA device, with the native forward and the triton kernel; here "
            f"are {device}, {made['forward']} and {made['attention_kernel']}: leave it off"
        )
    max_blocks = -(int(config.max_model_len) // -config.kv_block_size)
    return DecodeGraphs(forward, int(config.max_batch_size), max_blocks, cuda_graph)


def make_operations(model: Any, forward: str) -> Operations:
    """C++ where it can be had; plain PyTorch else, and for "native-torch"."""
    if forward != "native-torch" and model.device.type == "cpu" and model.dtype in CppOperations.stored:
        try:
            return CppOperations()
        except KernelUnavailable as reason:
            say(f"note: {reason}; the native forward computes with plain PyTorch")
    return TorchOperations(model.dtype)


def make_kernel(model: Any, asked: str) -> AttentionKernel:
    """The one asked for, or the fastest that runs here; a fall-back is told."""
    if asked != "auto":
        try:
            return _made(asked, model)
        except KernelUnavailable as reason:
            raise SetupError(f'attention_kernel: {asked} cannot run here: {reason}; use "auto"') from None
    reasons: list[str] = []
    for name, candidate in KERNELS.items():
        if candidate.device in (model.device.type, None):
            try:
                kernel = _made(name, model)
            except KernelUnavailable as reason:
                reasons.append(str(reason))
            else:
                if reasons:
                    say(f"note: {'; '.join(reasons)}; attention runs on the {name} kernel")
                return kernel
    raise AssertionError("the torch kernel runs everywhere")


def _made(name: str, model: Any) -> AttentionKernel:
    candidate = KERNELS[name]
    if candidate.device not in (model.device.type, None):
        raise KernelUnavailable(f"{name} is for {candidate.device}, and the model is on {model.device.type}")
    if candidate.dtypes and model.dtype not in candidate.dtypes:
        raise KernelUnavailable(f"{name} does not take {model.dtype}")
    if candidate.head_dims and (size := head_dim(model.config)) not in candidate.head_dims:
        raise KernelUnavailable(f"{name} has no head_dim of {size}")
    return candidate.make()
