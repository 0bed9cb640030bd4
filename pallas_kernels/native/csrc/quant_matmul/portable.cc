// Any processor.
#include <cstdint>
#include <cstring>

#include "quant_matmul/multiply.h"

namespace specjax {
namespace {

struct Portable {
  struct Ints {
    int32_t lane[kLanes];
  };
  struct Floats {
    float lane[kLanes];
  };
  // Unsigned, as overflow of the partial sums is meant; a word is one row's quad.
  using Words = uint32_t __attribute__((vector_size(kRegister)));
  struct Record {
    int16_t codes[kGroup];
    Rounded rounded;
  };

  static constexpr int kRows = 1;
  static constexpr bool InBytes(const Format&) { return false; }
  static constexpr int32_t kOffset = 0;
  static constexpr int64_t RecordBytes(bool) { return sizeof(Record); }
  static const Rounded& RoundedOf(const uint8_t* record, bool) {
    return reinterpret_cast<const Record*>(record)->rounded;
  }
  static Rounded* Arrange(const int32_t* codes, bool, uint8_t* out) {
    auto* record = reinterpret_cast<Record*>(out);
    for (int i = 0; i < kGroup; ++i) record->codes[i] = static_cast<int16_t>(codes[i]);
    return &record->rounded;
  }

  static Floats Load(const float* in) {
    Floats out;
    std::memcpy(out.lane, in, sizeof out);
    return out;
  }
  static void Store(float* out, const Floats& in) { std::memcpy(out, in.lane, sizeof in); }
  template <typename F>
  static Floats Each(const F& value) {
    Floats out;
    for (int i = 0; i < kLanes; ++i) out.lane[i] = value(i);
    return out;
  }
  static Floats Set(float x) {
    return Each([=](int) { return x; });
  }
  static Floats Multiply(const Floats& a, const Floats& b) {
    return Each([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static Floats Fma(const Floats& a, const Floats& b, const Floats& c) {
    return Each([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
  }
  static Floats ToFloat(const Ints& in) {
    return Each([&](int i) { return static_cast<float>(in.lane[i]); });
  }
  static Floats Unsigned(const uint8_t* in) {
    return Each([=](int i) { return static_cast<float>(in[i]); });
  }
  static Floats Signed(const uint8_t* in) {
    return Each([=](int i) { return static_cast<float>(static_cast<int8_t>(in[i])); });
  }
  // Denormal halves are made of their integers: as floats on the way they would be flushed.
  static float HalfToFloat(uint16_t half) {
    const uint32_t exponent = half >> 10 & 31, mantissa = half & 1023;
    float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    if (exponent > 0) {
      const uint32_t bits = (exponent == 31 ? 255u : exponent + 112) << 23 | mantissa << 13;
      std::memcpy(&magnitude, &bits, 4);
    }
    return half >> 15 ? -magnitude : magnitude;
  }
  static Floats Half(const uint8_t* in) {
    uint16_t halves[kLanes];
    std::memcpy(halves, in, sizeof halves);
    return Each([&](int i) { return HalfToFloat(halves[i]); });
  }
  static Bytes Lookup(const uint8_t* table, Bytes index) {
    uint8_t bytes[kVector];
    std::memcpy(bytes, &index, kVector);
    for (uint8_t& each : bytes) each = table[each & 15];
    std::memcpy(&index, bytes, kVector);
    return index;
  }

  template <int R, bool wide, int bits, int begin, int end, typename Values>
  static void Dot(const Values& values, const uint8_t* x, Ints* sums) {
    const auto* records = reinterpret_cast<const Record*>(x);
    Words total[R][kParts] = {};
    ForEach<begin, end>([&](auto quad) __attribute__((always_inline)) {
      const Bytes codes = values(quad);
      for (int i = 0; i < kParts; ++i) {
        const Words w = reinterpret_cast<Words>(codes.part[i]);
        const Words column[] = {w & 255, w >> 8 & 255, w >> 16 & 255, w >> 24};
        for (int r = 0; r < R; ++r) {
          for (int t = 0; t < 4; ++t) total[r][i] += column[t] * static_cast<uint32_t>(records[r].codes[4 * quad + t]);
        }
      }
    });
    for (int r = 0; r < R; ++r) {
      for (int i = 0; i < kParts; ++i) total[r][i] += static_cast<uint32_t>(records[r].rounded.bias[begin > 0]);
      std::memcpy(sums[r].lane, total[r], sizeof sums[r].lane);
    }
  }
};

}  // namespace

const QuantKernels& QuantKernels::ForPortable() {
  static constexpr QuantKernels kKernels = KernelsOf<Portable>();
  return kKernels;
}

}  // namespace specjax
