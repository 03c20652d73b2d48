"""What loads a model or builds an engine leaves no team of threads behind in the thread that did it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shared.one_thread import one_thread
from shared.tiny_models import tiny_llama
from tests.test_guards import ROOT

PROGRAM = """
import os, sys, torch
torch.set_num_threads(2)
from shared.config import EngineConfig
from shared.model_loader import load_model
from shared.registry import newest_phase
before = len(os.listdir("/proc/self/task"))
loaded = load_model(sys.argv[1], dtype="float32", device="cpu", load_tokenizer=False)
newest_phase().build_engine()(loaded.model, EngineConfig(kv_num_blocks=8))
print(len(os.listdir("/proc/self/task")) - before)
"""


def test_the_number_of_threads_is_put_back_also_after_an_error() -> None:
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    with pytest.raises(ValueError, match="inside"), one_thread():
        raise ValueError("inside")
    assert torch.get_num_threads() == before


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
def test_loading_and_building_start_no_team_of_threads(tmp_path: Path) -> None:
    tiny_llama(hidden_size=512, intermediate_size=2048, vocab_size=4000).to(torch.float32).save_pretrained(tmp_path)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert printed.strip().splitlines()[-1] == "0"
