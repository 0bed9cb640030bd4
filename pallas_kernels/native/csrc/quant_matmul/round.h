// Rounding of activations to integers, per group of 32. See decode.h for the anonymous namespace.
#ifndef SPECJAX_QUANT_MATMUL_ROUND_H_
#define SPECJAX_QUANT_MATMUL_ROUND_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "quant_matmul/panels.h"

namespace specjax {
namespace {

// What a group of 32 activations becomes. Their integers, in the order that an instruction set wants, come before it.
struct Rounded {
  float scale;
  float scaled_sum;  // scale * sum of the integers
  int32_t bias[2];   // - offset * sum of the integers: of the whole group, or of its halves
};

// The rotation that the TQ formats apply to weights, for what they are multiplied with: signs, butterflies, 1/sqrt(32).
inline void Rotate(float* x) {
  for (int i = 0; i < kGroup; ++i) x[i] = kTqSigns[i] > 0 ? x[i] : -x[i];
  for (int half = 1; half < kGroup; half *= 2) {
    for (int begin = 0; begin < kGroup; begin += 2 * half) {
      for (int i = begin; i < begin + half; ++i) {
        const float sum = x[i] + x[i + half], difference = x[i] - x[i + half];
        x[i] = sum;
        x[i + half] = difference;
      }
    }
  }
  for (int i = 0; i < kGroup; ++i) x[i] *= 0.17677669529663687f;
}

// A group that holds something that is not finite becomes NaN as a whole. `arrange(integers)` puts them where they belong
// and says where the rest does.
template <typename Isa, typename Arrange>
inline void RoundGroup(const Format& format, bool wide, const float* in, const Arrange& arrange) {
  alignas(64) float turned[kGroup];
  const float* x = in;
  if (format.scales == Scales::kHalves) {
    std::memcpy(turned, in, sizeof turned);
    Rotate(turned);
    x = turned;
  }
  // Magnitudes compare like the integers that they are stored as, and compilers find the largest of those faster.
  int32_t top = 0;
  for (int i = 0; i < kGroup; ++i) {
    int32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    top = std::max(top, bits & 0x7fffffff);
  }
  const bool finite = top < 0x7f800000;
  float largest;
  std::memcpy(&largest, &top, sizeof largest);
  const float scale = largest / (wide ? 127.0f * 256 : 127.0f);
  const float divisor = scale == 0 ? 1.0f : scale;
  constexpr float kToInteger = 12582912.0f;  // 1.5 * 2^23: adding it rounds half to even, as jnp.round does
  alignas(64) int32_t codes[kGroup];
  for (int i = 0; i < kGroup; ++i)
    codes[i] = finite ? static_cast<int32_t>((x[i] / divisor + kToInteger) - kToInteger) : 0;
  int32_t sums[2] = {0, 0};
  for (int i = 0; i < kGroup / 2; ++i) sums[0] += codes[i];
  for (int i = kGroup / 2; i < kGroup; ++i) sums[1] += codes[i];

  Rounded* const rounded = arrange(codes);
  rounded->scale = finite ? scale : std::numeric_limits<float>::quiet_NaN();
  rounded->scaled_sum = rounded->scale * static_cast<float>(sums[0] + sums[1]);
  const int32_t offset = format.offset - Isa::kOffset;
  const bool halves = format.scales == Scales::kHalves || format.scales == Scales::kSuperSignedHalves;
  rounded->bias[0] = -offset * (halves ? sums[0] : sums[0] + sums[1]);
  rounded->bias[1] = -offset * sums[1];
}

// Whether activations are kept as integers of two bytes: those of 8 bits are, too, where bytes gain nothing.
template <typename Isa>
constexpr bool TwoBytes(const Format& format, bool wide) {
  return wide || !Isa::InBytes(format);
}

template <typename Isa>
void Round(const Format& format, bool wide, const float* x, int64_t width, int64_t rows, int64_t row,
           uint8_t* records) {
  const bool two_bytes = TwoBytes<Isa>(format, wide);
  const int64_t bytes = Isa::RecordBytes(two_bytes);
  for (int64_t group = 0; group < width / kGroup; ++group) {
    uint8_t* const record = records + (group * rows + row) * bytes;
    RoundGroup<Isa>(format, wide, x + kGroup * group,
                    [=](const int32_t* codes) { return Isa::Arrange(codes, two_bytes, record); });
  }
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_QUANT_MATMUL_ROUND_H_
