// x86-64 with AVX-512.
#include <immintrin.h>

#include <cmath>
#include <cstdint>

#include "attention/attend.h"
#include "floats/avx512.h"

namespace specjax {
namespace {

struct Avx512 : Avx512Floats {
  using Ints = __m512i;
  using Table = __m512;

  static __m128i Load16(const void* in) { return _mm_loadu_si128(static_cast<const __m128i*>(in)); }
  static __m256i Load32(const void* in) { return _mm256_loadu_si256(static_cast<const __m256i*>(in)); }
  static float Half(uint16_t half) { return _cvtsh_ss(half); }
  static float Unit(int64_t group) { return 1.0f / std::sqrt(static_cast<float>(group)); }
  static Floats Halves(const uint16_t* in) { return _mm512_cvtph_ps(Load32(in)); }
  static Floats Brains(const uint16_t* in) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(Load32(in)), 16));
  }
  static Floats SignedBytes(const uint8_t* in) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(Load16(in))); }
  static Ints Bytes(const uint8_t* in) { return _mm512_cvtepu8_epi32(Load16(in)); }
  static Ints And(Ints x, int mask) { return _mm512_and_si512(x, _mm512_set1_epi32(mask)); }
  static Ints ShiftRight(Ints x, int bits) { return _mm512_srli_epi32(x, bits); }
  static Table LoadTable(const float* table) { return Load(table); }
  static Floats Lookup(Table table, Ints index) { return _mm512_permutexvar_ps(index, table); }
  // Adds `value` where the bits from bit `from` of `bits` are set, which is 0 here: 16 values have two bytes.
  static Ints AddBits(Ints x, const uint8_t* bits, int64_t, int value) {
    const __mmask16 mask = static_cast<__mmask16>(bits[0] | bits[1] << 8);
    return _mm512_mask_add_epi32(x, mask, x, _mm512_set1_epi32(value));
  }
};

}  // namespace

const AttentionKernels& AttentionKernels::ForAvx512Vnni() {
  static constexpr AttentionKernels kKernels = AttentionKernelsOf<Avx512>();
  return kKernels;
}

}  // namespace specjax
