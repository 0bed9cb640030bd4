// x86-64 with AVX-512 and its VNNI extension: one instruction multiplies 64 unsigned codes with 64 signed bytes.
// Activations of 16 bits take two passes, upper and lower bytes. See decode.h for the anonymous namespace.
#ifndef SPECJAX_QUANT_MATMUL_AVX512VNNI_H_
#define SPECJAX_QUANT_MATMUL_AVX512VNNI_H_

#include <immintrin.h>

#include <cstdint>

#include "quant_matmul/byte_planes.h"
#include "quant_matmul/multiply.h"

namespace specjax {
namespace {

struct Avx512Vnni : BytePlanes {
  using Ints = __m512i;
  using Floats = __m512;

  static constexpr int kRows = 8;
  static constexpr int32_t kOffset = 0;

  static Floats Load(const float* in) { return _mm512_loadu_ps(in); }
  static void Store(float* out, Floats in) { _mm512_storeu_ps(out, in); }
  static Floats Set(float x) { return _mm512_set1_ps(x); }
  static Floats Multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats Fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static Floats ToFloat(Ints in) { return _mm512_cvtepi32_ps(in); }
  static __m128i Load16(const uint8_t* in) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(in)); }
  static Floats Unsigned(const uint8_t* in) { return ToFloat(_mm512_cvtepu8_epi32(Load16(in))); }
  static Floats Signed(const uint8_t* in) { return ToFloat(_mm512_cvtepi8_epi32(Load16(in))); }
  static Floats Half(const uint8_t* in) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(in)));
  }
  static Bytes Lookup(const uint8_t* table, Bytes index) {
    const Ints entries = _mm512_broadcast_i32x4(Load16(table));
    return {reinterpret_cast<Part>(_mm512_shuffle_epi8(entries, reinterpret_cast<Ints>(index.part[0])))};
  }
  // Products with the same four bytes in every lane. Compilers load those in an instruction of its own, which rows pay.
  static inline __attribute__((always_inline)) void AddProducts(Ints& sum, Ints w, const int8_t* four) {
    const auto& bytes = *reinterpret_cast<const int8_t(*)[4]>(four);
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(bytes));
  }

  template <int R, bool wide, int bits, int begin, int end, typename Values>
  static inline __attribute__((always_inline)) void Dot(const Values& values, const uint8_t* x, Ints* sums) {
    const auto* records = reinterpret_cast<const Record<wide>*>(x);
    Ints w[end - begin];
    ForEach<begin, end>([&](auto quad) __attribute__((always_inline)) {
      w[quad - begin] = reinterpret_cast<Ints>(values(quad).part[0]);
    });
    const auto pass = [&](int plane, Ints* to) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int quad = begin; quad < end; ++quad) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) AddProducts(to[r], w[quad - begin], records[r].codes[plane] + 4 * quad);
      }
    };
    for (int r = 0; r < R; ++r) sums[r] = _mm512_set1_epi32(records[r].rounded.bias[begin > 0]);
    pass(wide, sums);
    if constexpr (wide) {
      Ints upper[R];  // summed apart: a sum waits for the product before it, and few rows have few sums
      for (int r = 0; r < R; ++r) upper[r] = _mm512_setzero_si512();
      pass(0, upper);
      for (int r = 0; r < R; ++r) sums[r] = _mm512_add_epi32(_mm512_slli_epi32(upper[r], 8), sums[r]);
    }
  }
};

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_QUANT_MATMUL_AVX512VNNI_H_
