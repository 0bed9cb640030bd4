// x86-64 with AVX-512.
#include <immintrin.h>

#include <cmath>
#include <cstdint>

#include "attention/attend.h"

namespace specjax {
namespace {

struct Avx512 {
  using Floats = __m512;
  using Ints = __m512i;
  using Table = __m512;
  static constexpr int kLanes = 16;
  static constexpr bool kManyRegisters = true;

  static Floats Load(const float* in) { return _mm512_loadu_ps(in); }
  static void Store(float* out, Floats x) { _mm512_storeu_ps(out, x); }
  static Floats Set(float x) { return _mm512_set1_ps(x); }
  static Floats Add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static Floats Subtract(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
  static Floats Multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats Fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static Floats Max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
  static Floats Round(Floats x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static Floats PowerOfTwo(Floats n) { return _mm512_scalef_ps(Set(1.0f), n); }

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

  static Floats Pairs(Floats a, Floats b) { return Add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)); }
  static Floats Fours(Floats a, Floats b) {
    const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return Add(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  }
  static Floats Quarters(Floats a, Floats b) {
    return Add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  }
  // Lane i has the sum over the lanes of x[i].
  static Floats SumEach(const Floats* x) {
    Floats four[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      four[i] = Fours(Pairs(x[4 * i], x[4 * i + 1]), Pairs(x[4 * i + 2], x[4 * i + 3]));
    return Quarters(Quarters(four[0], four[1]), Quarters(four[2], four[3]));
  }
};

}  // namespace

const AttentionKernels& Avx512AttentionKernels() {
  static constexpr AttentionKernels kKernels = AttentionKernelsOf<Avx512>();
  return kKernels;
}

}  // namespace specjax
