"""What FlashInfer is handed, checked by a stand-in that reads it as FlashInfer's manual says: it runs on CUDA alone."""

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from phase08_paged_attention.attention_kernel import AttentionOptions
from phase08_paged_attention.forward import make_kernel
from phase08_paged_attention.kernels.flashinfer_attention import FlashInferAttention, block_lists
from phase08_paged_attention.kernels.unavailable import KernelUnavailable
from shared.errors import SetupError
from tests.attention_cases import Case, OffByOne, around_edges, batch_of, largest_error, prepared


class StandIn:
    """BatchPrefillWithPagedKVCacheWrapper, one query at a time, in fp64. planned: how often."""

    def __init__(self, workspace: torch.Tensor, kv_layout: str, *, backend: str) -> None:
        assert (workspace.dtype, workspace.nbytes, kv_layout, backend) == (torch.uint8, 2**27, "HND", "fa2")
        self.planned = 0

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool,
        sm_scale: float,
        window_left: int,
        logits_soft_cap: float | None,
        q_data_type: torch.dtype,
    ) -> None:
        tables = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert {table.dtype for table in tables} == {torch.int32}
        self.rows, self.starts, self.pages, self.last_lens = (table.tolist() for table in tables)
        self.shape = (num_qo_heads, head_dim_qk)
        self.page_size, self.group, self.dtype = page_size, num_qo_heads // num_kv_heads, q_data_type
        assert causal
        self.scale, self.window_left, self.cap = sm_scale, window_left, logits_soft_cap or 0.0
        self.planned += 1

    def run(self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        assert (q.dtype, q.shape[1:], q.is_contiguous()) == (self.dtype, self.shape, True)
        out = torch.empty_like(q)
        for row, (first, end) in enumerate(zip(self.rows, self.rows[1:])):
            key, value = (self.context(row, pages) for pages in paged_kv_cache)  # [S, Hq, D] each
            for token in range(first, end):
                last = len(key) - (end - token)  # the row's last query sees the last position
                low = 0 if self.window_left == -1 else max(0, last - self.window_left)
                scores = torch.einsum("hd,shd->hs", q[token].double(), key[low : last + 1]) * self.scale
                scores = self.cap * torch.tanh(scores / self.cap) if self.cap else scores
                out[token] = torch.einsum("hs,shd->hd", scores.softmax(-1), value[low : last + 1])
        return out

    def context(self, row: int, pages: torch.Tensor) -> torch.Tensor:
        """`[S, Hq, D]` of the row's pages `[N, H, P, D]`."""
        taken = pages[self.pages[self.starts[row] : self.starts[row + 1]]]  # [pages of the row, H, P, D]
        tokens = taken.double().transpose(1, 2).flatten(0, 1)  # [tokens, H, D]
        num_unused = self.page_size - self.last_lens[row]
        return tokens[: len(tokens) - num_unused].repeat_interleave(self.group, dim=1)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> FlashInferAttention:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    flashinfer = SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=StandIn)
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer)
    return FlashInferAttention()


ROWS = ((1, 1), (7, 1), (8, 1), (9, 1), (12, 5), (33, 2), (40, 23))
HALF: dict[str, Any] = {"head_dim": 64, "stored": torch.bfloat16, "query": torch.bfloat16}
CASES = {
    "blocks of 1": Case(ROWS, block_size=1, **HALF),
    "blocks of 3": Case(ROWS, block_size=3, **HALF),
    "blocks of 7": Case(ROWS, block_size=7, **HALF),
    "around edges": Case(around_edges(16), block_size=16, **HALF),
    "one row": Case(((17, 17),), block_size=16, **HALF),
    "no groups": Case(ROWS, group=1, **HALF),
    "8 per group": Case(ROWS, group=8, num_kv_heads=1, **HALF),
    "window of 1": Case(ROWS, block_size=8, window=1, **HALF),
    "window of 5": Case(ROWS, block_size=8, window=5, **HALF),
    "softcap": Case(ROWS, softcap=2.0, **HALF),
    "fp16": Case(ROWS, head_dim=128, stored=torch.float16, query=torch.float16),
    "fp32 query": Case(ROWS, head_dim=64, stored=torch.bfloat16),
}


@pytest.mark.parametrize("name", CASES)
def test_what_it_is_handed_is_the_step(kernel: FlashInferAttention, name: str) -> None:
    assert largest_error(kernel, CASES[name]) <= 0.03  # 8 bits of a query, and of an output below 4


def test_the_check_finds_a_context_that_is_off_by_one(kernel: FlashInferAttention) -> None:
    case = Case(tuple((context - 1, num) for context, num in ROWS[1:]), block_size=64, **HALF)
    assert largest_error(kernel, case) <= 0.03
    assert not largest_error(OffByOne(kernel, -1), case) <= 0.1


def test_a_step_is_planned_once_for_all_layers_of_a_kind(kernel: FlashInferAttention) -> None:
    case = CASES["window of 5"]
    wide = AttentionOptions(case.options.scale)
    for _ in range(2):
        batch, cache, query = prepared(case)
        attend = kernel.prepare(batch, cache)
        for options in (wide, case.options, wide, case.options):
            attend(1, query, options)
    assert [kernel._planners[options].planned for options in (wide, case.options)] == [2, 2]


def test_block_tables_lose_their_padding_and_what_is_not_written_yet() -> None:
    batch, _ = batch_of(((9, 1), (4, 2), (1, 1)), block_size=4)
    ahead = replace(batch, block_tables=torch.tensor([[5, 3, 8, 7], [2, 6, 0, 0], [4, 0, 0, 0]]))
    starts, blocks, last_lens = block_lists(ahead, block_size=4)
    assert (starts.tolist(), blocks.tolist(), last_lens.tolist()) == ([0, 3, 4, 5], [5, 3, 8, 2, 4], [1, 4, 1])


@pytest.mark.usefixtures("kernel")
def test_a_head_it_has_not_goes_to_the_kernel_that_takes_any(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    config: Any = SimpleNamespace(head_dim=64, get_text_config=lambda: config)
    model = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16, config=config)
    assert make_kernel(model, "auto").name == "flashinfer"
    config.head_dim = 80
    assert make_kernel(model, "auto").name == "torch"
    assert "flashinfer has no head_dim of 80; attention runs on the torch kernel" in capsys.readouterr().err
    with pytest.raises(
        SetupError, match=r'attention_kernel: flashinfer cannot run here: .*no head_dim of 80; use "auto"'
    ):
        make_kernel(model, "flashinfer")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_why() -> None:
    with pytest.raises(KernelUnavailable, match="CUDA device"):
        FlashInferAttention()


def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with pytest.raises(KernelUnavailable, match="pip install flashinfer-python"):
        FlashInferAttention()
