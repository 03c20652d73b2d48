"""Attention over pages in Triton. Imports triton; triton_attention.py loads it only where that works.

A program is one KV head of a tile: a few successive tokens of one sequence, all query heads of the group as rows of
one matrix. It walks the context in spans, each position looked up in the block table. Softmax is online.

Letters: T tokens, H KV heads, G query heads per KV head, Q tokens of a tile, D head_dim, N blocks, P tokens
per block.
"""

from typing import Any

import triton
import triton.language as tl


@triton.jit
def attend_tile(
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    tables: Any,
    tiles: Any,
    max_blocks: Any,
    scale: Any,
    window: Any,
    softcap: Any,
    H: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    P: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    SPAN: tl.constexpr,
) -> None:
    """query, out: `[T, H * G, D]`. key, value: `[N, H, P, D]`. ROWS, WIDTH: powers of 2, at least Q * G and D."""
    tile, head = tiles + 4 * tl.program_id(0), tl.program_id(1)
    row, first, position, num = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    r, d = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    places = (((first + r // G) * H + head) * G + r % G)[:, None] * D + d[None, :]  # [ROWS, WIDTH]
    is_query = (r < num * G)[:, None] & (d < D)[None, :]
    q = tl.load(query + places, mask=is_query, other=0).to(tl.float32) * scale
    last = (position + r // G)[:, None]  # what each query sees last: itself
    low, end = tl.maximum(position - window + 1, 0), position + num  # what any of them sees
    highest = tl.full([ROWS], -1e30, tl.float32)  # finite: a row may see nothing of a span, and inf - inf is NaN
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(low // SPAN * SPAN, end, SPAN):
        p = start + tl.arange(0, SPAN)
        readable = (p >= low) & (p < end)
        k, v = read(key, value, tables + row * max_blocks, p, readable, head, H, D, P, WIDTH)
        scores = bent(tl.dot(q, tl.trans(k), input_precision="ieee"), softcap)  # [ROWS, SPAN]
        seen = readable[None, :] & (p[None, :] <= last) & (p[None, :] > last - window)
        scores = tl.where(seen, scores, float("-inf"))
        above = tl.maximum(highest, tl.max(scores, 1))
        weights, shrink = tl.exp(scores - above[:, None]), tl.exp(highest - above)
        total = total * shrink + tl.sum(weights, 1)
        sums = sums * shrink[:, None] + tl.dot(weights, v, input_precision="ieee")
        highest = above
    tl.store(out + places, sums / total[:, None], mask=is_query)


@triton.jit
def read(
    key: Any,
    value: Any,
    table: Any,
    p: Any,
    readable: Any,
    head: Any,
    H: tl.constexpr,
    D: tl.constexpr,
    P: tl.constexpr,
    WIDTH: tl.constexpr,
) -> Any:
    """K and V of positions p, `[SPAN, WIDTH]` each; 0 where they must not be read, since 0 times NaN would be NaN."""
    d = tl.arange(0, WIDTH)
    blocks = tl.load(table + p // P, mask=readable, other=0)
    places = ((blocks * H + head) * P + p % P)[:, None] * D + d[None, :]
    mask = readable[:, None] & (d < D)[None, :]
    k = tl.load(key + places, mask=mask, other=0).to(tl.float32)
    return k, tl.load(value + places, mask=mask, other=0).to(tl.float32)


@triton.jit
def bent(scores: Any, softcap: Any) -> Any:
    """softcap * tanh(scores / softcap); 0 for not. tanh(x) = 2 sigmoid(2 x) - 1."""
    if softcap > 0:
        scores = softcap * (2 * tl.sigmoid(2 * scores / softcap) - 1)
    return scores
