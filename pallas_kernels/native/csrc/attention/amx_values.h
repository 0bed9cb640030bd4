// Sums of values by tiles of AMX: a row of a tile are the weights of a row, and a column is one of the values. See
// amx_products.h for the anonymous namespace.
#ifndef SPECJAX_ATTENTION_AMX_VALUES_H_
#define SPECJAX_ATTENTION_AMX_VALUES_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "attention/amx_products.h"
#include "attention/amx_two_bytes.h"

namespace specjax {
namespace {

constexpr int64_t kHalfTile = kTileRows / 2;  // up to so many rows are left to vectors
static_assert(kSpan == kStep, "a tile has the weights of a span");

// Bytes of a span as two tiles for each step of columns: keep(place, bytes) is called with 64 of them and their place
// in [steps, 2, kCacheBytes]. The columns of a step stand in another order, so that few shuffles are needed: InOrder
// puts sums right.
template <typename Next, typename Keep>
inline void QuadColumns(const uint8_t* const* slots, int64_t width, const Next& ahead, const Keep& keep) {
  for (int64_t quad = 0; quad < kSpan / 4; quad += 2) {
    ahead.Ask(4 * quad, 4 * quad + 8);
    for (int64_t n = 0; n < width; n += kStep) {
      __m512i rows[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
        rows[i] = _mm512_inserti64x4(_mm512_castsi256_si512(Avx512::Load32(slots[4 * quad + i] + n)),
                                     Avx512::Load32(slots[4 * quad + 4 + i] + n), 1);
      const __m512i a = _mm512_unpacklo_epi8(rows[0], rows[1]), b = _mm512_unpackhi_epi8(rows[0], rows[1]);
      const __m512i c = _mm512_unpacklo_epi8(rows[2], rows[3]), d = _mm512_unpackhi_epi8(rows[2], rows[3]);
      const __m512i fours[] = {_mm512_unpacklo_epi16(a, c), _mm512_unpackhi_epi16(a, c), _mm512_unpacklo_epi16(b, d),
                               _mm512_unpackhi_epi16(b, d)};
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const int64_t place = (n / kStep * 2 + half) * kCacheBytes + quad * kTileRowBytes;
        const __m512i first = fours[2 * half], second = fours[2 * half + 1];
        keep(place, _mm512_shuffle_i64x2(first, second, 0x44));
        keep(place + kTileRowBytes, _mm512_shuffle_i64x2(first, second, 0xee));
      }
    }
  }
}

// Sums of two tiles of QuadColumns, with their columns in order.
inline void InOrder(__m512 first, __m512 second, float* out) {
  _mm512_storeu_ps(out, _mm512_shuffle_f32x4(first, second, 0x88));
  _mm512_storeu_ps(out + kStep / 2, _mm512_shuffle_f32x4(first, second, 0xdd));
}

// The largest of each of 16 vectors of integers.
inline __m512i LargestOfEach(const __m512i* x) {
  __m512i eights[8], fours[4], twos[2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
    eights[i] = _mm512_max_epi32(_mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]),
                                 _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    fours[i] = _mm512_max_epi32(_mm512_unpacklo_epi64(eights[2 * i], eights[2 * i + 1]),
                                _mm512_unpackhi_epi64(eights[2 * i], eights[2 * i + 1]));
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i)
    twos[i] = _mm512_max_epi32(_mm512_shuffle_i32x4(fours[2 * i], fours[2 * i + 1], 0x88),
                               _mm512_shuffle_i32x4(fours[2 * i], fours[2 * i + 1], 0xdd));
  return _mm512_max_epi32(_mm512_shuffle_i32x4(twos[0], twos[1], 0x88), _mm512_shuffle_i32x4(twos[0], twos[1], 0xdd));
}

// The slots of a span that each of a tile of rows sees.
struct SeenOfRows {
  uint32_t of[kTileRows];
  bool all;  // whether each sees all

  void Look(const ChunkTask& task, int64_t slot, int64_t first, int64_t rows) {
    all = true;
    for (int64_t r = 0, end; r < rows; r = end) {  // rows of a token see the same
      const int64_t token = (first + r) / task.per_token;
      end = std::min(rows, (token + 1) * task.per_token - first);
      const auto mask = static_cast<uint32_t>(SeenOfTile<kSpan>(task.seen[token], slot));
      std::fill(of + r, of + end, mask);
      all = all && mask == kAll<kSpan>;
    }
    std::fill(of + rows, of + kTileRows, 0);
  }
  __mmask16 First(int64_t row) const { return static_cast<__mmask16>(of[row]); }
  __mmask16 Second(int64_t row) const { return static_cast<__mmask16>(of[row] >> Avx512::kLanes); }
};

// Multiplies weights of some spans so that, times a scale, each becomes an integer: see RoundWeights. `most` [spans,
// kSpan] are the largest scales of the slots, and `at` says where a span begins. What an integer of all these spans is
// worth is written to `worth` [kTileRows].
void Stretch(const KvArray& array, const SeenOfRows* seen, const int64_t* at, int64_t spans, int64_t rows,
             const float* most, float* weights, float* worth) {
  constexpr int L = Avx512::kLanes;
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i tops[kTileRows];
  for (int64_t r = 0; r < kTileRows; ++r) {
    tops[r] = _mm512_setzero_si512();
    for (int64_t i = 0; i < spans; ++i) {
      const float* const row = weights + std::min(r, rows - 1) * kChunk + at[i];
      const auto products = [&](__mmask16 mask, int64_t n) {
        const __m512 x = _mm512_maskz_mul_ps(mask, _mm512_loadu_ps(row + n), _mm512_loadu_ps(most + i * kSpan + n));
        return _mm512_and_si512(_mm512_castps_si512(x), magnitude);
      };
      const __m512i first = products(seen[i].First(r), 0), second = products(seen[i].Second(r), L);
      tops[r] = _mm512_max_epi32(tops[r], _mm512_max_epi32(first, second));
    }
  }
  const __m512i top = LargestOfEach(tops);
  const __mmask16 finite = _mm512_cmplt_epi32_mask(top, _mm512_set1_epi32(0x7f800000));
  const __mmask16 some = finite & _mm512_cmpgt_epi32_mask(top, _mm512_setzero_si512());
  const __m512 largest = _mm512_castsi512_ps(top), levels = _mm512_set1_ps(array.type->levels);
  const __m512 unit = _mm512_set1_ps(Unit<Avx512>(array));
  alignas(64) float inverse[kTileRows];
  _mm512_store_ps(inverse, _mm512_maskz_min_ps(some, _mm512_div_ps(levels, largest),
                                               _mm512_set1_ps(std::numeric_limits<float>::max())));
  // Weights of rows with NaN become zeros, and what they are worth is NaN.
  _mm512_storeu_ps(worth, _mm512_mask_mul_ps(_mm512_set1_ps(kNan), finite, _mm512_div_ps(largest, levels), unit));
  for (int64_t i = 0; i < spans; ++i) {
    for (int64_t r = 0; r < rows; ++r) {
      float* const row = weights + r * kChunk + at[i];
      const __m512 factor = _mm512_set1_ps(inverse[r]);
      const auto stretched = [&](__mmask16 mask, const float* x) {
        return _mm512_maskz_mul_ps(inverse[r] > 0 ? mask : 0, _mm512_loadu_ps(x), factor);
      };
      _mm512_storeu_ps(row, stretched(seen[i].First(r), row));
      _mm512_storeu_ps(row + L, stretched(seen[i].Second(r), row + L));
    }
  }
}

// Stretched weights of a span times the scales of a group, as integers, a row behind the other.
template <bool all_seen>
void SplitWeights(const SeenOfRows& seen, int64_t rows, const float* weights, const float* scales, uint8_t* out) {
  constexpr int L = Avx512::kLanes;
  const __m512 first = _mm512_loadu_ps(scales), second = _mm512_loadu_ps(scales + L);
  // Of packed integers each four lanes have some of both vectors; this is where their bytes go.
  const __m512i halves =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (int64_t r = 0; r < rows; ++r, weights += kChunk, out += kRowBytes) {
    __m512 a = _mm512_mul_ps(first, _mm512_loadu_ps(weights)), b = _mm512_mul_ps(second, _mm512_loadu_ps(weights + L));
    if constexpr (!all_seen) {  // a weight of zero does not hide NaN
      a = _mm512_maskz_mov_ps(seen.First(r), a);
      b = _mm512_maskz_mov_ps(seen.Second(r), b);
    }
    const __m512i shorts = _mm512_packs_epi32(_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b));
    _mm512_storeu_si512(out, _mm512_permutexvar_epi32(order, _mm512_shuffle_epi8(shorts, halves)));
  }
}

using Totals = float[Avx512::kLanes];  // of a row

// Values that are kept as integers of one byte.
struct ValuesOfOneByte {
  static constexpr int64_t kBytes = 1;

  // Puts those of a span in columns; `spread` is memory for [kSpan, width].
  template <typename Next>
  static void Put(const KvArray& array, const Places<kSpan>& places, const Next& ahead, uint8_t* spread,
                  uint8_t* out) {
    const uint8_t* bytes[kSpan];
    FindBytes(array, places, spread, bytes);
    QuadColumns(bytes, array.width, ahead, [&](int64_t place, __m512i quads) __attribute__((always_inline)) {
      _mm512_storeu_si512(out + place, quads);
    });
  }

  // Totals of R rows for 32 columns over spans, from which to which there are `later` bytes. All have one worth.
  template <int R>
  static void Sum(const uint8_t* weights, const uint8_t* values, int64_t later, const float* worth, int64_t spans,
                  Totals* first, Totals* second) {
    // Four sums take turns: each waits for the product before it.
    alignas(64) Products<2> products[2];
    ClearTile<kSum<2, 0, 0>>();
    ClearTile<kSum<2, 0, 1>>();
    ClearTile<kSum<2, 1, 0>>();
    ClearTile<kSum<2, 1, 1>>();
    for (int64_t span = 0; span < spans; ++span, weights += kRowsBytes, values += later) {
      LoadTile<kOfRows>(weights, kRowBytes);
      LoadTile<kOfCache>(values, kTileRowBytes);
      MultiplyTiles<kSum<2, 0, 0>, kOfRows, false, kOfCache, true>();
      LoadTile<kOfRows + 1>(weights + kStep, kRowBytes);
      MultiplyTiles<kSum<2, 0, 1>, kOfRows + 1, true, kOfCache, true>();
      LoadTile<kOfCache + 1>(values + kCacheBytes, kTileRowBytes);
      MultiplyTiles<kSum<2, 1, 0>, kOfRows, false, kOfCache + 1, true>();
      MultiplyTiles<kSum<2, 1, 1>, kOfRows + 1, true, kOfCache + 1, true>();
    }
    Keep<2, 0, kTileRowBytes>(products);
    Keep<2, 1, kTileRowBytes>(products);
    const auto scaled = [&](int half, int r) __attribute__((always_inline)) {
      return _mm512_mul_ps(SumsOf<2>(products[half], r), _mm512_set1_ps(worth[r]));
    };
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      _mm512_store_ps(first[r], scaled(0, r));
      _mm512_store_ps(second[r], scaled(1, r));
    }
  }
};

// Values that are kept as integers of two bytes: the lower ones of a span come before the upper ones.
struct ValuesOfTwoBytes {
  static constexpr int64_t kBytes = 2;

  template <typename Next>
  static void Put(const KvArray& array, const Places<kSpan>& places, const Next& ahead, uint8_t* spread,
                  uint8_t* out) {
    const Avx512::ByteTable table = Avx512::LoadByteTable(array.type->table);
    ForCodes(array, places, ahead, [&](int64_t place, __m512i codes) __attribute__((always_inline)) {
      _mm512_storeu_si512(spread + place, codes);
    });
    const uint8_t* codes[kSpan];
    for (int64_t i = 0; i < kSpan; ++i) codes[i] = spread + i * array.width;
    const auto keep = [&](int64_t place, __m512i quads) __attribute__((always_inline)) {
      StoreTwoBytes(table, quads, out + place, out + kSpan * array.width + place);
    };
    QuadColumns(codes, array.width, NothingAhead(), keep);
  }

  // Each span has a worth of its own.
  template <int R>
  static void Sum(const uint8_t* weights, const uint8_t* values, int64_t later, const float* worth, int64_t spans,
                  Totals* first, Totals* second) {
    SumHalf<R>(weights, values, later, worth, spans, first);
    SumHalf<R>(weights, values + kCacheBytes, later, worth, spans, second);
  }

 private:
  template <int R>
  static void SumHalf(const uint8_t* weights, const uint8_t* values, int64_t later, const float* worth, int64_t spans,
                      Totals* out) {
    __m512 total[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) total[r] = _mm512_setzero_ps();
    const auto form = [&](auto turn, int64_t span) __attribute__((always_inline)) {
      const uint8_t* const lower = values + span * later;
      const uint8_t* const of_span = weights + span * kRowsBytes;
      ClearSums<turn>();
      MultiplyTwoBytes<turn>(of_span, of_span + kStep, kRowBytes, lower, lower + later / 2);
    };
    const auto add = [&](const Products<3>& products, int64_t span) __attribute__((always_inline)) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
        total[r] = _mm512_fmadd_ps(SumsOf<3>(products, r), _mm512_set1_ps(worth[span * kTileRows + r]), total[r]);
    };
    SumSteps<3, kTileRowBytes>(spans, form, add);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) _mm512_store_ps(out[r], total[r]);
  }
};

// Sums of 32 columns for a tile of rows, of which `rows` are wanted. `worth` is [kTileRows], for each span or once for
// all.
template <typename Values, int R>
void SumColumns(const uint8_t* values, int64_t width, const uint8_t* weights, const float* worth, int64_t spans,
                int64_t rows, float* sums) {
  alignas(64) Totals first[R], second[R];
  Values::template Sum<R>(weights, values, Values::kBytes * kSpan * width, worth, spans, first, second);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
    if (r < rows) InOrder(_mm512_load_ps(first[r]), _mm512_load_ps(second[r]), sums + r * width);
}

template <typename Values>
void AddByTiles(const ChunkTask& task, const TileConfig& config, float* weights) {
  const KvArray& array = task.v;
  const int64_t width = array.width, groups = array.groups, rows = task.rows();
  const int64_t scales_each = (groups + 1) * kSpan, values_each = Values::kBytes * kSpan * width;
  auto* const values = reinterpret_cast<uint8_t*>(task.memory);                    // of each span, see QuadColumns
  auto* const spread = values + kSpans * values_each;                              // of a span
  auto* const integers = spread + kSpan * width;                                   // [kSpans, kRowsBytes]
  float* const scales = reinterpret_cast<float*>(integers + kSpans * kRowsBytes);  // of each span, see ReadScales
  float* const most = scales + kSpans * scales_each;                               // [kSpans, kSpan]
  float* const zeros = most + kChunk;                                              // [width / 4]

  std::fill(zeros, zeros + width / 4, 0.0f);
  int64_t spans = 0, at[kSpans];  // where each begins in the chunk
  ForTiles<kSpan>(task, [&](int64_t slot, Mask mask) {
    const Places<kSpan> places(task, array, slot, mask, zeros);
    WithAhead<kSpan>(task, array, slot, [&](const auto& ahead) {
      Values::Put(array, places, ahead, spread, values + spans * values_each);
    });
    ReadScales<Avx512, kSpan>(places, groups, scales + spans * scales_each);
    LargestScales<Avx512>(scales + spans * scales_each, groups, most + spans * kSpan);
    at[spans++] = slot - task.begin;
  });
  if (spans == 0) return ClearSums(task);
  const TilesInUse in_use(config);
  for (int64_t m = 0; m < rows; m += kTileRows) {
    const int64_t count = std::min<int64_t>(kTileRows, rows - m);
    float worth[kSpans][kTileRows], *const of_rows = weights + m * kChunk;
    SeenOfRows seen[kSpans];
    for (int64_t i = 0; i < spans; ++i) seen[i].Look(task, task.begin + at[i], m, count);
    const int64_t together = Whole(array) ? spans : 1;
    for (int64_t i = 0; i < spans; i += together)
      Stretch(array, seen + i, at + i, together, count, most + i * kSpan, of_rows, worth[i]);
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t i = 0; i < spans; ++i) {
        const auto split = seen[i].all ? SplitWeights<true> : SplitWeights<false>;
        split(seen[i], count, of_rows + at[i], scales + i * scales_each + g * kSpan, integers + i * kRowsBytes);
      }
      WithRows(count, [&](auto R) {
        for (int64_t n = g * array.group; n < (g + 1) * array.group; n += kStep)
          SumColumns<Values, R>(values + n / kStep * 2 * kCacheBytes, width, integers, worth[0], spans, count,
                                task.sums + m * width + n);
      });
    }
  }
}

void AddByTiles(const ChunkTask& task, float* weights) {
  if (OneByte(task.v)) AddByTiles<ValuesOfOneByte>(task, ConfigOfRows(), weights);
  else AddByTiles<ValuesOfTwoBytes>(task, ConfigOfTwoBytes(kSpan, kTileRows), weights);
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_ATTENTION_AMX_VALUES_H_
