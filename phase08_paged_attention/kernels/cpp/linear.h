// Linear layers: y[M, N] = x[M, K] w[N, K]^T, in float.
//
// w is packed in panels of WIDTH outputs, [N / WIDTH, K, WIDTH]: a panel is read from memory once, while up to MAX_ROWS
// rows of x are multiplied with it in registers. A panel is read at STREAMS places at once, and so is the next one
// prefetched: a processor fetches ahead page by page, and several pages at once keep more of memory busy than one.

#pragma once

#include "numbers.h"

#ifdef __AVX512F__
constexpr int LANES = 16, MAX_ROWS = 12;  // 12 rows x 2 sums fill the 32 registers
#else
constexpr int LANES = 8, MAX_ROWS = 6;
#endif
constexpr int WIDTH = 2 * LANES, CACHE_LINE = 64, STREAMS = 4;
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint32_t words __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

// WIDTH weights of one k. In bf16 the i-th of the lower half and the i-th of the upper one share a word.
static inline void load_weights(const float* w, vec& low, vec& high) {
  low = *(const vec*)w;
  high = *(const vec*)(w + LANES);
}
static inline void load_weights(const bf16* w, vec& low, vec& high) {
  const words pairs = *(const words*)w;
  low = (vec)(pairs << 16);
  high = (vec)(pairs & 0xffff0000);
}

// What to prefetch meanwhile: `bytes` of each stream's part for every k.
struct Ahead {
  const char* from;
  i64 bytes, part;  // part: bytes from one stream's to the next one's
};

template <int ROWS, class S>
static void multiply(const S* panel, const float* x, float* y, i64 K, i64 N, Ahead ahead) {
  vec sum[ROWS][2] = {};
  const auto add = [&](i64 k) {
    vec low, high;
    load_weights(panel + k * WIDTH, low, high);
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++) {
      sum[row][0] += x[row * K + k] * low;
      sum[row][1] += x[row * K + k] * high;
    }
  };
  const i64 part = K / STREAMS;
  for (i64 k = 0; k < part; k++) {
#pragma GCC unroll 4
    for (int stream = 0; stream < STREAMS; stream++) {
      const char* next = ahead.from + stream * ahead.part + k * ahead.bytes;
      __builtin_prefetch(next, 0, 1);
      if (ahead.bytes > CACHE_LINE) __builtin_prefetch(next + CACHE_LINE, 0, 1);
      add(stream * part + k);
    }
  }
  for (i64 k = part * STREAMS; k < K; k++) add(k);
  for (int row = 0; row < ROWS; row++) {
    *(vec*)(y + row * N) = sum[row][0];
    *(vec*)(y + row * N + LANES) = sum[row][1];
  }
}

template <class S>
using Multiply = void (*)(const S*, const float*, float*, i64, i64, Ahead);
template <class S>
constexpr Multiply<S> multiply_rows[] = {
    nullptr,        multiply<1, S>, multiply<2, S>, multiply<3, S>,  multiply<4, S>,  multiply<5, S>, multiply<6, S>,
    multiply<7, S>, multiply<8, S>, multiply<9, S>, multiply<10, S>, multiply<11, S>, multiply<12, S>};

template <class S>
static void linear(const S* w, const float* x, float* y, i64 M, i64 K, i64 N, int num_threads) {
  if (M == 0) return;
  const i64 num_tiles = (M + MAX_ROWS - 1) / MAX_ROWS;
  const i64 bytes = WIDTH * sizeof(S) / num_tiles, part = K / STREAMS;  // of the next panel, a share for each tile
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (i64 index = 0; index < N / WIDTH; index++) {
    const S* panel = w + index * K * WIDTH;
    Ahead ahead{(const char*)(panel + K * WIDTH), bytes, part * WIDTH * i64(sizeof(S))};
    for (i64 tile = 0, row = 0; tile < num_tiles; tile++, ahead.from += part * bytes) {
      const i64 rows = (M - row) / (num_tiles - tile);
      multiply_rows<S>[rows](panel, x + row * K, y + row * N + index * WIDTH, K, N, ahead);
      row += rows;
    }
  }
}
