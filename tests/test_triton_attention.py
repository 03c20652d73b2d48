"""The Triton kernel under Triton's interpreter, in a process of its own: it is chosen as Triton is loaded."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping

import pytest
import torch

from phase08_paged_attention.kernels.triton_attention import TritonAttention
from phase08_paged_attention.kernels.unavailable import KernelUnavailable
from shared.lesson_diff import ROOT
from tests.attention_cases import TRITON_CASES

HAS_TRITON = importlib.util.find_spec("triton") is not None

# Computed in fp32 whatever is stored; a query of fp16 makes outputs of 11 bits.
TOLERANCE = {torch.float32: 5e-6, torch.float16: 2e-3}


@pytest.fixture(scope="module")
def errors() -> Mapping[str, float]:
    """case -> the largest error of the kernel in it."""
    if not HAS_TRITON:
        pytest.skip("Triton is not installed: it is there on Linux alone")
    done = subprocess.run(
        [sys.executable, "-m", "tests.attention_cases"],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", TRITON_CASES)
def test_triton_computes_attention_and_reads_nothing_else(errors: Mapping[str, float], name: str) -> None:
    assert errors[name] <= TOLERANCE[TRITON_CASES[name].query]


def test_the_check_finds_a_context_that_is_off_by_one(errors: Mapping[str, float]) -> None:
    assert errors["one position too many"] > 1e-2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(KernelUnavailable, match="CUDA device"):
        TritonAttention()
