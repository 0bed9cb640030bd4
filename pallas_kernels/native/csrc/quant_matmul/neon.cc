// AArch64 with the dot product extension: signed bytes times signed bytes. Codes lose 128 on loading. Activations of 16
// bits take two passes, upper and lower bytes.
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "quant_matmul/byte_planes.h"
#include "quant_matmul/multiply.h"

namespace specjax {
namespace {

struct Neon : BytePlanes {
  using Ints = int32x4x4_t;
  using Floats = float32x4x4_t;

  static constexpr int kRows = 4;
  static constexpr int32_t kOffset = 128;

  static Floats Load(const float* in) {
    return {{vld1q_f32(in), vld1q_f32(in + 4), vld1q_f32(in + 8), vld1q_f32(in + 12)}};
  }
  static void Store(float* out, const Floats& in) {
    for (int i = 0; i < 4; ++i) vst1q_f32(out + 4 * i, in.val[i]);
  }
  template <typename F>
  static inline __attribute__((always_inline)) Floats Each(const F& value) {
    return {{value(0), value(1), value(2), value(3)}};
  }
  static Floats Set(float x) {
    return Each([=](int) { return vdupq_n_f32(x); });
  }
  static Floats Multiply(const Floats& a, const Floats& b) {
    return Each([&](int i) { return vmulq_f32(a.val[i], b.val[i]); });
  }
  static Floats Fma(const Floats& a, const Floats& b, const Floats& c) {
    return Each([&](int i) { return vfmaq_f32(c.val[i], a.val[i], b.val[i]); });
  }
  static Floats ToFloat(const Ints& in) {
    return Each([&](int i) { return vcvtq_f32_s32(in.val[i]); });
  }
  static Floats Unsigned(const uint8_t* in) {
    const uint8x16_t bytes = vld1q_u8(in);
    const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
    return {{vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_high_u16(low)),
             vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), vcvtq_f32_u32(vmovl_high_u16(high))}};
  }
  static Floats Signed(const uint8_t* in) {
    const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(in));
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))}};
  }
  static Floats Half(const uint8_t* in) {
    return Each([=](int i) {
      float16x4_t halves;
      std::memcpy(&halves, in + 8 * i, 8);
      return vcvt_f32_f16(halves);
    });
  }
  static Bytes Lookup(const uint8_t* table, Bytes index) {
    const uint8x16_t entries = vld1q_u8(table);
    ForEach<0, kParts>([&](auto i) __attribute__((always_inline)) {
      index.part[i] = vqtbl1q_u8(entries, index.part[i]);
    });
    return index;
  }

  template <int R, bool wide, int bits, int begin, int end, typename Values>
  static inline __attribute__((always_inline)) void Dot(const Values& values, const uint8_t* x, Ints* sums) {
    const auto* records = reinterpret_cast<const Record<wide>*>(x);
    const auto pass = [&](int plane) __attribute__((always_inline)) {
      ForEach<begin, end>([&](auto quad) __attribute__((always_inline)) {
        const Bytes codes = values(quad);
        int8x16_t w[4];
        for (int i = 0; i < 4; ++i) w[i] = vreinterpretq_s8_u8(veorq_u8(codes.part[i], vdupq_n_u8(0x80)));
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          int32_t four;
          std::memcpy(&four, records[r].codes[plane] + 4 * quad, 4);
          const int8x16_t y = vreinterpretq_s8_s32(vdupq_n_s32(four));
          for (int i = 0; i < 4; ++i) sums[r].val[i] = vdotq_s32(sums[r].val[i], w[i], y);
        }
      });
    };
    if constexpr (wide) {
      for (int r = 0; r < R; ++r) {
        for (int i = 0; i < 4; ++i) sums[r].val[i] = vdupq_n_s32(0);
      }
      pass(0);
      for (int r = 0; r < R; ++r) {
        const int32x4_t bias = vdupq_n_s32(records[r].rounded.bias[begin > 0]);
        for (int i = 0; i < 4; ++i) sums[r].val[i] = vaddq_s32(vshlq_n_s32(sums[r].val[i], 8), bias);
      }
      pass(1);
    } else {
      for (int r = 0; r < R; ++r) {
        for (int i = 0; i < 4; ++i) sums[r].val[i] = vdupq_n_s32(records[r].rounded.bias[begin > 0]);
      }
      pass(0);
    }
  }
};

}  // namespace

const QuantKernels& QuantKernels::ForNeon() {
  static constexpr QuantKernels kKernels = KernelsOf<Neon>();
  return kKernels;
}

}  // namespace specjax
