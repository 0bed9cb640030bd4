// x86-64 with AVX2, FMA and F16C.
#include <immintrin.h>

#include <cmath>
#include <cstdint>

#include "attention/attend.h"

namespace specjax {
namespace {

struct Avx2 {
  using Floats = __m256;
  using Ints = __m256i;
  struct Table {
    __m256 low, high;
  };
  static constexpr int kLanes = 8;
  static constexpr bool kManyRegisters = false;

  static Floats Load(const float* in) { return _mm256_loadu_ps(in); }
  static void Store(float* out, Floats x) { _mm256_storeu_ps(out, x); }
  static Floats Set(float x) { return _mm256_set1_ps(x); }
  static Floats Add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  static Floats Subtract(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
  static Floats Multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats Fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static Floats Max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
  static Floats Round(Floats x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static Floats PowerOfTwo(Floats n) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  }

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

  static Floats Fours(const Floats* x) {
    return _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
  }
  // Lane i has the sum over the lanes of x[i].
  static Floats SumEach(const Floats* x) {
    const Floats a = Fours(x), b = Fours(x + 4);
    return Add(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  }
};

}  // namespace

const AttentionKernels& Avx2AttentionKernels() {
  static constexpr AttentionKernels kKernels = AttentionKernelsOf<Avx2>();
  return kKernels;
}

}  // namespace specjax
