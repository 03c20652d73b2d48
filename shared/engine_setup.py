"""Settings and a model meet here: what `build_engine` of every phase begins with."""

from dataclasses import replace
from typing import Any

from shared.config import EngineConfig, resolve_config
from shared.hf_forward import check_layers, check_version
from shared.input_processor import model_max_len
from shared.kv_sizing import kv_num_blocks


def resolve_for_model(config: EngineConfig, model: Any, *, with_blocks: bool = False) -> EngineConfig:
    """The settings with every "auto" filled in for this model and its device; the model is set to evaluate.

    with_blocks: kv_num_blocks too, from phase 6 on. Raises SetupError for a model that no phase runs, or not
    with this transformers.
    """
    check_version(model.config)
    check_layers(model.config)
    model.eval()
    config, _ = resolve_config(config, device=model.device.type, model_max_len=model_max_len(model))
    return replace(config, kv_num_blocks=kv_num_blocks(config, model)[0]) if with_blocks else config
