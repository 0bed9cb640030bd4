// x86-64 with AVX2, FMA and F16C.
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "attention/attend.h"
#include "floats/avx2.h"

namespace specjax {
namespace {

struct Avx2 : Avx2Floats {
  using Ints = __m256i;
  struct ByteTable {
    __m256i low, high;
  };

  static __m128i Load8(const void* in) { return _mm_loadl_epi64(static_cast<const __m128i*>(in)); }
  static __m128i Load16(const void* in) { return _mm_loadu_si128(static_cast<const __m128i*>(in)); }
  static float Half(uint16_t half) { return _cvtsh_ss(half); }
  static float InverseRoot(int64_t x) { return 1.0f / std::sqrt(static_cast<float>(x)); }
  static Floats Halves(const uint16_t* in) { return _mm256_cvtph_ps(Load16(in)); }
  static Floats Brains(const uint16_t* in) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(Load16(in)), 16));
  }

  static Ints NoInts() { return _mm256_setzero_si256(); }
  static Ints LoadInts(const void* in) { return _mm256_loadu_si256(static_cast<const __m256i*>(in)); }
  static void StoreInts(void* out, Ints x) { _mm256_storeu_si256(static_cast<__m256i*>(out), x); }
  static Floats LowHalves(Ints x) {
    const __m256i halves = _mm256_blend_epi16(x, _mm256_setzero_si256(), 0xaa);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(halves, halves), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
  }
  static Ints AddInts(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
  static Ints MaxInts(Ints a, Ints b) { return _mm256_max_epi32(a, b); }
  static int32_t LargestInt(Ints x) {
    __m128i most = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(most, _mm_shuffle_epi32(most, 0xb1)));
  }
  static Floats ToFloats(Ints x) { return _mm256_cvtepi32_ps(x); }
  static Ints ToInts(Floats x) { return _mm256_cvtps_epi32(x); }
  static void StoreShorts(int16_t* out, Ints x) {
    const __m256i shorts = _mm256_permute4x64_epi64(_mm256_packs_epi32(x, x), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(shorts));
  }
  static Ints SignedBytes(const uint8_t* in) { return _mm256_cvtepi8_epi32(Load8(in)); }
  static Ints And(Ints x, int mask) { return _mm256_and_si256(x, _mm256_set1_epi32(mask)); }
  static Ints ShiftRight(Ints x, int bits) { return _mm256_srli_epi32(x, bits); }

  // Pairs of integers of 16 bits: both of a lane, the same two for all lanes, and the sums of a lane's two products.
  static Ints Join(Ints first, Ints second) { return _mm256_blend_epi16(first, _mm256_slli_epi32(second, 16), 0xaa); }
  static Ints Both(const int16_t* in) {
    int32_t both;
    std::memcpy(&both, in, 4);
    return _mm256_set1_epi32(both);
  }
  static Ints AddProducts(Ints sum, Ints a, Ints b) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
    asm("" : "+x"(sum));  // GCC adds in another order without it, for which it would need more registers than there are
    return sum;
  }

  // The 16 bytes of each slot from `at` on to four columns, of which a lane has four bytes of its slot.
  static void Columns(const void* const* slots, int64_t at, Ints* out) {
    const auto row = [&](int i) { return Load16(static_cast<const uint8_t*>(slots[i]) + at); };
    __m256i rows[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      rows[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(row(i)), row(4 + i), 1);
    const __m256i a = _mm256_unpacklo_epi32(rows[0], rows[1]), b = _mm256_unpackhi_epi32(rows[0], rows[1]);
    const __m256i c = _mm256_unpacklo_epi32(rows[2], rows[3]), d = _mm256_unpackhi_epi32(rows[2], rows[3]);
    out[0] = _mm256_unpacklo_epi64(a, c);
    out[1] = _mm256_unpackhi_epi64(a, c);
    out[2] = _mm256_unpacklo_epi64(b, d);
    out[3] = _mm256_unpackhi_epi64(b, d);
  }
  // Of each lane's four values the first and the third, and then the second and the fourth.
  static void SignedPairs(Ints bytes, int32_t* out) {
    StoreInts(out, _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8));
    StoreInts(out + kLanes, _mm256_srai_epi16(bytes, 8));
  }
  // Adds 4 to those of each lane's four bytes whose bits, from bit `from` of the lane of `bits` on, are set.
  static Ints AddFours(Ints bytes, Ints bits, int64_t from) {
    const __m128i same = _mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c);
    const __m256i byte = _mm256_broadcastsi128_si256(_mm_add_epi8(same, _mm_set1_epi8(static_cast<char>(from / 8))));
    const __m256i each = _mm256_set1_epi32(from % 8 ? 0x80402010 : 0x08040201);
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(bits, byte), each), each);
    return _mm256_add_epi8(bytes, _mm256_and_si256(set, _mm256_set1_epi8(4)));
  }
  static ByteTable LoadByteTable(const int16_t* table) {
    const auto bytes = [](__m256i x) { return _mm256_permute4x64_epi64(_mm256_packus_epi16(x, x), 0x88); };
    const Ints shorts = LoadInts(table);
    return {bytes(_mm256_and_si256(shorts, _mm256_set1_epi16(0xff))), bytes(_mm256_srli_epi16(shorts, 8))};
  }
  static void LookUpPairs(const ByteTable& table, Ints codes, int32_t* out) {
    const __m256i low = _mm256_shuffle_epi8(table.low, codes), high = _mm256_shuffle_epi8(table.high, codes);
    const __m256i odd = _mm256_set1_epi16(static_cast<int16_t>(0xff00));
    StoreInts(out, _mm256_blendv_epi8(low, _mm256_slli_epi16(high, 8), odd));
    StoreInts(out + kLanes, _mm256_blendv_epi8(_mm256_srli_epi16(low, 8), high, odd));
  }
};

// 16 columns at a time, as bytes in which the two slots take turns: lookups are of bytes here.
template <int bits>
struct TableValues<Avx2, bits> {
  using Codes = Packing<bits>;

  static void Join(const KvArray& array, const uint8_t* first, const uint8_t* second, int32_t* out) {
    const int64_t bytes = Codes::PlaneBytes(array), group_bytes = Codes::GroupBytes(array);
    const Avx2::ByteTable table = Avx2::LoadByteTable(array.type->table);
    const __m256i mask = _mm256_set1_epi8((1 << Codes::kLow) - 1);
    for (int64_t g = 0; g < array.groups; ++g, first += group_bytes, second += group_bytes) {
      for (int64_t i = 0; i < bytes; i += 16) {
        __m256i packed = InTurns(Avx2::Load16(first + i), Avx2::Load16(second + i));
#pragma GCC unroll 4
        for (int plane = 0; plane < Codes::kPlanes; ++plane) {
          const int64_t at = plane * bytes + i;
          __m256i codes = _mm256_and_si256(packed, mask);
          if constexpr (Codes::kThird) codes = AddFours(codes, first + bytes + at / 8, second + bytes + at / 8);
          const __m256i lower = _mm256_shuffle_epi8(table.low, codes), upper = _mm256_shuffle_epi8(table.high, codes);
          int32_t* const to = out + PlaceOf(g * array.group + at);
          Avx2::StoreInts(to, _mm256_unpacklo_epi8(lower, upper));
          Avx2::StoreInts(to + Avx2::kLanes, _mm256_unpackhi_epi8(lower, upper));
          packed = _mm256_srli_epi16(packed, Codes::kLow);
        }
      }
    }
  }

  // Bytes of columns 0 to 3 and 8 to 11, and then 4 to 7 and 12 to 15: unpacking them puts columns in order.
  static __m256i InTurns(__m128i first, __m128i second) {
    const __m128i lower = _mm_unpacklo_epi8(first, second), upper = _mm_unpackhi_epi8(first, second);
    return _mm256_permute4x64_epi64(_mm256_set_m128i(upper, lower), _MM_SHUFFLE(3, 1, 2, 0));
  }

  // Adds 4 where a column's bit is set, of 16 for each slot.
  static __m256i AddFours(__m256i codes, const uint8_t* first, const uint8_t* second) {
    uint16_t of_first, of_second;
    std::memcpy(&of_first, first, 2);
    std::memcpy(&of_second, second, 2);
    constexpr int64_t kFirst = 0x0200020002000200, kSecond = 0x0301030103010301;  // bytes of eight columns each
    constexpr int64_t kLower = 0x0808040402020101, kUpper = 0x8080404020201010;   // bits in them
    const __m256i both = _mm256_set1_epi32(of_first | uint32_t{of_second} << 16);
    const __m256i bytes = _mm256_setr_epi64x(kFirst, kSecond, kFirst, kSecond);
    const __m256i bit = _mm256_setr_epi64x(kLower, kLower, kUpper, kUpper);
    const __m256i set = _mm256_and_si256(_mm256_shuffle_epi8(both, bytes), bit);
    return _mm256_add_epi8(codes, _mm256_and_si256(_mm256_cmpeq_epi8(set, bit), _mm256_set1_epi8(4)));
  }
};

}  // namespace

const AttentionKernels& AttentionKernels::ForAvx2() {
  static constexpr AttentionKernels kKernels = AttentionKernelsOf<ByPairs<Avx2>>();
  return kKernels;
}

}  // namespace specjax
