// Floats of AVX-512.
// Included by translation units of one instruction set each, hence the anonymous namespace.
#ifndef SPECJAX_FLOATS_AVX512_H_
#define SPECJAX_FLOATS_AVX512_H_

#include <immintrin.h>

namespace specjax {
namespace {

struct Avx512Floats {
  using Floats = __m512;
  static constexpr int kLanes = 16;
  static constexpr bool kManyRegisters = true;

  static Floats Load(const float* in) { return _mm512_loadu_ps(in); }
  static void Store(float* out, Floats x) { _mm512_storeu_ps(out, x); }
  static Floats Set(float x) { return _mm512_set1_ps(x); }
  static Floats Add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static Floats Subtract(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
  static Floats Multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats Fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  // b where one is NaN.
  static Floats Max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
  static Floats Round(Floats x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static Floats PowerOfTwo(Floats n) { return _mm512_scalef_ps(Set(1.0f), n); }

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
}  // namespace specjax

#endif  // SPECJAX_FLOATS_AVX512_H_
