// Any processor.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "attention/attend.h"
#include "floats/portable.h"

namespace specjax {
namespace {

struct Portable : PortableFloats {
  struct Ints {
    int32_t lane[kLanes];
  };
  using Table = const float*;

  template <typename F>
  static Ints EachInt(const F& value) {
    Ints out;
    for (int i = 0; i < kLanes; ++i) out.lane[i] = value(i);
    return out;
  }

  // Denormal halves are made of their integers: as floats on the way they would be flushed.
  static float Half(uint16_t half) {
    const uint32_t exponent = half >> 10 & 31, mantissa = half & 1023;
    float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    if (exponent > 0) {
      const uint32_t bits = (exponent == 31 ? 255u : exponent + 112) << 23 | mantissa << 13;
      std::memcpy(&magnitude, &bits, 4);
    }
    return half >> 15 ? -magnitude : magnitude;
  }
  static float Unit(int64_t group) { return 1.0f / std::sqrt(static_cast<float>(group)); }
  static Floats Halves(const uint16_t* in) {
    return Each([=](int i) { return Half(in[i]); });
  }
  static Floats Brains(const uint16_t* in) {
    return Each([=](int i) {
      const uint32_t bits = static_cast<uint32_t>(in[i]) << 16;
      float out;
      std::memcpy(&out, &bits, 4);
      return out;
    });
  }
  static Floats SignedBytes(const uint8_t* in) {
    return Each([=](int i) { return static_cast<float>(static_cast<int8_t>(in[i])); });
  }
  static Ints Bytes(const uint8_t* in) {
    return EachInt([=](int i) { return in[i]; });
  }
  static Ints And(const Ints& x, int mask) {
    return EachInt([&](int i) { return x.lane[i] & mask; });
  }
  static Ints ShiftRight(const Ints& x, int bits) {
    return EachInt([&](int i) { return x.lane[i] >> bits; });
  }
  static Table LoadTable(const float* table) { return table; }
  static Floats Lookup(Table table, const Ints& index) {
    return Each([&](int i) { return table[index.lane[i]]; });
  }
  // Adds `value` where the bits from bit `from` on are set.
  static Ints AddBits(const Ints& x, const uint8_t* bits, int64_t from, int value) {
    return EachInt([&](int i) { return x.lane[i] + (*bits >> (from + i) & 1) * value; });
  }
};

}  // namespace

const AttentionKernels& AttentionKernels::ForPortable() {
  static constexpr AttentionKernels kKernels = AttentionKernelsOf<Portable>();
  return kKernels;
}

}  // namespace specjax
