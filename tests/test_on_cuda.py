"""What needs a GPU: skipped without one, and then nothing here has been seen to work. On one:

python -m pytest tests/test_on_cuda.py
"""

import importlib.util

import pytest
import torch

from phase08_paged_attention.attention_kernel import AttentionKernel
from shared.config import EngineConfig
from shared.registry import phase_by_number
from shared.tiny_models import FAMILIES
from tests.attention_cases import TRITON_CASES, largest_error
from tests.helpers import PA, PB, PC, Q, assert_clean, greedy, harden, reference, token_lists
from tests.test_flashinfer_attention import CASES as FLASHINFER_CASES
from tests.test_triton_attention import TOLERANCE

CUDA = torch.device("cuda")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
needs_flashinfer = pytest.mark.skipif(
    importlib.util.find_spec("flashinfer") is None, reason="FlashInfer is not installed: pip install flashinfer-python"
)


@pytest.mark.parametrize("name", TRITON_CASES)
def test_triton_compiled(name: str) -> None:
    from phase08_paged_attention.kernels.triton_attention import TritonAttention

    case = TRITON_CASES[name]
    assert largest_error(TritonAttention(), case, CUDA) <= TOLERANCE[case.query]


@needs_flashinfer
@pytest.mark.parametrize("name", FLASHINFER_CASES)
def test_flashinfer(name: str) -> None:
    from phase08_paged_attention.kernels.flashinfer_attention import FlashInferAttention

    kernel: AttentionKernel = FlashInferAttention()
    assert largest_error(kernel, FLASHINFER_CASES[name], CUDA) <= 0.03


@pytest.mark.parametrize("settings", [{}, {"cuda_graphs": True}, {"attention_kernel": "torch"}], ids=str)
@pytest.mark.parametrize("forward", ["native", "hf"])
def test_an_engine_on_a_gpu_says_what_generate_says(forward: str, settings: dict[str, object]) -> None:
    """In fp32. Two rounds: the second replays what the first recorded."""
    if forward == "hf" and "cuda_graphs" in settings:
        pytest.skip("graphs are for the native forward")
    model = FAMILIES["llama"]().to(CUDA, torch.float32)
    config = EngineConfig(forward=forward, kv_block_size=4, kv_num_blocks=256, **settings)  # type: ignore[arg-type]
    engine = phase_by_number(12).build_engine()(model, config, None, None)
    harden(engine)
    try:
        for _ in range(2):
            outputs = engine.generate([greedy(prompt, 16) for prompt in (PA, PB, PC, Q)])
            assert token_lists(outputs) == [list(reference("llama", tuple(p), 16)) for p in (PA, PB, PC, Q)]
        assert_clean(engine)
    finally:
        engine.close()
