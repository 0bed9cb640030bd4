// Any processor.
#ifdef __SSE2__
#include <emmintrin.h>
#endif

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
  using Table = const int16_t*;
  using ByteTable = const int16_t*;
  struct Two {
    int16_t first, second;
  };

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
  static float InverseRoot(int64_t x) { return 1.0f / std::sqrt(static_cast<float>(x)); }
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

  static Ints NoInts() { return {}; }
  static Ints LoadInts(const void* in) {
    Ints out;
    std::memcpy(out.lane, in, sizeof out);
    return out;
  }
  static void StoreInts(void* out, const Ints& x) { std::memcpy(out, x.lane, sizeof x); }
  static Floats LowHalves(const Ints& x) {
    return Each([&](int i) { return Half(static_cast<uint16_t>(x.lane[i])); });
  }
  static Ints AddInts(const Ints& a, const Ints& b) {
    return EachInt([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static Ints MaxInts(const Ints& a, const Ints& b) {
    return EachInt([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static int32_t LargestInt(const Ints& x) {
    int32_t most = x.lane[0];
    for (int i = 1; i < kLanes; ++i) most = x.lane[i] > most ? x.lane[i] : most;
    return most;
  }
  static Floats ToFloats(const Ints& x) {
    return Each([&](int i) { return static_cast<float>(x.lane[i]); });
  }
  static Ints ToInts(const Floats& x) {
    return EachInt([&](int i) { return static_cast<int32_t>(std::nearbyint(x.lane[i])); });
  }
  static void StoreShorts(int16_t* out, const Ints& x) {
    for (int i = 0; i < kLanes; ++i) out[i] = static_cast<int16_t>(x.lane[i]);
  }
  static Ints SignedBytes(const uint8_t* in) {
    return EachInt([=](int i) { return static_cast<int8_t>(in[i]); });
  }
  static Ints Bytes(const uint8_t* in) {
    return EachInt([=](int i) { return in[i]; });
  }
  static Ints And(const Ints& x, int mask) {
    return EachInt([&](int i) { return x.lane[i] & mask; });
  }
  static Ints Or(const Ints& a, const Ints& b) {
    return EachInt([&](int i) { return a.lane[i] | b.lane[i]; });
  }
  static Ints ShiftRight(const Ints& x, int bits) {
    return EachInt([&](int i) { return static_cast<uint32_t>(x.lane[i]) >> bits; });
  }
  static Ints ShiftLeft(const Ints& x, int bits) {
    return EachInt([&](int i) { return static_cast<uint32_t>(x.lane[i]) << bits; });
  }
  // Adds `value` where the bits from bit `from` on are set.
  static Ints AddBits(const Ints& x, const uint8_t* bits, int64_t from, int value) {
    return EachInt([&](int i) { return x.lane[i] + (*bits >> (from + i) & 1) * value; });
  }
  static Table LoadTable(const int16_t* table) { return table; }
  static Ints LookUp(Table table, const Ints& index) {
    return EachInt([&](int i) { return table[index.lane[i]]; });
  }

  // Pairs of integers of 16 bits: both of a lane, the same two for all lanes, and the sums of a lane's two products.
  static Ints Join(const Ints& first, const Ints& second) {
    return Or(And(first, 0xffff), ShiftLeft(second, 16));
  }
  static Two Both(const int16_t* in) { return {in[0], in[1]}; }
  static Ints AddProducts(const Ints& sum, const Ints& a, const Two& b) {
#ifdef __SSE2__  // every x86-64 has this instruction, and compilers do not find it
    int32_t both;
    std::memcpy(&both, &b, sizeof both);
    __m128i lanes, pairs;
    std::memcpy(&lanes, sum.lane, sizeof lanes);
    std::memcpy(&pairs, a.lane, sizeof pairs);
    lanes = _mm_add_epi32(lanes, _mm_madd_epi16(pairs, _mm_set1_epi32(both)));
    Ints out;
    std::memcpy(out.lane, &lanes, sizeof lanes);
    return out;
#else
    return EachInt([&](int i) {
      return sum.lane[i] + static_cast<int16_t>(a.lane[i]) * b.first + (a.lane[i] >> 16) * b.second;
    });
#endif
  }

  static uint8_t Byte(const Ints& x, int lane, int i) { return static_cast<uint32_t>(x.lane[lane]) >> 8 * i; }
  // The 16 bytes of each slot from `at` on to four columns, of which a lane has four bytes of its slot.
  static void Columns(const void* const* slots, int64_t at, Ints* out) {
    for (int j = 0; j < 4; ++j)
      out[j] = EachInt([&](int i) {
        const uint8_t* four = static_cast<const uint8_t*>(slots[i]) + at + 4 * j;
        return four[0] | four[1] << 8 | four[2] << 16 | static_cast<uint32_t>(four[3]) << 24;
      });
  }
  // Of each lane's four values the first and the third, and then the second and the fourth.
  template <typename F>
  static void StorePairs(const F& value, int32_t* out) {
    const auto all = [&](int k) { return EachInt([&](int i) { return value(i, k); }); };
    StoreInts(out, Join(all(0), all(2)));
    StoreInts(out + kLanes, Join(all(1), all(3)));
  }
  static void SignedPairs(const Ints& bytes, int32_t* out) {
    StorePairs([&](int lane, int i) { return static_cast<int8_t>(Byte(bytes, lane, i)); }, out);
  }
  // Adds 4 to those of each lane's four bytes whose bits, from bit `from` of the lane of `bits` on, are set.
  static Ints AddFours(const Ints& bytes, const Ints& bits, int64_t from) {
    return EachInt([&](int i) {
      const uint32_t four = static_cast<uint32_t>(bits.lane[i]) >> from & 15;
      return bytes.lane[i] + ((four * 0x00204081 & 0x01010101) << 2);
    });
  }
  static ByteTable LoadByteTable(const int16_t* table) { return table; }
  static void LookUpPairs(ByteTable table, const Ints& codes, int32_t* out) {
    StorePairs([&](int lane, int i) { return table[Byte(codes, lane, i)]; }, out);
  }
};

}  // namespace

const AttentionKernels& AttentionKernels::ForPortable() {
  static constexpr AttentionKernels kKernels = AttentionKernelsOf<ByPairs<Portable>>();
  return kKernels;
}

}  // namespace specjax
