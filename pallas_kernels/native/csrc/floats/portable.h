// Floats of any processor, four at a time.
// Included by translation units of one instruction set each, hence the anonymous namespace.
#ifndef SPECJAX_FLOATS_PORTABLE_H_
#define SPECJAX_FLOATS_PORTABLE_H_

#include <cmath>
#include <cstdint>
#include <cstring>

namespace specjax {
namespace {

struct PortableFloats {
  static constexpr int kLanes = 4;
  static constexpr bool kManyRegisters = false;
  struct Floats {
    float lane[kLanes];
  };

  template <typename F>
  static Floats Each(const F& value) {
    Floats out;
    for (int i = 0; i < kLanes; ++i) out.lane[i] = value(i);
    return out;
  }
  static Floats Load(const float* in) {
    Floats out;
    std::memcpy(out.lane, in, sizeof out);
    return out;
  }
  static void Store(float* out, const Floats& x) { std::memcpy(out, x.lane, sizeof x); }
  static Floats Set(float x) {
    return Each([=](int) { return x; });
  }
  static Floats Add(const Floats& a, const Floats& b) {
    return Each([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static Floats Subtract(const Floats& a, const Floats& b) {
    return Each([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static Floats Multiply(const Floats& a, const Floats& b) {
    return Each([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static Floats Fma(const Floats& a, const Floats& b, const Floats& c) {
    return Each([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
  }
  // b where one is NaN.
  static Floats Max(const Floats& a, const Floats& b) {
    return Each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static Floats Round(const Floats& x) {
    return Each([&](int i) { return std::nearbyint(x.lane[i]); });
  }
  static Floats PowerOfTwo(const Floats& n) {
    return Each([&](int i) {
      const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(n.lane[i]) + 127) << 23;
      float out;
      std::memcpy(&out, &bits, 4);
      return out;
    });
  }
  // Lane i has the sum over the lanes of x[i].
  static Floats SumEach(const Floats* x) {
    return Each([=](int i) { return (x[i].lane[0] + x[i].lane[1]) + (x[i].lane[2] + x[i].lane[3]); });
  }
};

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_FLOATS_PORTABLE_H_
