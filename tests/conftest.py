"""Fixtures of the whole suite: one thread for tiny models, and the real model once per session."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from shared.registry import PHASES, Phase
from tests.helpers import phase_ids


@pytest.fixture(params=PHASES, ids=phase_ids)
def phase(request: pytest.FixtureRequest) -> Phase:
    """Every phase of the registry, one after the other."""
    return request.param


@pytest.fixture(autouse=True)
def one_thread_for_tiny_models(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tiny matrices gain nothing from a second thread, and lose when two processes share two cores."""
    before = torch.get_num_threads()
    if not request.node.get_closest_marker("real_model"):
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def real_model_folder() -> str:
    """The default model, fetched into the user's cache if it is not there."""
    from shared.model_loader import default_model_folder

    return str(default_model_folder())


@pytest.fixture(scope="session")
def real_reference(real_model_folder: str) -> Any:
    """The default model for the reference, never given to an engine."""
    from shared.model_loader import load_model

    return load_model(real_model_folder)


@pytest.fixture
def real_model(real_model_folder: str) -> Any:
    """The default model for one engine, which owns it from then on."""
    from shared.model_loader import load_model

    return load_model(real_model_folder)
