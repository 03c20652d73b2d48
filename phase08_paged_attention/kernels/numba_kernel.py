"""Attention over pages in Numba: what `cpp/attention.h` does, without a compiler. Imports numba; numba_attention.py
loads it only where that works.

A task is one KV head of a tile: a few successive tokens of one sequence. All its queries go over one block after the
other, first over the keys, then, with the weights known, over the values: each block is read once.

Letters: T tokens, H KV heads, G query heads per KV head, D head_dim, N blocks, P tokens per block.
"""

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic, overload

FAST = {"reassoc", "contract", "nsz", "arcp"}  # sums in any order, so that loops become vector code; NaN stays NaN
f32, u32, i32 = np.float32, np.uint32, np.int32


def compiled(**options: Any) -> Callable[[Any], Any]:
    """numba.njit, whose result is kept on disk (8 s the first time) where there is a folder to write to."""

    def decorate(function: Any) -> Any:
        try:
            return numba.njit(cache=True, nogil=True, fastmath=FAST, **options)(function)
        except RuntimeError:  # neither beside this file nor in the user's cache
            return numba.njit(nogil=True, fastmath=FAST, **options)(function)

    return decorate


def _float_of_bits(_context: Any, _bits: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return numba.float32(numba.uint32), generate


float_of_bits: Any = intrinsic(_float_of_bits)


def number(stored: Any) -> Any:
    """What is computed with: bf16, which comes as its 16 bits, is the upper half of an fp32; others as they are."""


@overload(number)
def _number(stored: Any) -> Any:
    def widened(stored: Any) -> Any:
        return float_of_bits(u32(stored) << u32(16))

    def as_it_is(stored: Any) -> Any:
        return stored

    return widened if stored == numba.uint16 else as_it_is


def exponential(x: Any) -> Any:
    """e^x = 2^n e^r with |r| <= ln(2) / 2, and a short Taylor series for e^r: vector code, unlike math.exp."""


@overload(exponential)
def _exponential(x: Any) -> Any:
    def fast(x: Any) -> Any:
        x = max(x, f32(-87))
        n = np.floor(x * f32(1.44269504) + f32(0.5))
        r = x - n * f32(0.693359375) + n * f32(2.12194440e-4)  # ln(2) in two parts
        series = f32(1 / 120) + r * (f32(1 / 720) + r * f32(1 / 5040))
        series = f32(1) + r * (f32(1) + r * (f32(1 / 2) + r * (f32(1 / 6) + r * (f32(1 / 24) + r * series))))
        return series * float_of_bits(u32(i32(n) + i32(127)) << u32(23))

    def exact(x: Any) -> Any:
        return math.exp(x)

    return fast if x == numba.float32 else exact


@compiled(error_model="numpy")
def attend_tile(
    query: Any, key: Any, value: Any, out: Any, table: Any, position: int, head: int, options: Any, weights: Any
) -> None:
    """query, out: the tile's `[Q, H * G, D]`. key, value: `[N, H, P, D]`. table: `[M]`. weights: scratch."""
    scale, window, softcap = options
    num_queries, num_heads, head_dim = query.shape
    _, num_kv_heads, block_size, _ = key.shape
    group = num_heads // num_kv_heads
    low, end = max(0, position - window + 1), position + num_queries  # what any query of the tile sees
    first_block, last_block = low // block_size, (end - 1) // block_size
    for block in range(first_block, last_block + 1):
        start = block * block_size
        keys = key[table[block], head]  # [P, D]
        for i in range(num_queries * group):
            q = query[i // group, head * group + i % group]
            for p in range(max(low, start), min(end, start + block_size)):
                score = q.dtype.type(0)
                for d in range(head_dim):
                    score += q[d] * number(keys[p - start, d])
                weights[i, p - low] = score * scale
    for i in range(num_queries * group):
        last = position + i // group
        softmax(weights[i, max(low, last - window + 1) - low : last - low + 1], softcap)
        out[i // group, head * group + i % group] = 0
    for block in range(first_block, last_block + 1):
        start = block * block_size
        values = value[table[block], head]  # [P, D]
        for i in range(num_queries * group):
            last = position + i // group
            o = out[i // group, head * group + i % group]
            for p in range(max(low, start, last - window + 1), min(last + 1, start + block_size)):
                weight = weights[i, p - low]
                for d in range(head_dim):
                    o[d] += weight * number(values[p - start, d])


@compiled(error_model="numpy")
def softmax(scores: Any, softcap: float) -> None:
    """In place. scores: `[S]`, all of them seen."""
    if softcap > 0:
        for j in range(len(scores)):
            scores[j] = softcap * math.tanh(scores[j] / softcap)
    highest, total = scores.max(), scores.dtype.type(0)
    for j in range(len(scores)):
        scores[j] = exponential(scores[j] - highest)
        total += scores[j]
    for j in range(len(scores)):
        scores[j] /= total


@compiled()
def work(
    worker: int, num_workers: int, query: Any, key: Any, value: Any, out: Any, tables: Any, tiles: Any, options: Any
) -> None:
    num_kv_heads = key.shape[1]
    longest = (tiles[:, 2] + tiles[:, 3]).max()
    weights = np.empty((tiles[:, 3].max() * (query.shape[1] // num_kv_heads), longest), out.dtype)
    for task in range(worker, len(tiles) * num_kv_heads, num_workers):
        row, first, position, num = tiles[task // num_kv_heads]
        ours, head = slice(first, first + num), task % num_kv_heads
        attend_tile(query[ours], key, value, out[ours], tables[row], position, head, options, weights)


@compiled(parallel=True)
def attend(query: Any, key: Any, value: Any, out: Any, tables: Any, tiles: Any, options: Any, num_workers: int) -> None:
    """query, out: `[T, H * G, D]`. key, value: `[N, H, P, D]`. tables: `[R, M]`. tiles: as tiles_of has them.

    Workers take tasks in turn: neighbours have about the same context, so all of them are done at about the same time.
    """
    for worker in numba.prange(num_workers):
        work(worker, num_workers, query, key, value, out, tables, tiles, options)
