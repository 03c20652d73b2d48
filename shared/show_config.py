"""`--show-config`: every resolved setting, why it is what it is, and whether this model fits."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import psutil
import torch
from rich.console import Console
from rich.table import Table

from shared.config import EngineConfig, resolve_config
from shared.input_processor import model_max_len
from shared.kv_sizing import kv_bytes_per_token, kv_num_blocks
from shared.model_loader import LoadedModel
from shared.registry import Phase

Row = tuple[str, str, str]  # setting, value, reason


def print_config(rows: Iterable[Row], chapter: Phase, implementation: Mapping[str, str] | None = None) -> None:
    """A table on stderr, so that what the command itself prints stays clean.

    rows: `config_rows`, taken before the engine was built: it may repack the weights that they count.
    implementation: the built engine's, which says what became of "auto".
    """
    table = Table("setting", "value", "why", title=f"{chapter.label}, as configured", title_justify="left")
    chosen = dict(implementation or {})
    for name, value, why in rows:
        if name in chosen and value != chosen[name]:
            value, why = chosen[name], f"{value} is this, for this model and machine"
        chosen.pop(name, None)
        table.add_row(name, value, why)
    for name, value in chosen.items():
        table.add_row(name, value, "follows from the above")
    Console(stderr=True).print(table)


def config_rows(config: EngineConfig, loaded: LoadedModel, *, has_pool: bool = True) -> Iterator[Row]:
    """has_pool: K/V is in blocks (phase 6 on). Raises InvalidConfig where a setting does not go with the model."""
    model_len = model_max_len(loaded.model)
    resolved, reasons = resolve_config(config, device=loaded.device.type, model_max_len=model_len)
    num_blocks, reasons["kv_num_blocks"] = kv_num_blocks(resolved, loaded.model)
    resolved = replace(resolved, kv_num_blocks=num_blocks)
    if resolved.swap_num_blocks == "auto":
        resolved = replace(resolved, swap_num_blocks=resolved.num_swap_blocks)
        reasons["swap_num_blocks"] = "half as many as kv_num_blocks where preemption_mode is swap"
    yield "model", loaded.name, loaded.reasons["model"]
    yield "dtype", str(loaded.dtype).removeprefix("torch."), loaded.reasons["dtype"]
    yield "device", str(loaded.device), loaded.reasons["device"]
    yield "threads", str(torch.get_num_threads()), "torch's choice; OMP_NUM_THREADS sets it"
    for name, reason in sorted(reasons.items()):
        yield name, str(getattr(resolved, name)), reason
    yield from memory_rows(resolved, loaded, has_pool=has_pool)


def memory_rows(config: EngineConfig, loaded: LoadedModel, *, has_pool: bool) -> Iterator[Row]:
    """Weights, K/V at its largest, and what the device has left for it."""
    weights = sum(p.numel() * p.element_size() for p in loaded.model.parameters())
    per_token = kv_bytes_per_token(loaded.model.config, loaded.dtype.itemsize)
    if has_pool:
        worst, of_what = (
            per_token * config.num_kv_slots,
            f"{config.kv_num_blocks} blocks of {config.kv_block_size} tokens",
        )
    else:
        worst = per_token * int(config.max_batch_size) * int(config.max_model_len)
        of_what = f"{config.max_batch_size} sequences of {config.max_model_len} tokens"
    free = _free_bytes(loaded.device)
    yield "weights", _mib(weights), "in memory now"
    yield "K/V per token", f"{per_token:,} bytes", "2 x layers x KV heads x head_dim x bytes per number"
    yield "K/V at most", _mib(worst), of_what
    verdict = "yes" if worst <= free else "only shorter sequences, or fewer at once"
    yield "fits", verdict, f"{_mib(free)} free for K/V"


def _free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.0f} MiB"
