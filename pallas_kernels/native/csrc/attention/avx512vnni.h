// Vectors of AVX-512 and its VNNI extension. See seen.h for the anonymous namespace.
#ifndef SPECJAX_ATTENTION_AVX512VNNI_H_
#define SPECJAX_ATTENTION_AVX512VNNI_H_

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "attention/attend.h"
#include "floats/avx512.h"

namespace specjax {
namespace {

struct Avx512 : Avx512Floats {
  using Ints = __m512i;
  using Table = __m512i;
  struct ByteTable {
    __m512i low, high;
  };

  static __m128i Load16(const void* in) { return _mm_loadu_si128(static_cast<const __m128i*>(in)); }
  static __m256i Load32(const void* in) { return _mm256_loadu_si256(static_cast<const __m256i*>(in)); }
  static void Store32(void* out, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(out), x); }
  static float Half(uint16_t half) { return _cvtsh_ss(half); }
  static float InverseRoot(int64_t x) { return 1.0f / std::sqrt(static_cast<float>(x)); }
  static Floats Halves(const uint16_t* in) { return _mm512_cvtph_ps(Load32(in)); }
  static Floats Brains(const uint16_t* in) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(Load32(in)), 16));
  }

  static Ints NoInts() { return _mm512_setzero_si512(); }
  static Ints LoadInts(const void* in) { return _mm512_loadu_si512(in); }
  static void StoreInts(void* out, Ints x) { _mm512_storeu_si512(out, x); }
  static Floats LowHalves(Ints x) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)); }
  static Ints AddInts(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
  static Ints MaxInts(Ints a, Ints b) { return _mm512_max_epi32(a, b); }
  static int32_t LargestInt(Ints x) { return _mm512_reduce_max_epi32(x); }
  static Floats ToFloats(Ints x) { return _mm512_cvtepi32_ps(x); }
  static Ints ToInts(Floats x) { return _mm512_cvtps_epi32(x); }
  static void StoreShorts(int16_t* out, Ints x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16(x));
  }
  static Ints SignedBytes(const uint8_t* in) { return _mm512_cvtepi8_epi32(Load16(in)); }
  static Ints Bytes(const uint8_t* in) { return _mm512_cvtepu8_epi32(Load16(in)); }
  static Ints And(Ints x, int mask) { return _mm512_and_si512(x, _mm512_set1_epi32(mask)); }
  static Ints ShiftRight(Ints x, int bits) { return _mm512_srli_epi32(x, bits); }
  // Adds `value` where the bits from bit `from` of `bits` are set, which is 0 here: 16 values have two bytes.
  static Ints AddBits(Ints x, const uint8_t* bits, int64_t, int value) {
    const __mmask16 mask = static_cast<__mmask16>(bits[0] | bits[1] << 8);
    return _mm512_mask_add_epi32(x, mask, x, _mm512_set1_epi32(value));
  }
  static Table LoadTable(const int16_t* table) { return _mm512_cvtepi16_epi32(Load32(table)); }
  static Ints LookUp(Table table, Ints index) { return _mm512_permutexvar_epi32(index, table); }

  // Pairs of integers of 16 bits: both of a lane, the same two for all lanes, and the sums of a lane's two products.
  static Ints Join(Ints first, Ints second) {
    return _mm512_mask_blend_epi16(0xaaaaaaaa, first, _mm512_slli_epi32(second, 16));
  }
  static Ints Both(const int16_t* in) {
    int32_t both;
    std::memcpy(&both, in, 4);
    return _mm512_set1_epi32(both);
  }
  static Ints AddProducts(Ints sum, Ints a, Ints b) { return _mm512_dpwssd_epi32(sum, a, b); }

  // The 16 bytes of each slot from `at` on to four columns, of which a lane has four bytes of its slot.
  static void Columns(const void* const* slots, int64_t at, Ints* out) {
    const auto row = [&](int i) { return Load16(static_cast<const uint8_t*>(slots[i]) + at); };
    __m512i rows[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      rows[i] = _mm512_castsi128_si512(row(i));
      rows[i] = _mm512_inserti32x4(rows[i], row(4 + i), 1);
      rows[i] = _mm512_inserti32x4(rows[i], row(8 + i), 2);
      rows[i] = _mm512_inserti32x4(rows[i], row(12 + i), 3);
    }
    const __m512i a = _mm512_unpacklo_epi32(rows[0], rows[1]), b = _mm512_unpackhi_epi32(rows[0], rows[1]);
    const __m512i c = _mm512_unpacklo_epi32(rows[2], rows[3]), d = _mm512_unpackhi_epi32(rows[2], rows[3]);
    out[0] = _mm512_unpacklo_epi64(a, c);
    out[1] = _mm512_unpackhi_epi64(a, c);
    out[2] = _mm512_unpacklo_epi64(b, d);
    out[3] = _mm512_unpackhi_epi64(b, d);
  }
  // Of each lane's four values the first and the third, and then the second and the fourth.
  static void SignedPairs(Ints bytes, int32_t* out) {
    StoreInts(out, _mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8));
    StoreInts(out + kLanes, _mm512_srai_epi16(bytes, 8));
  }
  // Adds 4 to those of each lane's four bytes whose bits, from bit `from` of the lane of `bits` on, are set.
  static Ints AddFours(Ints bytes, Ints bits, int64_t from) {
    const __m512i same = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c));
    const __m512i byte = _mm512_add_epi8(same, _mm512_set1_epi8(static_cast<char>(from / 8)));
    const __m512i each = _mm512_set1_epi32(from % 8 ? 0x80402010 : 0x08040201);
    const __mmask64 set = _mm512_test_epi8_mask(_mm512_shuffle_epi8(bits, byte), each);
    return _mm512_mask_add_epi8(bytes, set, bytes, _mm512_set1_epi8(4));
  }
  static ByteTable LoadByteTable(const int16_t* table) {
    const __m256i shorts = Load32(table);
    return {_mm512_broadcast_i32x4(_mm256_cvtepi16_epi8(shorts)),
            _mm512_broadcast_i32x4(_mm256_cvtepi16_epi8(_mm256_srli_epi16(shorts, 8)))};
  }
  static void LookUpPairs(const ByteTable& table, Ints codes, int32_t* out) {
    const __m512i low = _mm512_shuffle_epi8(table.low, codes), high = _mm512_shuffle_epi8(table.high, codes);
    StoreInts(out, _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaa, low, _mm512_slli_epi16(high, 8)));
    StoreInts(out + kLanes, _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaa, _mm512_srli_epi16(low, 8), high));
  }
};

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_ATTENTION_AVX512VNNI_H_
