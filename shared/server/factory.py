"""The application for a server of your own choice, set up by the environment:

    PHASE=4 MODEL_NAME=path/to/model uvicorn shared.server.factory:app_from_env --factory --port 8001

PHASE (default: the newest), MODEL_NAME, PAGESERVE_API_KEY, PAGESERVE_ALLOWED_HOSTS (comma-separated),
PAGESERVE_LIVE_PAGE (1 or 0; default: over loopback only), and every setting of EngineConfig by its name in capitals.
"""

import os
from typing import Any

from fastapi import FastAPI

from shared.config import EngineConfig
from shared.errors import InvalidConfig, SetupError
from shared.model_loader import load_draft_model, load_model
from shared.registry import newest_phase, phase_by_number
from shared.server.app import create_app
from shared.server.settings import ServerSettings


def app_from_env() -> FastAPI:
    """Loads the model and builds the engine, which lives as long as the process. Exits with a line if it cannot."""
    try:
        phase = phase_by_number(_number(os.environ["PHASE"])) if os.environ.get("PHASE") else newest_phase()
        config, limits = EngineConfig.from_env(), limits_from_env()
        ServerSettings(**limits)  # what is wrong with them is said before a model is loaded
        loaded = load_model()
        engine = phase.build_engine()(loaded.model, config, loaded.tokenizer, load_draft_model(config))
        return create_app(engine, loaded.tokenizer, loaded.name, title=phase.label, **limits)
    except (SetupError, InvalidConfig) as error:
        raise SystemExit(f"error: {error}") from error


def limits_from_env() -> dict[str, Any]:
    """The fields of ServerSettings that the environment sets."""
    limits: dict[str, Any] = {}
    if (key := os.environ.get("PAGESERVE_API_KEY")) is not None:  # empty is a secret that was not filled in
        limits["api_key"] = key
    if hosts := os.environ.get("PAGESERVE_ALLOWED_HOSTS"):
        limits["allowed_hosts"] = [name.strip() for name in hosts.split(",") if name.strip()]
    if choice := os.environ.get("PAGESERVE_LIVE_PAGE"):
        if choice not in ("0", "1"):
            raise InvalidConfig(f"PAGESERVE_LIVE_PAGE: must be 1 or 0, got {choice!r}")
        limits["live_page"] = choice == "1"
    return limits


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise SetupError(f"PHASE={text!r} is no number") from None
