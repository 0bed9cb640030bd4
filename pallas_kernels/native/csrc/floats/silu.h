// SiLU, one float at a time: compilers make vectors of these loops, whose results have the same bits on every processor.
// Included by translation units of one instruction set each, hence the anonymous namespace.
#ifndef SPECJAX_FLOATS_SILU_H_
#define SPECJAX_FLOATS_SILU_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace specjax {
namespace {

// exp of x <= 0 as in exp.h, without fused operations; of NaN as of -87, which integers can express.
inline float ExpOfNegative(float x) {
  constexpr float kToInteger = 12582912.0f;  // 1.5 * 2^23: adding it rounds half to even
  x = std::max(-87.0f, x);
  const float n = (x * 1.44269504088896341f + kToInteger) - kToInteger;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return p * power;
}

inline float Silu(float x) {
  const float e = ExpOfNegative(-std::fabs(x)), positive = 1.0f / (1.0f + e);
  return x * (x < 0 ? e * positive : positive);
}

inline void Swiglu(const float* gate, const float* up, int64_t count, float limit, float* out) {
  if (limit > 0) {
    for (int64_t i = 0; i < count; ++i)
      out[i] = std::min(Silu(gate[i]), limit) * std::min(std::max(up[i], -limit), limit);
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = Silu(gate[i]) * up[i];
  }
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_FLOATS_SILU_H_
