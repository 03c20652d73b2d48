"""Every attention kernel against the plain one in fp64. The kernels themselves are required, not what stands in."""

import itertools
import threading
from collections.abc import Iterator
from functools import lru_cache

import pytest
import torch

from phase08_paged_attention.attention_kernel import AttentionKernel
from phase08_paged_attention.gather_attention import GatherAttention
from phase08_paged_attention.kernels.cpp_attention import CppAttention
from phase08_paged_attention.kernels.numba_attention import NumbaAttention
from tests.attention_cases import LAYER, Case, OffByOne, around_edges, expected, largest_error, prepared

KERNELS = {"cpp": CppAttention, "numba": NumbaAttention, "torch": GatherAttention}

# (pool, query) -> the largest error allowed in outputs of about 1.
# fp32: 24 bits, sums of up to a few hundred terms. A bf16 pool holds exact fp32 numbers, so the same.
# bf16 queries: outputs are rounded to 8 bits (0.8 % of up to 4), and the plain kernel computes in bf16 throughout.
TOLERANCE = {
    (torch.float32, torch.float32): 5e-6,
    (torch.float64, torch.float64): 1e-13,
    (torch.bfloat16, torch.float32): 5e-6,
    (torch.bfloat16, torch.bfloat16): 4e-2,
}

HEAD_DIMS, GROUPS, BLOCK_SIZES = (3, 16, 40, 64, 80, 128, 256), (1, 2, 3, 4, 8), (1, 3, 7, 16, 32)
WINDOWS = (None, 1, 3, 16, 50, 1000)


def cases() -> Iterator[Case]:
    """Every head_dim with every group; every block size with every window, capped and not, in every precision."""
    sizes = itertools.cycle(BLOCK_SIZES)
    for head_dim, group in itertools.product(HEAD_DIMS, GROUPS):
        block_size = next(sizes) if group != 8 else 16
        yield Case(around_edges(block_size), head_dim, group, block_size=block_size)
    precisions = itertools.cycle(TOLERANCE)
    for block_size, window, softcap in itertools.product(BLOCK_SIZES, WINDOWS, (None, 3.0)):
        stored, query = next(precisions)
        rows = around_edges(block_size)
        yield Case(rows, block_size=block_size, window=window, softcap=softcap, stored=stored, query=query)
    for stored, query in TOLERANCE:
        for head_dim in (64, 80, 3):
            yield Case(around_edges(16), head_dim, stored=stored, query=query)
    yield Case(((4096, 1), (4095, 5), (1, 1)), 64, window=None)


CASES = {
    f"D{c.head_dim} G{c.group} P{c.block_size} window {c.window} cap {c.softcap} "
    f"{str(c.stored)[6:]} {str(c.query)[6:]} {len(c.rows)} rows": c
    for c in cases()
}


@lru_cache
def kernel_of(name: str) -> AttentionKernel:
    """Fails, with the reason, where the kernel is unavailable."""
    return KERNELS[name]()


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> AttentionKernel:
    return kernel_of(request.param)


@pytest.fixture(params=["cpp", "numba"])
def fast_kernel(request: pytest.FixtureRequest) -> AttentionKernel:
    return kernel_of(request.param)


@pytest.fixture(params=[1, 2])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_kernel_computes_attention_and_reads_nothing_else(kernel: AttentionKernel, case: Case) -> None:
    assert largest_error(kernel, case) <= TOLERANCE[case.stored, case.query]


def test_it_is_the_same_on_any_number_of_threads(fast_kernel: AttentionKernel, num_threads: int) -> None:
    assert largest_error(fast_kernel, Case(around_edges(16), 64)) <= TOLERANCE[torch.float32, torch.float32]
    assert torch.get_num_threads() == num_threads, "it changed torch's"


@pytest.mark.parametrize("by", [1, -1])
@pytest.mark.parametrize(
    "rows", [((33, 1), (20, 1)), ((20, 5), (40, 5)), ((36, 32),)], ids=["decode", "verify", "chunk"]
)
def test_the_check_finds_a_context_that_is_off_by_one(
    fast_kernel: AttentionKernel, rows: tuple[tuple[int, int], ...], by: int
) -> None:
    assert largest_error(OffByOne(fast_kernel, by), Case(rows, 64)) > 1e-2


def test_two_engines_may_call_a_kernel_at_once(fast_kernel: AttentionKernel) -> None:
    case = Case(around_edges(16), 64)
    batch, cache, query = prepared(case)
    right = expected(case, batch, cache, query)
    errors: list[float] = []
    start = threading.Barrier(2)

    def call() -> None:
        torch.set_num_threads(2)  # this thread's
        attend = fast_kernel.prepare(batch, cache)
        start.wait(timeout=10)
        for _ in range(20):
            got = attend(LAYER, query, case.options)
            errors.append(float((got - right).abs().nan_to_num(nan=float("inf")).max()))

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(errors) == 40
    assert max(errors) <= TOLERANCE[torch.float32, torch.float32]


@pytest.mark.parametrize(
    ("head_dim", "stored"),
    [(64, torch.float32), (40, torch.float32), (64, torch.bfloat16), (64, torch.float64)],
)
def test_cpp_gives_a_row_the_same_bits_in_any_company(head_dim: int, stored: torch.dtype) -> None:
    """Alone, batched, as one chunk, as chunks cut anywhere or as decodes, at every block size."""
    context = 100
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(2, context, 2, head_dim, generator=generator)
    queries = torch.randn(context, 6, head_dim, generator=generator)
    one_chunk = _run(numbers, queries, stored, 16, [context])
    for block_size in BLOCK_SIZES:
        for lengths in ([context], [70] + [1] * 30, [5] * 20, [64, 36], [50, 1, 16, 33]):
            assert torch.equal(_run(numbers, queries, stored, block_size, lengths), one_chunk), (block_size, lengths)


def _run(
    numbers: torch.Tensor, queries: torch.Tensor, stored: torch.dtype, block_size: int, lengths: list[int]
) -> torch.Tensor:
    """One sequence, run in steps of these lengths, each next to a chunk and a decode of others."""
    kernel, done, outputs = kernel_of("cpp"), 0, []
    for length in lengths:
        company = ((37, 21), (70, 1)) if done else ()
        done += length
        case = Case((*company, (done, length)), queries.shape[-1], block_size=block_size, stored=stored)
        batch, cache, query = prepared(case)
        ours = batch.rows == len(company)
        context = torch.arange(done)
        slots = batch.block_tables[-1][context // block_size] * block_size + context % block_size
        cache.write(LAYER, slots, *numbers[:, :done])
        query[ours] = queries[done - length : done]
        outputs.append(kernel.prepare(batch, cache)(LAYER, query, case.options)[ours])
    return torch.cat(outputs)
