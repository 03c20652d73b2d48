// What stands between the matrices: norms, rotary positions, writing K/V. Each is one pass over its rows.
#pragma once

#include "numbers.h"

static inline float sum_of_squares(const float* x, i64 num) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (i64 i = 0; i < num; i++) sum += x[i] * x[i];
  return sum;
}

static inline void normalize(const float* x, const float* weight, float* y, i64 num, float eps) {
  const float factor = 1 / std::sqrt(sum_of_squares(x, num) / num + eps);
  for (i64 i = 0; i < num; i++) y[i] = x[i] * factor * weight[i];
}

static inline void rotate(float* x, const float* cos, const float* sin, i64 half) {
  for (i64 i = 0; i < half; i++) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

// qkv: [T, (heads + 2 H) * D], all heads of q, then of k, then of v. Norms q and k (where there are weights), rotates
// them in place, and writes k and v to their slots. cos, sin: [T, D / 2]. slots: [T].
template <class S>
static void place(float* qkv, const float* cos, const float* sin, const float* q_norm, const float* k_norm, float eps,
                  const i64* slots, S* key, S* value, i64 T, i64 heads, i64 H, i64 D, i64 P, int num_threads) {
#pragma omp parallel for num_threads(num_threads) if (T > 16)
  for (i64 t = 0; t < T; t++) {
    float* token = qkv + t * (heads + 2 * H) * D;
    for (i64 head = 0; head < heads + H; head++) {
      const float* weight = head < heads ? q_norm : k_norm;
      if (weight) normalize(token + head * D, weight, token + head * D, D, eps);
      rotate(token + head * D, cos + t * (D / 2), sin + t * (D / 2), D / 2);
    }
    for (i64 head = 0; head < H; head++) {
      const i64 to = ((slots[t] / P * H + head) * P + slots[t] % P) * D;
      const float *k = token + (heads + head) * D, *v = k + H * D;
      for (i64 d = 0; d < D; d++) store(key + to + d, k[d]), store(value + to + d, v[d]);
    }
  }
}
