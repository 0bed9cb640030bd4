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
  using Table = const int16_t*;
  struct ByteTable {
    uint8x16_t low, high;
  };
  struct Two {
    int16_t first, second;
  };

  static float Half(uint16_t half) { return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half))), 0); }
  static float InverseRoot(int64_t x) { return 1.0f / std::sqrt(static_cast<float>(x)); }
  static Floats Halves(const uint16_t* in) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(in))); }
  static Floats Brains(const uint16_t* in) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(in), 16)); }

  static Ints NoInts() { return vdupq_n_s32(0); }
  static Ints LoadInts(const void* in) { return vreinterpretq_s32_u8(vld1q_u8(static_cast<const uint8_t*>(in))); }
  static void StoreInts(void* out, Ints x) { vst1q_u8(static_cast<uint8_t*>(out), vreinterpretq_u8_s32(x)); }
  static Floats LowHalves(Ints x) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(vreinterpretq_u32_s32(x))));
  }
  static Ints AddInts(Ints a, Ints b) { return vaddq_s32(a, b); }
  static Ints MaxInts(Ints a, Ints b) { return vmaxq_s32(a, b); }
  static int32_t LargestInt(Ints x) { return vmaxvq_s32(x); }
  static Floats ToFloats(Ints x) { return vcvtq_f32_s32(x); }
  static Ints ToInts(Floats x) { return vcvtnq_s32_f32(x); }
  static void StoreShorts(int16_t* out, Ints x) { vst1_s16(out, vmovn_s32(x)); }
  static Ints SignedBytes(const uint8_t* in) {
    return Ints{static_cast<int8_t>(in[0]), static_cast<int8_t>(in[1]), static_cast<int8_t>(in[2]),
                static_cast<int8_t>(in[3])};
  }
  static Ints Bytes(const uint8_t* in) { return Ints{in[0], in[1], in[2], in[3]}; }
  static Ints And(Ints x, int mask) { return vandq_s32(x, vdupq_n_s32(mask)); }
  static Ints Or(Ints a, Ints b) { return vorrq_s32(a, b); }
  static Ints ShiftRight(Ints x, int bits) {
    return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(x), vdupq_n_s32(-bits)));
  }
  static Ints ShiftLeft(Ints x, int bits) { return vshlq_s32(x, vdupq_n_s32(bits)); }
  // Adds `value` where the four bits from bit `from` are set.
  static Ints AddBits(Ints x, const uint8_t* bits, int64_t from, int value) {
    const Ints each = {1, 2, 4, 8};
    const uint32x4_t set = vtstq_s32(vdupq_n_s32(*bits >> from), each);
    return vaddq_s32(x, vandq_s32(vreinterpretq_s32_u32(set), vdupq_n_s32(value)));
  }
  static Table LoadTable(const int16_t* table) { return table; }
  static Ints LookUp(Table table, Ints index) {
    return Ints{table[index[0]], table[index[1]], table[index[2]], table[index[3]]};
  }

  // Pairs of integers of 16 bits: the first ones of all lanes and then the second ones; the same two for all lanes; and
  // the sums of a lane's two products.
  static Ints Join(Ints first, Ints second) {
    return vreinterpretq_s32_s16(vcombine_s16(vmovn_s32(first), vmovn_s32(second)));
  }
  static Two Both(const int16_t* in) { return {in[0], in[1]}; }
  static Ints AddProducts(Ints sum, Ints a, Two b) {
    const int16x8_t pairs = vreinterpretq_s16_s32(a);
    return vmlal_high_n_s16(vmlal_n_s16(sum, vget_low_s16(pairs), b.first), pairs, b.second);
  }

  // The 16 bytes of each slot from `at` on to four columns, of which a lane has four bytes of its slot.
  static void Columns(const void* const* slots, int64_t at, Ints* out) {
    const auto row = [&](int i) { return vreinterpretq_s32_u8(vld1q_u8(static_cast<const uint8_t*>(slots[i]) + at)); };
    int64x2_t rows[4];
    for (int i = 0; i < 2; ++i) {
      const int32x4_t a = row(2 * i), b = row(2 * i + 1);
      rows[i] = vreinterpretq_s64_s32(vtrn1q_s32(a, b));
      rows[2 + i] = vreinterpretq_s64_s32(vtrn2q_s32(a, b));
    }
    out[0] = vreinterpretq_s32_s64(vtrn1q_s64(rows[0], rows[1]));
    out[1] = vreinterpretq_s32_s64(vtrn1q_s64(rows[2], rows[3]));
    out[2] = vreinterpretq_s32_s64(vtrn2q_s64(rows[0], rows[1]));
    out[3] = vreinterpretq_s32_s64(vtrn2q_s64(rows[2], rows[3]));
  }
  // Of each lane's four values the first and the third, and then the second and the fourth.
  static void SignedPairs(Ints bytes, int32_t* out) {
    const auto value = [&](int i) { return vshlq_s32(vshlq_s32(bytes, vdupq_n_s32(24 - 8 * i)), vdupq_n_s32(-24)); };
    StoreInts(out, Join(value(0), value(2)));
    StoreInts(out + kLanes, Join(value(1), value(3)));
  }
  // Adds 4 to those of each lane's four bytes whose bits, from bit `from` of the lane of `bits` on, are set.
  static Ints AddFours(Ints bytes, Ints bits, int64_t from) {
    const uint8x16_t same = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12};
    const uint8x16_t byte = vaddq_u8(same, vdupq_n_u8(static_cast<uint8_t>(from / 8)));
    const uint8x16_t each = vreinterpretq_u8_u32(vdupq_n_u32(from % 8 ? 0x80402010 : 0x08040201));
    const uint8x16_t set = vtstq_u8(vqtbl1q_u8(vreinterpretq_u8_s32(bits), byte), each);
    return vreinterpretq_s32_u8(vaddq_u8(vreinterpretq_u8_s32(bytes), vandq_u8(set, vdupq_n_u8(4))));
  }
  static ByteTable LoadByteTable(const int16_t* table) {
    const uint8x16x2_t bytes = vld2q_u8(reinterpret_cast<const uint8_t*>(table));
    return {bytes.val[0], bytes.val[1]};
  }
  static void LookUpPairs(const ByteTable& table, Ints codes, int32_t* out) {
    const Ints low = vreinterpretq_s32_u8(vqtbl1q_u8(table.low, vreinterpretq_u8_s32(codes)));
    const Ints high = vreinterpretq_s32_u8(vqtbl1q_u8(table.high, vreinterpretq_u8_s32(codes)));
    const auto value = [&](int i) {
      return Or(And(ShiftRight(low, 8 * i), 255), ShiftLeft(And(ShiftRight(high, 8 * i), 255), 8));
    };
    StoreInts(out, Join(value(0), value(2)));
    StoreInts(out + kLanes, Join(value(1), value(3)));
  }
};

}  // namespace

const AttentionKernels& AttentionKernels::ForNeon() {
  static constexpr AttentionKernels kKernels = AttentionKernelsOf<ByPairs<Neon>>();
  return kKernels;
}

}  // namespace specjax
