"""From a system's spec to the system, in the process that will run it."""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch

from shared.bench.hf_baselines import HFBatches, HFReference
from shared.bench.hf_continuous import HFContinuous
from shared.bench.late_arrival import serve_with_late_arrival
from shared.bench.latency import Served
from shared.bench.phase_system import PhaseSystem, Serve, serve_at_once
from shared.bench.systems import ModelChoice, SystemInfo, SystemSpec
from shared.config import resolve_config
from shared.input_processor import eos_token_ids, model_max_len
from shared.registry import Phase
from shared.request import Request

TINY_MAX_LEN = 2048  # gpu_shared_prefix needs 1,328
SETTINGS = {"max_batch_size": 2, "prefill_chunk_size": 4, "prefill_budget_tokens": 4}  # setting -> first phase it is of


class System(Protocol):
    def serve(self, requests: tuple[Request, ...]) -> Served:
        """What comes of all of the requests."""


def with_device_peak(serve: Callable[[tuple[Request, ...]], Served], requests: tuple[Request, ...]) -> Served:
    """Serve them; on a GPU, also what its memory held at most meanwhile."""
    if not torch.cuda.is_available():
        return serve(requests)
    torch.cuda.reset_peak_memory_stats()
    served = serve(requests)
    return replace(served, counters=served.counters | {"peak_device_bytes": torch.cuda.max_memory_allocated()})


def build_system(spec: SystemSpec) -> tuple[System, SystemInfo]:
    """Load the model and wire the system. Raises SetupError for what the user can mend."""
    if spec.model.num_threads is not None:
        torch.set_num_threads(spec.model.num_threads)
    model, tokenizer, name = load(spec.model, load_tokenizer=spec.is_reference)
    info = _model_info(model, tokenizer, name)
    if spec.phase is not None:
        return _build_phase(spec, spec.phase, model, info)
    if spec.hf_batch_size is not None:
        kind = HFContinuous if spec.is_hf_continuous else HFBatches
        return kind(model, spec.hf_batch_size), replace(info, settings={"max_batch_size": spec.hf_batch_size})
    return HFReference(model, tokenizer), info


def load(choice: ModelChoice, load_tokenizer: bool = False) -> tuple[Any, Any, str]:
    """Model, tokenizer or None, and the model's name. Raises SetupError."""
    if choice.is_tiny:
        from shared.tiny_models import tiny_llama

        return tiny_llama(max_position_embeddings=TINY_MAX_LEN).to(getattr(torch, choice.dtype)), None, "tiny"
    from shared.model_loader import load_model

    loaded = load_model(choice.name, dtype=choice.dtype, device=choice.device, load_tokenizer=load_tokenizer)
    return loaded.model, loaded.tokenizer, loaded.name


def _build_phase(spec: SystemSpec, phase: Phase, model: Any, info: SystemInfo) -> tuple[System, SystemInfo]:
    engine = phase.build_engine()(model, spec.config)
    resolved, _ = resolve_config(spec.config, device=info.device, model_max_len=info.max_model_len)
    settings = {name: getattr(resolved, name) for name, first in SETTINGS.items() if phase.number >= first}
    implementation = dict(getattr(engine, "implementation", {}))
    info = replace(info, settings={"max_batch_size": 1} | settings, implementation=implementation)
    return PhaseSystem(engine, _serve(spec.late_after_tokens)), info


def _serve(late_after_tokens: int | None) -> Serve:
    if late_after_tokens is None:
        return serve_at_once
    return partial(serve_with_late_arrival, num_tokens=late_after_tokens)


def _model_info(model: Any, tokenizer: Any, name: str) -> SystemInfo:
    num_embeddings = model.get_input_embeddings().num_embeddings
    return SystemInfo(
        model_name=name,
        vocab_size=num_embeddings if tokenizer is None else min(num_embeddings, len(tokenizer)),
        max_model_len=model_max_len(model) or sys.maxsize,
        num_threads=torch.get_num_threads(),
        device=model.device.type,
        special_ids=_special_ids(model, tokenizer),
    )


def _special_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    config = model.config.get_text_config()
    named = [getattr(config, name, None) for name in ("bos_token_id", "pad_token_id")]
    added = getattr(tokenizer, "added_tokens_decoder", {})  # id -> token
    special = {token_id for token_id, token in added.items() if token.special}
    return eos_token_ids(model) | special | {token_id for token_id in named if token_id is not None}
