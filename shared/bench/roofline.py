"""What this machine could do at best: read bandwidth and matmul rate, measured, and the shortest step they allow.

    step >= max(bytes to read / read bandwidth, floating-point operations / matmul rate)

Letters: L layers, H KV heads, Hq query heads, D head_dim, B sequences, S tokens of context.
"""

import time
from dataclasses import dataclass
from typing import Any

import torch

from shared.kv_sizing import head_dim, num_kv_heads

READ_BYTES = 512 << 20  # far beyond any cache
MATMUL_SIZE = 2048
NUM_TRIES = 3


@dataclass(frozen=True, slots=True)
class Machine:
    """Bytes per second read from memory, floating-point operations per second of a large matmul."""

    read_rate: float
    matmul_rate: float


@dataclass(frozen=True, slots=True)
class Work:
    """What a decode step cannot do without, of all sequences together."""

    num_bytes: float
    num_operations: float

    def shortest_s(self, machine: Machine) -> float:
        return max(self.num_bytes / machine.read_rate, self.num_operations / machine.matmul_rate)


@torch.inference_mode()
def measure_machine(dtype: torch.dtype) -> Machine:
    """The best of a few tries, with torch's threads. Takes a second or two."""
    data = torch.ones(READ_BYTES // 4)  # fp32: adding up in bf16 would be compute
    square = torch.randn(MATMUL_SIZE, MATMUL_SIZE).to(dtype)
    read_s = min(_seconds(data.sum) for _ in range(NUM_TRIES))
    matmul_s = min(_seconds(lambda: torch.nn.functional.linear(square, square)) for _ in range(NUM_TRIES))
    return Machine(READ_BYTES / read_s, 2 * MATMUL_SIZE**3 / matmul_s)


def decode_work(model: Any, num_sequences: int, context: int) -> Work:
    """Weights once, K/V of every context once; a multiply and an add for each weight and sequence, and attention's."""
    config = model.config.get_text_config()
    num_layers, per_head = int(config.num_hidden_layers), head_dim(config)
    linears = [module.weight for module in model.modules() if isinstance(module, torch.nn.Linear)]  # a tied head once
    num_weights = sum(weight.numel() for weight in linears)
    num_kv = num_sequences * context * num_layers * 2 * num_kv_heads(config) * per_head
    attention = 4 * num_sequences * context * num_layers * int(config.num_attention_heads) * per_head
    itemsize = linears[0].element_size()
    return Work(itemsize * (num_weights + num_kv), 2.0 * num_weights * num_sequences + attention)


def _seconds(call: Any) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
