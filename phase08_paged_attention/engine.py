"""Phase 8: phase 6's blocks, now with K/V in them, and a runner that packs each step into one forward pass."""

from typing import Any

from phase03_request_queue.request_queue import RequestQueue
from phase06_block_allocator.block_allocator import BlockAllocator
from phase06_block_allocator.scheduler import Scheduler
from phase08_paged_attention.forward import make_forward
from phase08_paged_attention.model_runner import ModelRunner
from phase08_paged_attention.paged_kv_cache import PagedKVCache
from shared.config import EngineConfig
from shared.engine import StepEngine
from shared.engine_setup import resolve_for_model
from shared.events import EventLog
from shared.input_processor import InputProcessor
from shared.sampler import Sampler


def build_engine(
    model: Any,
    config: EngineConfig,
    tokenizer: Any = None,
    draft_model: Any = None,  # noqa: ARG001 - for phase 12
) -> StepEngine:
    config = resolve_for_model(config, model, with_blocks=True)
    events = EventLog()
    allocator = BlockAllocator(int(config.kv_num_blocks), config.kv_block_size)
    cache = PagedKVCache.for_model(model, allocator.num_blocks, allocator.block_size)
    return StepEngine(
        inputs=InputProcessor(model, config, tokenizer, pool_slots=config.num_kv_slots, reserves_all=True),
        intake=RequestQueue(config.queue_capacity, config.queue_timeout_s),
        scheduler=Scheduler(config, allocator, events),
        runner=ModelRunner(make_forward(model, config), Sampler(), cache, allocator.block_tables),
        events=events,
    )
