// ARM with NEON, four lanes at a time.
#include <arm_neon.h>

#include <cmath>
#include <cstdint>

#include "attention/attend.h"
#include "floats/neon.h"

namespace specjax {
namespace {

struct Neon : NeonFloats {
  using Ints = int32x4_t;
  using Table = const float*;

  static float Half(uint16_t half) { return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half))), 0); }
  static float Unit(int64_t group) { return 1.0f / std::sqrt(static_cast<float>(group)); }
  static Floats Halves(const uint16_t* in) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(in))); }
  static Floats Brains(const uint16_t* in) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(in), 16)); }
  static Floats SignedBytes(const uint8_t* in) {
    const Ints x = {static_cast<int8_t>(in[0]), static_cast<int8_t>(in[1]), static_cast<int8_t>(in[2]),
                    static_cast<int8_t>(in[3])};
    return vcvtq_f32_s32(x);
  }
  static Ints Bytes(const uint8_t* in) { return Ints{in[0], in[1], in[2], in[3]}; }
  static Ints And(Ints x, int mask) { return vandq_s32(x, vdupq_n_s32(mask)); }
  static Ints ShiftRight(Ints x, int bits) { return vshlq_s32(x, vdupq_n_s32(-bits)); }
  static Table LoadTable(const float* table) { return table; }
  static Floats Lookup(Table table, Ints index) {
    return Floats{table[index[0]], table[index[1]], table[index[2]], table[index[3]]};
  }
  // Adds `value` where the four bits from bit `from` are set.
  static Ints AddBits(Ints x, const uint8_t* bits, int64_t from, int value) {
    const Ints each = {1, 2, 4, 8};
    const uint32x4_t set = vtstq_s32(vdupq_n_s32(*bits >> from), each);
    return vaddq_s32(x, vandq_s32(vreinterpretq_s32_u32(set), vdupq_n_s32(value)));
  }
};

}  // namespace

const AttentionKernels& AttentionKernels::ForNeon() {
  static constexpr AttentionKernels kKernels = AttentionKernelsOf<Neon>();
  return kKernels;
}

}  // namespace specjax
