"""Fixtures of the whole suite: every phase in turn, and the real model."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

from shared.registry import PHASES, Phase
from shared.workshop.trees import ROOT
from tests.helpers import phase_ids

# Files with deadlines, real processes or thread counts: they run one by one, while nothing else computes.
ALONE = {
    *("test_bench_load.py", "test_bench_serving.py", "test_browser.py", "test_cases_server.py"),
    *("test_faults_clients.py", "test_faults_engine.py", "test_faults_process.py", "test_live_page.py"),
    *("test_notebooks.py", "test_one_thread.py", "test_security_browser.py", "test_server_interruptions.py"),
    *("test_server_process.py", "test_server_real_model.py", "test_soak.py"),
}
EVERYTHING: pytest.StashKey[list[pytest.Item]] = pytest.StashKey()  # what was found, before `-m` and `-k` choose
seconds_of: Counter[str] = Counter()  # test file -> seconds spent in it, fixtures included


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[EVERYTHING] = [*items]
    for item in items:
        if item.path.name in ALONE:
            item.add_marker("alone")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    seconds_of[report.nodeid.split("::")[0]] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Who spends the suite's 15 minutes."""
    terminalreporter.section("seconds by file")
    for name, seconds in seconds_of.most_common():
        if seconds >= 1:
            terminalreporter.write_line(f"{seconds:7.1f}  {name}")


@pytest.fixture(params=PHASES, ids=phase_ids)
def phase(request: pytest.FixtureRequest) -> Phase:
    """Every phase of the registry, one after the other."""
    return request.param


def pytest_configure() -> None:
    """One thread: tiny matrices gain nothing from more, and two teams of threads on two cores ruin each other.

    Hypothesis draws the same examples in every run; `HYPOTHESIS_PROFILE=default` looks for new ones.
    """
    torch.set_num_threads(1)
    hypothesis.settings.register_profile("same every time", derandomize=True)
    hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same every time"))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The course's website, as `make site` builds it."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        build, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def real_model_folder() -> str:
    """The default model, fetched into the user's cache if it is not there."""
    from shared.model_loader import default_model_folder

    return str(default_model_folder())


@pytest.fixture(scope="session")
def real_reference(real_model_folder: str) -> Any:
    """The default model for the reference, never given to an engine."""
    from shared.model_loader import load_model

    return load_model(real_model_folder, dtype="float32", device="cpu")


@pytest.fixture
def real_model(real_model_folder: str) -> Any:
    """The default model for one engine, which owns it from then on."""
    from shared.model_loader import load_model

    return load_model(real_model_folder, dtype="float32", device="cpu")
