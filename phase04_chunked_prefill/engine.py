"""Phase 4: phase 3 with a scheduler that spends a budget of tokens per step."""

from typing import Any

from phase02_iteration_scheduling.runner import SequenceRunner
from phase03_request_queue.request_queue import RequestQueue
from phase04_chunked_prefill.scheduler import Scheduler
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
    config = resolve_for_model(config, model)
    events = EventLog()
    return StepEngine(
        inputs=InputProcessor(model, config, tokenizer),
        intake=RequestQueue(config.queue_capacity, config.queue_timeout_s),
        scheduler=Scheduler(config, events),
        runner=SequenceRunner(model, Sampler()),
        events=events,
    )
