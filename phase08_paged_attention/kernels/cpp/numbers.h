// Numbers: how they are stored (S: float, double, bf16) and what is computed with them (C: float or double).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

using i64 = int64_t;

struct bf16 {
  uint16_t bits;  // the upper half of a float
};

static inline float load(float x) { return x; }
static inline double load(double x) { return x; }
static inline float load(bf16 x) {
  const uint32_t bits = uint32_t(x.bits) << 16;
  float number;
  std::memcpy(&number, &bits, 4);
  return number;
}

static inline void store(float* to, float x) { *to = x; }
static inline void store(double* to, double x) { *to = x; }
static inline void store(bf16* to, float x) {  // to nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  to->bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

// e^x = 2^n e^r with |r| <= ln(2) / 2, and a short Taylor series for e^r: loops over it become vector code.
// n stays within what a float has an exponent for: -126, and 128, which is infinity.
static inline float exponential(float x) {
  x = std::min(std::max(x, -87.0f), 89.0f);
  const float n = std::nearbyint(x * 1.44269504f);
  const float r = x - n * 0.693359375f + n * 2.12194440e-4f;  // ln(2) in two parts
  const float series = 1 + r * (1 + r / 2 * (1 + r / 3 * (1 + r / 4 * (1 + r / 5 * (1 + r / 6 * (1 + r / 7))))));
  const int32_t bits = (int32_t(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, 4);
  return series * power;
}
static inline double exponential(double x) { return std::exp(x); }
