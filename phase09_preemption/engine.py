"""Phase 9: phase 8 with a scheduler that takes memory back, and host memory to put it into."""

from typing import Any

from phase03_request_queue.request_queue import RequestQueue
from phase06_block_allocator.block_allocator import BlockAllocator
from phase08_paged_attention.forward import make_forward
from phase08_paged_attention.model_runner import ModelRunner
from phase08_paged_attention.paged_kv_cache import PagedKVCache
from phase09_preemption.block_copier import BlockCopier
from phase09_preemption.cpu_swap_manager import CPUSwapManager
from phase09_preemption.scheduler import Scheduler
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
    swap = CPUSwapManager(config.num_swap_blocks, BlockCopier(cache, config.num_swap_blocks))
    return StepEngine(
        inputs=InputProcessor(model, config, tokenizer, pool_slots=config.num_kv_slots),
        intake=RequestQueue(config.queue_capacity, config.queue_timeout_s),
        scheduler=Scheduler(config, allocator, swap, events),
        runner=ModelRunner(make_forward(model, config), Sampler(), cache, allocator.block_tables),
        events=events,
    )
