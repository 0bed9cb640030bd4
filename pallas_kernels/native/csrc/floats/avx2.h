// Floats of AVX2 and FMA.
// Included by translation units of one instruction set each, hence the anonymous namespace.
#ifndef SPECJAX_FLOATS_AVX2_H_
#define SPECJAX_FLOATS_AVX2_H_

#include <immintrin.h>

namespace specjax {
namespace {

struct Avx2Floats {
  using Floats = __m256;
  static constexpr int kLanes = 8;
  static constexpr bool kManyRegisters = false;

  static Floats Load(const float* in) { return _mm256_loadu_ps(in); }
  static void Store(float* out, Floats x) { _mm256_storeu_ps(out, x); }
  static Floats Set(float x) { return _mm256_set1_ps(x); }
  static Floats Add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  static Floats Subtract(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
  static Floats Multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats Fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  // b where one is NaN.
  static Floats Max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
  static Floats Round(Floats x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static Floats PowerOfTwo(Floats n) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
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
}  // namespace specjax

#endif  // SPECJAX_FLOATS_AVX2_H_
