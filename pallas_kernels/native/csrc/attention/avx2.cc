// x86-64 with AVX2, FMA and F16C.
#include <immintrin.h>

#include <cmath>
#include <cstdint>

#include "attention/attend.h"
#include "floats/avx2.h"

namespace specjax {
namespace {

struct Avx2 : Avx2Floats {
  using Ints = __m256i;
  struct Table {
    __m256 low, high;
  };

  static __m128i Load8(const void* in) { return _mm_loadl_epi64(static_cast<const __m128i*>(in)); }
  static __m128i Load16(const void* in) { return _mm_loadu_si128(static_cast<const __m128i*>(in)); }
  static float Half(uint16_t half) { return _cvtsh_ss(half); }
  static float Unit(int64_t group) { return 1.0f / std::sqrt(static_cast<float>(group)); }
  static Floats Halves(const uint16_t* in) { return _mm256_cvtph_ps(Load16(in)); }
  static Floats Brains(const uint16_t* in) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(Load16(in)), 16));
  }
  static Floats SignedBytes(const uint8_t* in) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(Load8(in))); }
  static Ints Bytes(const uint8_t* in) { return _mm256_cvtepu8_epi32(Load8(in)); }
  static Ints And(Ints x, int mask) { return _mm256_and_si256(x, _mm256_set1_epi32(mask)); }
  static Ints ShiftRight(Ints x, int bits) { return _mm256_srli_epi32(x, bits); }
  static Table LoadTable(const float* table) { return {Load(table), Load(table + 8)}; }
  static Floats Lookup(const Table& table, Ints index) {
    const Floats second = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));  // bit 3 to the sign
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table.low, index), _mm256_permutevar8x32_ps(table.high, index),
                            second);
  }
  // Adds `value` where the bits of the byte are set.
  static Ints AddBits(Ints x, const uint8_t* bits, int64_t, int value) {
    const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(*bits), each), each);
    return _mm256_add_epi32(x, _mm256_and_si256(set, _mm256_set1_epi32(value)));
  }
};

}  // namespace

const AttentionKernels& AttentionKernels::ForAvx2() {
  static constexpr AttentionKernels kKernels = AttentionKernelsOf<Avx2>();
  return kKernels;
}

}  // namespace specjax
