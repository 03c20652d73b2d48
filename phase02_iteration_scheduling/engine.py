"""Phase 2: the step loop of `shared.engine`, with its first scheduler and its simplest runner."""

from typing import Any

from phase02_iteration_scheduling.intake import Intake
from phase02_iteration_scheduling.runner import SequenceRunner
from phase02_iteration_scheduling.scheduler import Scheduler
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
        intake=Intake(),
        scheduler=Scheduler(config, events),
        runner=SequenceRunner(model, Sampler()),
        events=events,
    )
