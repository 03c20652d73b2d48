// Attention over pages, read where they are.
//
// A task is one KV head of a tile: a few successive tokens of one sequence. It walks the context in spans of SPAN
// positions, counted from position 0, so that where a chunk or a block ends changes no sum; a span's K and V stay in
// the L1 cache while all queries of the tile use them, and each query asks for a share of the next span meanwhile.
// Softmax is online: a running maximum, sum and weighted values.
//
// Letters: T tokens, H KV heads, G query heads per KV head, D head_dim, P tokens per block.
#pragma once

#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "numbers.h"

constexpr int SPAN = 64, MAX_TILE = 16;

struct Options {
  double scale, softcap;  // softcap 0: none
  i64 window;             // positions a query sees, itself included; 0: all
};

struct Shape {
  i64 row_stride, H, G, D, P, max_blocks;
};

template <class C, int BYTES>
struct Vector {
  typedef C type __attribute__((vector_size(BYTES), aligned(alignof(C)), may_alias));
};
template <class C>
using Lanes = typename Vector<C, 64>::type;
template <class C>
constexpr int lanes = 64 / sizeof(C);

template <class C>
static inline Lanes<C> load_lanes(const C* p) {
  return *(const Lanes<C>*)p;
}
// Sums over the lanes of as many vectors as there are lanes: lane i of the result is the sum of sums[i].
// In each round two vectors become one that holds the halves of both: 15 additions for 16 sums.
template <int DISTANCE, class V, size_t... I>
static inline V halves(V a, V b, std::index_sequence<I...>) {
  constexpr int n = sizeof...(I);
  return __builtin_shufflevector(a, b, (I & DISTANCE ? int(I) + n : int(I))...) +
         __builtin_shufflevector(a, b, (I & DISTANCE ? int(I ^ DISTANCE) + n : int(I ^ DISTANCE))...);
}
template <class C, int DISTANCE = lanes<C> / 2>
static inline Lanes<C> totals(Lanes<C>* sums) {
  if constexpr (DISTANCE == 0) {
    return sums[0];
  } else {
#pragma GCC unroll 16
    for (int i = 0; i < DISTANCE; i++)
      sums[i] = halves<DISTANCE>(sums[i], sums[i + DISTANCE], std::make_index_sequence<lanes<C>>());
    return totals<C, DISTANCE / 2>(sums);
  }
}

// VECS x lanes numbers per head; 0: any number, slowly.
template <class C, int VECS>
static inline void dot(const C* query, const C* const* keys, C* scores, i64 num, i64 D, C scale) {
  if constexpr (VECS == 0) {
    for (i64 j = 0; j < num; j++) {
      C sum = 0;
      for (i64 d = 0; d < D; d++) sum += query[d] * keys[j][d];
      scores[j] = sum * scale;
    }
  } else {
    for (i64 start = 0; start < num; start += lanes<C>) {
      const i64 last = num - start - 1;  // the last key stands in for those that a last, short group has not
      Lanes<C> sums[lanes<C>] = {};
#pragma GCC unroll 16
      for (int i = 0; i < lanes<C>; i++) {
        const C* key = keys[start + std::min<i64>(i, last)];
#pragma GCC unroll 16
        for (int v = 0; v < VECS; v++)
          sums[i] += load_lanes<C>(query + v * lanes<C>) * load_lanes<C>(key + v * lanes<C>);
      }
      *(Lanes<C>*)(scores + start) = totals<C>(sums) * scale;
    }
  }
}

// Adds weighted values to what HEADS query heads have so far, which shrinks first. A value is loaded once for all.
// out: [HEADS, D]. weights: [HEADS, SPAN].
template <class C, int VECS, int HEADS>
static inline void add_weighted(C* out, const C* shrink, const C* weights, const C* const* values, i64 num, i64 D) {
  if constexpr (VECS == 0) {
    for (i64 d = 0; d < HEADS * D; d++) {
      C sum = out[d] * shrink[d / D];
      for (i64 j = 0; j < num; j++) sum += weights[d / D * SPAN + j] * values[j][d % D];
      out[d] = sum;
    }
  } else {
    Lanes<C> sum[HEADS * VECS];
#pragma GCC unroll 32
    for (int i = 0; i < HEADS * VECS; i++) sum[i] = load_lanes<C>(out + i * lanes<C>) * shrink[i / VECS];
    for (i64 j = 0; j < num; j++)
#pragma GCC unroll 32
      for (int i = 0; i < HEADS * VECS; i++)
        sum[i] += weights[i / VECS * SPAN + j] * load_lanes<C>(values[j] + i % VECS * lanes<C>);
#pragma GCC unroll 32
    for (int i = 0; i < HEADS * VECS; i++) *(Lanes<C>*)(out + i * lanes<C>) = sum[i];
  }
}

template <class C, int VECS>
static void add_weighted(C* out, const C* shrink, const C* weights, const C* const* values, i64 num, i64 D, i64 G) {
  constexpr int MOST = VECS > 8 ? 1 : 3;  // whose sums fit into the registers
  for (i64 left = G; left > 0;) {
    const i64 heads = std::min<i64>(left, MOST);
    if (heads == 1) add_weighted<C, VECS, 1>(out, shrink, weights, values, num, D);
    if (heads == 2) add_weighted<C, VECS, 2>(out, shrink, weights, values, num, D);
    if (heads == 3) add_weighted<C, VECS, 3>(out, shrink, weights, values, num, D);
    left -= heads, out += heads * D, shrink += heads, weights += heads * SPAN;
  }
}

template <class C>
static inline const C* as_computed(const C* numbers, C*, i64) {
  return numbers;
}
static inline const float* as_computed(const bf16* numbers, float* buffer, i64 num) {
  for (i64 i = 0; i < num; i++) buffer[i] = load(numbers[i]);
  return buffer;
}

template <class C>
struct Online {  // softmax over what came so far, of one query head
  C max = -std::numeric_limits<C>::infinity(), sum = 0;

  // Turns a span's scores into weights; returns what everything before them shrinks by.
  C take(C* scores, i64 num) {
    C highest = max, all = 0;
#pragma omp simd reduction(max : highest)
    for (i64 j = 0; j < num; j++) highest = std::max(highest, scores[j]);
#pragma omp simd reduction(+ : all)
    for (i64 j = 0; j < num; j++) all += scores[j] = exponential(scores[j] - highest);
    const C shrink = exponential(max - highest);
    sum = sum * shrink + all;
    max = highest;
    return shrink;
  }
};

// Where in the pool the positions from..end of a sequence are.
static inline void find(i64* places, i64 from, i64 end, const i64* table, i64 head, const Shape& shape) {
  i64 block = from / shape.P, within = from % shape.P;
  for (i64 p = from; p < end; p++) {
    *places++ = ((table[block] * shape.H + head) * shape.P + within) * shape.D;
    if (++within == shape.P) block++, within = 0;
  }
}

template <class S>
static inline void prefetch(const S* numbers, i64 num) {
  for (i64 i = 0; i < num; i += 64 / sizeof(S)) __builtin_prefetch(numbers + i);
}

template <class S, class C, int VECS>
static void attend_tile(const C* query, const S* key, const S* value, C* out, const i64* table, i64 position,
                        i64 num_queries, i64 head, const Shape& shape, const Options& options) {
  const i64 D = VECS ? VECS * lanes<C> : shape.D, G = shape.G;
  const i64 in_stride = shape.row_stride, out_stride = shape.H * G * D, last = position + num_queries - 1;
  const i64 first = options.window ? std::max<i64>(0, position - options.window + 1) : 0;
  std::vector<Online<C>> online(num_queries * G);
  std::vector<C> scores(G * SPAN), shrink(G);
  std::vector<C> expanded(std::is_same_v<S, C> ? 0 : 2 * SPAN * D);
  const C *keys[SPAN], *values[SPAN];
  i64 here[SPAN], ahead[SPAN];
  find(ahead, first, std::min(first / SPAN * SPAN + SPAN, last + 1), table, head, shape);
  for (i64 i = 0; i < num_queries; i++) std::fill_n(out + i * out_stride, G * D, C(0));
  for (i64 start = first / SPAN * SPAN; start <= last; start += SPAN) {
    const i64 from = std::max(first, start), end = std::min(start + SPAN, last + 1);
    const i64 num_ahead = std::max<i64>(0, std::min<i64>(SPAN, last + 1 - end));
    std::swap(here, ahead);
    find(ahead, end, end + num_ahead, table, head, shape);
    for (i64 j = from - start; j < end - start; j++) {
      const i64 place = here[j - (from - start)];
      keys[j] = as_computed(key + place, expanded.data() + j * D, D);
      values[j] = as_computed(value + place, expanded.data() + (SPAN + j) * D, D);
    }
    i64 fetched = 0;
    for (i64 i = 0; i < num_queries; i++) {
      const i64 low = options.window ? std::max(from, position + i - options.window + 1) : from;
      const i64 num = std::min(end, position + i + 1) - low, skip = low - start;
      for (i64 g = 0; g < G; g++) {
        for (const i64 share = num_ahead * (i * G + g + 1) / (num_queries * G); fetched < share; fetched++) {
          prefetch(key + ahead[fetched], D);
          prefetch(value + ahead[fetched], D);
        }
        if (num <= 0) continue;
        C* of_head = scores.data() + g * SPAN;
        dot<C, VECS>(query + i * in_stride + g * D, keys + skip, of_head, num, D, C(options.scale));
        if (options.softcap > 0)
          for (i64 j = 0; j < num; j++) of_head[j] = C(options.softcap) * std::tanh(of_head[j] / C(options.softcap));
      }
      if (num <= 0) continue;
      for (i64 g = 0; g < G; g++) shrink[g] = online[i * G + g].take(scores.data() + g * SPAN, num);
      add_weighted<C, VECS>(out + i * out_stride, shrink.data(), scores.data(), values + skip, num, D, G);
    }
  }
  for (i64 i = 0; i < num_queries; i++)
    for (i64 g = 0; g < G; g++)
      for (i64 d = 0; d < D; d++) out[i * out_stride + g * D + d] /= online[i * G + g].sum;
}

template <class S, class C>
static auto choose(i64 D) {
  if (D % lanes<C>) return attend_tile<S, C, 0>;
  switch (D / lanes<C>) {
    case 1: return attend_tile<S, C, 1>;
    case 2: return attend_tile<S, C, 2>;
    case 4: return attend_tile<S, C, 4>;
    case 5: return attend_tile<S, C, 5>;
    case 6: return attend_tile<S, C, 6>;
    case 8: return attend_tile<S, C, 8>;
    case 16: return attend_tile<S, C, 16>;
    default: return attend_tile<S, C, 0>;
  }
}

// query: T rows of row_stride numbers, the first H * G * D of them the query. out: [T, H * G, D].
// key, value: [blocks, H, P, D]. block_tables: [rows, max_blocks].
// tiles: [num_tiles, 4], each a row, its first token in the packed row, that token's position, and how many tokens.
template <class S, class C>
static void attend(const C* query, const S* key, const S* value, C* out, const i64* block_tables, const i64* tiles,
                   i64 num_tiles, const Shape shape, const Options options, int num_threads) {
  const auto run = choose<S, C>(shape.D);
#pragma omp parallel for num_threads(num_threads) schedule(dynamic) collapse(2)
  for (i64 tile = 0; tile < num_tiles; tile++)
    for (i64 head = 0; head < shape.H; head++) {
      const i64 *t = tiles + 4 * tile, in_row = head * shape.G * shape.D;
      run(query + t[1] * shape.row_stride + in_row, key, value, out + t[1] * shape.H * shape.G * shape.D + in_row,
          block_tables + t[0] * shape.max_blocks, t[2], t[3], head, shape, options);
    }
}
