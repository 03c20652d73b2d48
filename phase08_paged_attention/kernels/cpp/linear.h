// Linear layers: y[M, N] = x[M, K] w[N, K]^T, in float.
//
// w is packed in panels of WIDTH outputs, [N / WIDTH, K, WIDTH]: a panel is read from memory once, front to back, while
// up to MAX_ROWS rows of x are multiplied with it in registers. While one panel is worked on, the next is prefetched.

#pragma once

#include <vector>

#include "numbers.h"

#ifdef __AVX512F__
constexpr int LANES = 16, MAX_ROWS = 12;  // 12 rows x 2 sums fill the 32 registers
#else
constexpr int LANES = 8, MAX_ROWS = 6;
#endif
constexpr int WIDTH = 2 * LANES, CACHE_LINE = 64;
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));

template <int ROWS>
static void multiply(const float* panel, const float* x, float* y, i64 K, i64 N, const char* next, i64 stride) {
  vec sum[ROWS][2] = {};
  for (i64 k = 0; k < K; k++, next += stride) {
    __builtin_prefetch(next, 0, 2);
    if (stride > CACHE_LINE) __builtin_prefetch(next + CACHE_LINE, 0, 2);
    const vec low = *(const vec*)(panel + k * WIDTH), high = *(const vec*)(panel + k * WIDTH + LANES);
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++) {
      sum[row][0] += x[row * K + k] * low;
      sum[row][1] += x[row * K + k] * high;
    }
  }
  for (int row = 0; row < ROWS; row++) {
    *(vec*)(y + row * N) = sum[row][0];
    *(vec*)(y + row * N + LANES) = sum[row][1];
  }
}

using Multiply = void (*)(const float*, const float*, float*, i64, i64, const char*, i64);
static const Multiply multiply_rows[] = {
    nullptr,     multiply<1>, multiply<2>, multiply<3>,  multiply<4>,  multiply<5>, multiply<6>,
    multiply<7>, multiply<8>, multiply<9>, multiply<10>, multiply<11>, multiply<12>};

static const float* as_floats(const float* panel, i64, std::vector<float>&) { return panel; }
static const float* as_floats(const bf16* panel, i64 size, std::vector<float>& buffer) {
  buffer.resize(size);
  for (i64 i = 0; i < size; i++) buffer[i] = load(panel[i]);
  return buffer.data();
}

template <class S>
static void linear(const S* w, const float* x, float* y, i64 M, i64 K, i64 N, int num_threads) {
  if (M == 0) return;
  const i64 num_tiles = (M + MAX_ROWS - 1) / MAX_ROWS;
#pragma omp parallel num_threads(num_threads)
  {
    std::vector<float> buffer;
#pragma omp for schedule(static)
    for (i64 panel = 0; panel < N / WIDTH; panel++) {
      const S* packed = w + panel * K * WIDTH;
      const float* weights = as_floats(packed, K * WIDTH, buffer);
      const i64 stride = WIDTH * sizeof(S) / num_tiles;  // bytes of the next panel to prefetch for each k
      const char* next = (const char*)(packed + K * WIDTH);
      for (i64 tile = 0, row = 0; tile < num_tiles; tile++, next += K * stride) {
        const i64 rows = (M - row) / (num_tiles - tile);
        multiply_rows[rows](weights, x + row * K, y + row * N + panel * WIDTH, K, N, next, stride);
        row += rows;
      }
    }
  }
}
