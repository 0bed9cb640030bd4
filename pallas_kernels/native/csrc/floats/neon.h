// Floats of NEON, four lanes at a time.
// Included by translation units of one instruction set each, hence the anonymous namespace.
#ifndef SPECJAX_FLOATS_NEON_H_
#define SPECJAX_FLOATS_NEON_H_

#include <arm_neon.h>

namespace specjax {
namespace {

struct NeonFloats {
  using Floats = float32x4_t;
  static constexpr int kLanes = 4;
  static constexpr bool kManyRegisters = true;

  static Floats Load(const float* in) { return vld1q_f32(in); }
  static void Store(float* out, Floats x) { vst1q_f32(out, x); }
  static Floats Set(float x) { return vdupq_n_f32(x); }
  static Floats Add(Floats a, Floats b) { return vaddq_f32(a, b); }
  static Floats Subtract(Floats a, Floats b) { return vsubq_f32(a, b); }
  static Floats Multiply(Floats a, Floats b) { return vmulq_f32(a, b); }
  static Floats Fma(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
  // b where one is NaN.
  static Floats Max(Floats a, Floats b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static Floats Round(Floats x) { return vrndnq_f32(x); }
  static Floats PowerOfTwo(Floats n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
  }

  // Lane i has the sum over the lanes of x[i].
  static Floats SumEach(const Floats* x) { return vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3])); }
};

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_FLOATS_NEON_H_
