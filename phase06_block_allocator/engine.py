"""Phase 6: phase 4 with memory counted in blocks. The K/V itself is still Hugging Face's, one cache per sequence."""

from typing import Any

from phase02_iteration_scheduling.runner import SequenceRunner
from phase03_request_queue.request_queue import RequestQueue
from phase06_block_allocator.block_allocator import BlockAllocator
from phase06_block_allocator.scheduler import Scheduler
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
    return StepEngine(
        inputs=InputProcessor(model, config, tokenizer, pool_slots=config.num_kv_slots, reserves_all=True),
        intake=RequestQueue(config.queue_capacity, config.queue_timeout_s),
        scheduler=Scheduler(config, allocator, events),
        runner=SequenceRunner(model, Sampler()),
        events=events,
    )
