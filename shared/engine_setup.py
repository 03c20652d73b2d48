"""Settings and a model meet here: what `build_engine` of every phase begins with."""

from typing import Any

from shared.config import EngineConfig, resolve_config
from shared.input_processor import model_max_len


def resolve_for_model(config: EngineConfig, model: Any) -> EngineConfig:
    """The settings with every "auto" filled in for this model and its device; the model is set to evaluate."""
    model.eval()
    return resolve_config(config, device=model.device.type, model_max_len=model_max_len(model))[0]
