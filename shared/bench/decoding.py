"""An engine in the middle of its work: so many sequences decode, each with so much context.

The prompts are not computed: a stand-in for the runner answers while the scheduler plans them and hands out blocks,
then the blocks are filled with random K/V. So a context of 4,096 tokens for 64 sequences takes seconds to set up.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import torch

from shared.bench.step_cost import InstantRunner
from shared.config import EngineConfig
from shared.errors import SetupError
from shared.registry import Phase
from shared.request import Request, SamplingParams


@dataclass(frozen=True, slots=True)
class Decoding:
    """A phase (from 8 on), so many running sequences, and the context of each when it is measured, in tokens.

    pool_factor: K/V blocks in the pool, as a multiple of those needed. forward, attention_kernel: as in EngineConfig.
    """

    phase: Phase
    num_sequences: int
    context: int
    pool_factor: int = 1
    forward: str = "auto"
    attention_kernel: str = "auto"

    @property
    def name(self) -> str:
        pool = [f"pool{self.pool_factor}"] if self.pool_factor > 1 else []
        number = f"phase{self.phase.number:02d}"
        return "-".join([number, *self._chosen, f"{self.num_sequences}x{self.context}", *pool])

    @property
    def label(self) -> str:
        pool = [f"pool x {self.pool_factor}"] if self.pool_factor > 1 else []
        running = [f"{self.num_sequences} running", f"context {self.context}"]
        return ", ".join([f"phase {self.phase.number}", *self._chosen, *running, *pool])

    @property
    def _chosen(self) -> list[str]:
        return [choice for choice in (self.forward, self.attention_kernel) if choice != "auto"]

    def config(self, num_steps: int) -> EngineConfig:
        blocks_each = (self.context + num_steps) // EngineConfig().kv_block_size + 2
        all_at_once = self.context * self.num_sequences  # nothing is computed, so one step does it
        return EngineConfig(
            max_batch_size=self.num_sequences,
            kv_num_blocks=blocks_each * self.num_sequences * self.pool_factor,
            max_model_len=self.context + num_steps + 2,
            enable_prefix_caching=False,
            prefill_budget_tokens=all_at_once,
            prefill_chunk_size=all_at_once,
            queue_capacity=max(256, self.num_sequences),
            forward=self.forward,
            attention_kernel=self.attention_kernel,
        )


@contextmanager
def decoding_engine(case: Decoding, model: Any, num_steps: int) -> Iterator[Any]:
    """An engine whose next `num_steps` steps are decodes of all sequences. Raises SetupError as build_engine does."""
    engine = case.phase.build_engine()(model, case.config(num_steps))
    runner = engine.runner
    try:
        engine.runner = InstantRunner()
        for number in range(case.num_sequences):
            engine.add_request(_request(number, case.context, num_steps), SimpleQueue[Any]().put)
        engine.step()
        _check_all_decode(case, engine)
        _fill(engine, runner.cache)
        engine.runner = runner
        yield engine
    finally:
        engine.runner = runner
        engine.close()


def _check_all_decode(case: Decoding, engine: Any) -> None:
    num_decoding = sum(seq.num_output_tokens == 1 for seq in engine.scheduler.running)
    if num_decoding != case.num_sequences:
        raise SetupError(f"{case.label}: only {num_decoding} are; the scheduler did not take all prompts in one step")


def _fill(engine: Any, cache: Any) -> None:
    """Random K/V in the blocks that are in use, so that their memory is there to be read; the rest stays untouched."""
    used = sorted(
        {block for seq in engine.scheduler.running for block in engine.scheduler.allocator.block_tables[seq.name]}
    )
    with torch.inference_mode():
        noise = torch.randn(cache.key[0, 0].shape, generator=torch.Generator().manual_seed(0))  # [P, H, D]
        for tensor in (cache.key, cache.value):  # [L, N, P, H, D]
            for layer in tensor:
                layer[torch.tensor(used)] = noise.to(tensor)


def _request(number: int, context: int, num_steps: int) -> Request:
    """Outlives the measurement; no two share a prefix."""
    prompt = [(7 * number + 3 * i) % 90 + 3 for i in range(context - 1)]
    return Request(prompt, SamplingParams(max_tokens=num_steps + 2, ignore_eos=True))
