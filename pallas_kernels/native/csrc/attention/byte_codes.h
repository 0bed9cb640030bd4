// What products of integers with keys and with values that are signed bytes have in common.
//
// In floats, decoding a vector takes as many instructions as multiplying it. Here codes stay integers, and what meets
// them, queries or weights, is rounded to 16 bits for each group of values that shares a scale.
#ifndef SPECJAX_ATTENTION_BYTE_CODES_H_
#define SPECJAX_ATTENTION_BYTE_CODES_H_

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "attention/kernels.h"
#include "attention/slots.h"

namespace specjax {
namespace {

constexpr int kGroup = 32;  // values that share a scale
constexpr float kLeast = 1e-30f;  // magnitudes below are zeros: their inverses overflow

// The vectors of a chunk of slots, and the scales of all groups.
struct ByteChunk {
  const KvArray* array;
  const uint8_t* first;
  int64_t stride, last;       // bytes from a slot to the next, the last slot that there is
  uint16_t* scales;           // [groups, kChunk] float16, zeros beyond the last slot

  ByteChunk(const ChunkTask& task, const KvArray& of, float* memory)
      : array(&of),
        first(of.codes + (task.begin * task.heads + task.head) * of.code_bytes),
        stride(task.heads * of.code_bytes),
        last(task.end - task.begin - 1),
        scales(reinterpret_cast<uint16_t*>(memory)) {
    const uint16_t* from = of.scales + (task.begin * task.heads + task.head) * of.groups;
    for (int64_t i = 0; i < kChunk; ++i, from += task.heads * of.groups)
      for (int64_t g = 0; g < of.groups; ++g) scales[g * kChunk + i] = i <= last ? from[g] : 0;
  }

  // Beyond the last slot, that one's.
  const uint8_t* Vector(int64_t at) const { return first + std::min(at, last) * stride; }

  // Of 16 slots; what is not finite is NaN.
  __m512 Scales(int64_t group, int64_t at) const {
    const auto* halves = reinterpret_cast<const __m256i*>(scales + group * kChunk + at);
    const __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256(halves));
    return _mm512_fmadd_ps(scale, _mm512_setzero_ps(), scale);
  }
};

constexpr int64_t ScaleFloats(int64_t width) { return width / kGroup * kChunk / 2; }

// Compared as the integers that floats are stored as, NaN is the largest.
inline __m512i Magnitude(__m512 x) { return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)); }

inline float LargestMagnitude(__m512 a, __m512 b) {
  return _mm_cvtss_f32(
      _mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epu32(_mm512_max_epu32(Magnitude(a), Magnitude(b))))));
}

// Lane i of vector j becomes lane j of vector i.
inline __attribute__((always_inline)) void Transpose(__m512i* x) {
  __m512i y[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i a = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88), b = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
    const __m512i c = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd), d = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
    y[i] = _mm512_shuffle_i32x4(a, b, 0x88);
    y[i + 8] = _mm512_shuffle_i32x4(a, b, 0xdd);
    y[i + 4] = _mm512_shuffle_i32x4(c, d, 0x88);
    y[i + 12] = _mm512_shuffle_i32x4(c, d, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) x[i] = y[i];
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_ATTENTION_BYTE_CODES_H_
