// Weighted sums of values that are signed bytes, by AVX-512 VNNI: see byte_codes.h.
#ifndef SPECJAX_ATTENTION_BYTE_VALUES_H_
#define SPECJAX_ATTENTION_BYTE_VALUES_H_

#include <immintrin.h>

#include <cstdint>

#include "attention/byte_codes.h"
#include "for_each.h"

namespace specjax {
namespace {

constexpr int64_t kStretch = 64;  // slots whose weights are rounded together: fewer are more exact
constexpr int kTiles = kStretch / kTile, kHalves = kTiles / 2;

// Weights of some rows in a stretch of slots, times the scales of a group, as integers from 0 to 65535 less 32768: they
// are never negative, and one bit more halves the error. Slots i and i + 16 of 32 are a pair.
template <int rows>
struct RoundedWeights {
  int16_t pairs[rows][kHalves][kTile][2];
  float scale[4];
};

// Lane i of each quarter has the largest of vector i.
inline __m128i LargestOfEach(const __m512i* x) {
  const auto fold = [](__m512i a, __m512i b) __attribute__((always_inline)) {
    return _mm512_max_epu32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  };
  const __m512i a = fold(x[0], x[1]), b = fold(x[2], x[3]);
  const __m512i four = _mm512_max_epu32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  const __m256i two = _mm256_max_epu32(_mm512_castsi512_si256(four), _mm512_extracti64x4_epi64(four, 1));
  return _mm_max_epu32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
}

template <int rows>
inline __attribute__((always_inline)) void RoundWeights(const ByteChunk& chunk, int64_t group, int64_t at,
                                                        const float* weights, const __mmask16* const* seen,
                                                        RoundedWeights<rows>* out) {
  constexpr float kTop = 65535.0f;
  constexpr float kToInteger = 12582912.0f - 32768.0f;  // 1.5 * 2^23: the lowest 16 bits of the sum are the integer
  __m512 scales[kTiles];
  __m512i largest[4];
#pragma GCC unroll 4
  for (int t = 0; t < kTiles; ++t) scales[t] = chunk.Scales(group, at + t * kTile);
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    largest[r] = _mm512_setzero_si512();
    if (r >= rows) continue;
#pragma GCC unroll 4
    for (int t = 0; t < kTiles; ++t)
      largest[r] = _mm512_max_epu32(largest[r], _mm512_castps_si512(_mm512_maskz_mul_ps(
          seen[r][t], _mm512_loadu_ps(weights + r * kChunk + t * kTile), scales[t])));
  }
  // As integers, what is not finite is the largest, and so would be negative numbers, which no encoder's scales give.
  const __m128i bits = LargestOfEach(largest);
  const __m128 top = _mm_castsi128_ps(bits);
  const __mmask8 some = _mm_cmp_ps_mask(top, _mm_set1_ps(kLeast), _CMP_GT_OQ);
  const __mmask8 finite = _mm_cmplt_epu32_mask(bits, _mm_set1_epi32(0x7f800000));
  alignas(16) float inverse[4];
  _mm_store_ps(inverse, _mm_maskz_div_ps(some & finite, _mm_set1_ps(kTop), top));
  _mm_storeu_ps(out->scale, _mm_mask_blend_ps(finite, _mm_set1_ps(std::numeric_limits<float>::quiet_NaN()),
                                             _mm_mul_ps(top, _mm_set1_ps(1 / kTop))));
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
    const __m512 by = _mm512_set1_ps(inverse[r]);
    const auto rounded = [&](int t) __attribute__((always_inline)) {
      const __m512 x = _mm512_maskz_mul_ps(seen[r][t], _mm512_loadu_ps(weights + r * kChunk + t * kTile), scales[t]);
      return _mm512_castps_si512(_mm512_fmadd_ps(x, by, _mm512_set1_ps(kToInteger)));
    };
#pragma GCC unroll 2
    for (int half = 0; half < kHalves; ++half)
      _mm512_storeu_si512(out->pairs[r][half],
                          _mm512_mask_blend_epi16(0xaaaaaaaa, rounded(2 * half),
                                                  _mm512_slli_epi32(rounded(2 * half + 1), 16)));
  }
}

// Sum of products with the same two integers of 16 bits in every lane.
inline __attribute__((always_inline)) __m512i AddPairs(__m512i sum, __m512i values, const int16_t* pair) {
  asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(values), "m"(*reinterpret_cast<const int16_t(*)[2]>(pair)));
  return sum;
}

// Adds the values of a group of a stretch of slots to the sums of `rows` rows.
template <int rows>
inline void AddStretch(const ByteChunk& chunk, int64_t group, int64_t at, const float* weights,
                       const __mmask16* const* seen, int64_t width, float* sums) {
  RoundedWeights<rows < 4 ? rows : 4> part[(rows + 3) / 4];
  for (int r = 0; r < rows; r += 4) RoundWeights(chunk, group, at, weights + r * kChunk, seen + r, part + r / 4);
  alignas(4) static constexpr int16_t kLowest[2] = {-32768, -32768};
  __m512i acc[rows][2], base[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  ForEach<0, rows>([&](auto r) __attribute__((always_inline)) { acc[r][0] = acc[r][1] = _mm512_setzero_si512(); });
  for (int half = 0; half < kHalves; ++half) {
    for (int i = 0; i < 16; ++i) {
      const auto words = [&](int64_t slot) __attribute__((always_inline)) {
        return _mm512_cvtepi8_epi16(
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(chunk.Vector(slot) + group * kGroup)));
      };
      const __m512i a = words(at + 32 * half + i), b = words(at + 32 * half + 16 + i);
      const __m512i low = _mm512_unpacklo_epi16(a, b), high = _mm512_unpackhi_epi16(a, b);
      base[0] = AddPairs(base[0], low, kLowest);
      base[1] = AddPairs(base[1], high, kLowest);
      ForEach<0, rows>([&](auto r) __attribute__((always_inline)) {
        acc[r][0] = AddPairs(acc[r][0], low, part[r / 4].pairs[r % 4][half][i]);
        acc[r][1] = AddPairs(acc[r][1], high, part[r / 4].pairs[r % 4][half][i]);
      });
    }
  }
  // The quarters of `low` and `high` alternate in fours.
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  ForEach<0, rows>([&](auto r) __attribute__((always_inline)) {
    float* const to = sums + r * width + group * kGroup;
    const __m512 scale = _mm512_set1_ps(part[r / 4].scale[r % 4]);
    const auto add = [&](float* to, __m512i order) __attribute__((always_inline)) {
      const __m512i sums = _mm512_permutex2var_epi32(_mm512_sub_epi32(acc[r][0], base[0]), order,
                                                     _mm512_sub_epi32(acc[r][1], base[1]));
      const __m512 x = _mm512_cvtepi32_ps(sums);
      _mm512_storeu_ps(to, _mm512_fmadd_ps(x, scale, _mm512_loadu_ps(to)));
    };
    add(to, first);
    add(to + 16, second);
  });
}

// Adds the values of all slots, times the rows' weights, to their sums.
inline void AddBytes(const ChunkTask& task, const float* weights) {
  const ByteChunk chunk(task, task.v, task.memory);
  __mmask16 masks[kTokens][kTiles];
  for (int64_t slot = task.begin; slot < task.end; slot += kStretch) {
    if (!SeenBySome(task, slot, slot + kStretch, false)) continue;
    for (int64_t t = 0; t < task.tokens; ++t)
      for (int i = 0; i < kTiles; ++i) masks[t][i] = SeenMask(task.seen[t], slot + i * kTile);
    const int64_t at = slot - task.begin, rows = task.rows();
    for (int64_t g = 0; g < task.v.groups; ++g) {
      const auto some = [&](auto count, int64_t m) __attribute__((always_inline)) {
        constexpr int kRows = decltype(count)::value;
        const __mmask16* seen[kRows];
        for (int r = 0; r < kRows; ++r) seen[r] = masks[(m + r) / task.per_token];
        AddStretch<kRows>(chunk, g, at, weights + m * kChunk + at, seen, task.v_width, task.sums + m * task.v_width);
      };
      int64_t m = 0;
      for (; m + 8 <= rows; m += 8) some(std::integral_constant<int, 8>(), m);
      for (; m + 4 <= rows; m += 4) some(std::integral_constant<int, 4>(), m);
      for (; m < rows; ++m) some(std::integral_constant<int, 1>(), m);
    }
  }
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_ATTENTION_BYTE_VALUES_H_
