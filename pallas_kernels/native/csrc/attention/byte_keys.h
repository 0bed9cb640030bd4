// Scores of query rows with keys that are signed bytes, by AVX-512 VNNI: see byte_codes.h.
#ifndef SPECJAX_ATTENTION_BYTE_KEYS_H_
#define SPECJAX_ATTENTION_BYTE_KEYS_H_

#include <immintrin.h>

#include <cstdint>

#include "attention/byte_codes.h"

namespace specjax {
namespace {

// A group of a query in 16 bits, which are 256 * upper + lower.
struct QueryGroup {
  int8_t codes[2][kGroup];  // upper, lower
  float scale;
  int32_t bias;  // -128 * sum of the integers: keys are made unsigned
};

// A group that holds something that is not finite becomes NaN as a whole.
inline void RoundQuery(const float* x, float scale, QueryGroup* out) {
  constexpr int kTop = 127 * 256;
  const __m512 part[2] = {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)};
  const float largest = LargestMagnitude(part[0], part[1]);
  const bool finite = largest < std::numeric_limits<float>::infinity(), some = finite && largest > kLeast;
  const __m512 inverse = _mm512_set1_ps(some ? kTop / largest : 0.0f);
  int32_t sum = 0;
  for (int i = 0; i < 2; ++i) {
    const __m512i codes = some ? _mm512_cvtps_epi32(_mm512_mul_ps(part[i], inverse)) : _mm512_setzero_si512();
    const __m512i upper = _mm512_srai_epi32(_mm512_add_epi32(codes, _mm512_set1_epi32(128)), 8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out->codes[0] + 16 * i), _mm512_cvtepi32_epi8(upper));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out->codes[1] + 16 * i), _mm512_cvtepi32_epi8(codes));
    sum += _mm512_reduce_add_epi32(codes);
  }
  out->scale = finite ? largest / kTop * scale : std::numeric_limits<float>::quiet_NaN();
  out->bias = -128 * sum;
}

// Sum of products with the same four bytes in every lane. Compilers load those in an instruction of its own.
inline __attribute__((always_inline)) void AddProducts(__m512i& sum, __m512i keys, const int8_t* four) {
  const auto& bytes = *reinterpret_cast<const int8_t(*)[4]>(four);
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(keys), "m"(bytes));
}

// Adds what `groups` groups contribute to the scores of `rows` rows with 16 slots. Vector i of `keys` has the quad i of
// every slot.
template <int groups, int rows>
inline __attribute__((always_inline)) void ScoreGroups(const __m512i* keys, const __m512* scales, const QueryGroup* q,
                                                       int64_t q_stride, bool first, float* scores) {
  constexpr int kQuads = kGroup / 4;
  __m512i sums[groups][rows];
#pragma GCC unroll 2
  for (int plane = 0; plane < 2; ++plane) {
#pragma GCC unroll 2
    for (int g = 0; g < groups; ++g) {
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r)
        sums[g][r] = plane == 0 ? _mm512_setzero_si512()
                                : _mm512_add_epi32(_mm512_slli_epi32(sums[g][r], 8),
                                                   _mm512_set1_epi32(q[r * q_stride + g].bias));
    }
#pragma GCC unroll 8
    for (int quad = 0; quad < kQuads; ++quad) {
#pragma GCC unroll 2
      for (int g = 0; g < groups; ++g) {
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r)
          AddProducts(sums[g][r], keys[g * kQuads + quad], q[r * q_stride + g].codes[plane] + 4 * quad);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
    __m512 score = first ? _mm512_setzero_ps() : _mm512_loadu_ps(scores + r * kChunk);
#pragma GCC unroll 2
    for (int g = 0; g < groups; ++g) {
      const __m512 scale = _mm512_mul_ps(scales[g], _mm512_set1_ps(q[r * q_stride + g].scale));
      score = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[g][r]), scale, score);
    }
    _mm512_storeu_ps(scores + r * kChunk, score);
  }
}

// Scores with 16 slots, by the values [64 * block, 64 * block + 32 * groups).
template <int groups>
inline void ScoreBlock(const ByteChunk& chunk, int64_t block, int64_t at, const QueryGroup* q, int64_t rows,
                       float* scores) {
  const KvArray& k = *chunk.array;
  const __mmask64 whole = groups == 2 ? ~__mmask64{0} : (__mmask64{1} << kGroup) - 1;
  __m512i keys[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i)
    keys[i] = _mm512_xor_si512(_mm512_maskz_loadu_epi8(whole, chunk.Vector(at + i) + 2 * kGroup * block),
                               _mm512_set1_epi8(-128));
  Transpose(keys);
  __m512 scales[groups];
  for (int g = 0; g < groups; ++g) scales[g] = chunk.Scales(2 * block + g, at);
  q += 2 * block;
  int64_t m = 0;
  for (; m + 4 <= rows; m += 4)
    ScoreGroups<groups, 4>(keys, scales, q + m * k.groups, k.groups, block == 0, scores + m * kChunk + at);
  for (; m < rows; ++m)
    ScoreGroups<groups, 1>(keys, scales, q + m * k.groups, k.groups, block == 0, scores + m * kChunk + at);
}

static_assert(sizeof(QueryGroup) <= kGroup * sizeof(float));  // see MemoryFloats

// Scores of all rows with all tiles of a chunk of which some row sees something.
inline void ScoreBytes(const ChunkTask& task, float* scores) {
  const int64_t groups = task.k.groups;
  const ByteChunk chunk(task, task.k, task.memory);
  auto* const q = reinterpret_cast<QueryGroup*>(task.memory + ScaleFloats(task.k_width));
  for (int64_t m = 0; m < task.rows(); ++m)
    for (int64_t g = 0; g < groups; ++g)
      RoundQuery(task.q + m / task.per_token * task.q_stride + m % task.per_token * task.k_width + g * kGroup,
                 task.scale, q + m * groups + g);
  for (int64_t slot = task.begin; slot < task.end; slot += kTile) {
    if (!SeenBySome(task, slot, slot + kTile, false)) continue;
    const int64_t at = slot - task.begin;
    Prefetch(task, task.k, slot + kTile);
    Prefetch(task, task.v, slot);
    int64_t block = 0;
    for (; 2 * block + 2 <= groups; ++block) ScoreBlock<2>(chunk, block, at, q, task.rows(), scores);
    if (2 * block < groups) ScoreBlock<1>(chunk, block, at, q, task.rows(), scores);
  }
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_ATTENTION_BYTE_KEYS_H_
