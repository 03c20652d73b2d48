// What a step computes on a CPU, as a plain C library without dependencies; cpp_library.py compiles and loads it.
//
// Every number that comes out is computed in an order that depends on nothing but its own sequence: not on how many
// rows share the call, not on where a chunk was cut, not on the block size. So the same request gives the same bits in
// any company.

#include "attention.h"
#include "linear.h"
#include "small_operations.h"

extern "C" {

int panel_width() { return WIDTH; }
int max_tile() { return MAX_TILE; }

#define FOR_STORED(name, S, C)                                                                                         \
  void attend_##name(const C* query, const S* key, const S* value, C* out, const i64* tables, const i64* tiles,        \
                     i64 num_tiles, i64 row_stride, i64 H, i64 G, i64 D, i64 P, i64 max_blocks, double scale,          \
                     double softcap, i64 window, int num_threads) {                                                    \
    attend(query, key, value, out, tables, tiles, num_tiles, Shape{row_stride, H, G, D, P, max_blocks},                \
           Options{scale, softcap, window}, num_threads);                                                              \
  }
FOR_STORED(f32, float, float)
FOR_STORED(f64, double, double)
FOR_STORED(bf16, bf16, float)

#define FOR_WEIGHTS(name, S)                                                                                           \
  void linear_##name(const S* w, const float* x, float* y, i64 M, i64 K, i64 N, int num_threads) {                     \
    linear(w, x, y, M, K, N, num_threads);                                                                             \
  }                                                                                                                    \
  void place_##name(float* qkv, const float* cos, const float* sin, const float* q_norm, const float* k_norm,          \
                    double eps, const i64* slots, S* key, S* value, i64 T, i64 heads, i64 H, i64 D, i64 P,             \
                    int num_threads) {                                                                                 \
    place(qkv, cos, sin, q_norm, k_norm, eps, slots, key, value, T, heads, H, D, P, num_threads);                      \
  }
FOR_WEIGHTS(f32, float)
FOR_WEIGHTS(bf16, bf16)

void rms_norm(const float* x, const float* weight, float* y, i64 M, i64 K, double eps, int num_threads) {
#pragma omp parallel for num_threads(num_threads) if (M > 16)
  for (i64 m = 0; m < M; m++) normalize(x + m * K, weight, y + m * K, K, eps);
}

void silu_multiply(const float* gate_up, float* y, i64 M, i64 K, int num_threads) {  // [M, 2 K] -> [M, K]
#pragma omp parallel for num_threads(num_threads) if (M > 4)
  for (i64 m = 0; m < M; m++) {
    const float *gate = gate_up + m * 2 * K, *up = gate + K;
#pragma omp simd
    for (i64 k = 0; k < K; k++) y[m * K + k] = gate[k] / (1 + exponential(-gate[k])) * up[k];
  }
}
}
