// Scores by tiles of AMX: a row of a tile is the key of a slot, as it stands in the cache, and a column is a query. See
// amx_products.h for the anonymous namespace.
#ifndef SPECJAX_ATTENTION_AMX_KEYS_H_
#define SPECJAX_ATTENTION_AMX_KEYS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "attention/amx_products.h"

namespace specjax {
namespace {

constexpr int64_t kPartBytes = kStep / 4 * kTileRowBytes;  // a byte of each of the integers of a step of 16 queries
constexpr int64_t kFewestQueries = 4;                      // fewer are left to vectors
constexpr int kOfKeys = 4, kOfQueries = 6;                 // registers; sums come before

// For `columns` queries.
TileConfig ConfigOfKeys(int columns) {
  TileConfig config;
  for (int tile = 0; tile < kOfKeys; ++tile) config.Set(tile, kTileRows, 4 * columns);
  for (int tile = kOfKeys; tile < kOfQueries; ++tile) config.Set(tile, kTileRows, kStep);
  for (int tile = kOfQueries; tile < 8; ++tile) config.Set(tile, kStep / 4, 4 * columns);
  return config;
}

// Queries as integers, up to 16 from `first` on: for each step kPartBytes of lower bytes, then of upper ones. What one
// of a query's is worth goes to `worth`, NaN if a value is not finite.
void SplitQueries(const ChunkTask& task, int64_t first, int64_t count, float unit, uint8_t* out, float* worth) {
  const KvArray& array = task.k;
  const __m512i halves =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  alignas(64) uint8_t bytes[kTileRows][2 * kStep] = {};
  const void* rows[kTileRows];
  __m512 inverse[kTileRows];
  for (int64_t r = 0; r < kTileRows; ++r) {
    rows[r] = bytes[r];
    if (r >= count) continue;
    const float largest = Largest<Avx512>(task.query(first + r), array.width);
    worth[r] = unit * (largest / array.type->levels);
    inverse[r] = _mm512_set1_ps(Inverse(largest, array.type->levels));
  }
  for (int64_t n = 0; n < array.width; n += kStep) {
    for (int64_t r = 0; r < count; ++r) {
      const float* const q = task.query(first + r) + n;
      alignas(64) int16_t shorts[kStep];
      for (int64_t i = 0; i < kStep; i += Avx512::kLanes)
        Avx512::StoreShorts(shorts + i, Avx512::ToInts(Avx512::Multiply(Avx512::Load(q + i), inverse[r])));
      const __m512i split = _mm512_shuffle_epi8(_mm512_load_si512(shorts), halves);
      _mm512_store_si512(bytes[r], _mm512_permutexvar_epi64(order, split));
    }
    for (int64_t at = 0; at < 2 * kStep; at += 16, out += 4 * kTileRowBytes)
      Avx512::Columns(rows, at, reinterpret_cast<__m512i*>(out));
  }
}

// From [slots, Q] to [Q, slots]: each turn moves the last bit of a float's place to the front.
template <int Q>
inline __attribute__((always_inline)) void Turn(__m512* x) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
#pragma GCC unroll 4
  for (int turn = 1; turn < Q; turn *= 2) {
    __m512 turned[Q];
#pragma GCC unroll 8
    for (int i = 0; i < Q / 2; ++i) {
      turned[i] = _mm512_permutex2var_ps(x[2 * i], even, x[2 * i + 1]);
      turned[Q / 2 + i] = _mm512_permutex2var_ps(x[2 * i], odd, x[2 * i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < Q; ++i) x[i] = turned[i];
  }
}

// Scales for vector i of sums [slots, Q], of those of 16 slots.
template <int Q>
inline __attribute__((always_inline)) __m512 ScalesOf(const float* scales, int i) {
  constexpr int kSlots = kTileRows / Q;  // of a vector
  if constexpr (kSlots == 1) return _mm512_set1_ps(scales[i]);
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i slots = _mm512_add_epi32(_mm512_srli_epi32(lanes, Q == 4 ? 2 : 3), _mm512_set1_epi32(i * kSlots));
  return _mm512_permutexvar_ps(slots, _mm512_loadu_ps(scales));
}

// Scores of a tile of slots for Q queries, of which `rows` are wanted. Keys are `stride` bytes apart, and scales are
// [groups, kTile]. ask(step) is called between.
template <int Q, typename Ask>
inline void ScoreTile(const KvArray& array, const uint8_t* keys, int64_t stride, const float* scales, const uint8_t* q,
                      const float* worth, int64_t rows, const Ask& ask, float* scores) {
  __m512 total[Q];
#pragma GCC unroll 16
  for (int i = 0; i < Q; ++i) total[i] = _mm512_setzero_ps();
  const auto form = [&](auto turn, int64_t step) __attribute__((always_inline)) {
    LoadTile<kOfKeys + turn>(keys + step * kStep, stride);
    LoadTile<kOfQueries>(q + step * 2 * kPartBytes, kTileRowBytes);
    ClearTile<kLower<turn>>();
    MultiplyTiles<kLower<turn>, kOfKeys + turn, true, kOfQueries, false>();
    LoadTile<kOfQueries + 1>(q + (step * 2 + 1) * kPartBytes, kTileRowBytes);
    ClearTile<kUpper<turn>>();
    MultiplyTiles<kUpper<turn>, kOfKeys + turn, true, kOfQueries + 1, true>();
    ask(step);
  };
  SumSteps<4 * Q>(array.groups, form, [&](const Products& products, int64_t step) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int i = 0; i < Q; ++i)
      total[i] = _mm512_fmadd_ps(SumsOf(products, i), ScalesOf<Q>(scales + step * kTile, i), total[i]);
  });
  Turn<Q>(total);
#pragma GCC unroll 16
  for (int r = 0; r < Q; ++r)
    if (r < rows) _mm512_storeu_ps(scores + r * kChunk, _mm512_mul_ps(total[r], _mm512_set1_ps(worth[r])));
}

// Calls body(Q) with a number of queries of a tile as a constant.
template <typename Body>
inline void WithQueries(int64_t rows, const Body& body) {
  if (rows <= 4) body(std::integral_constant<int, 4>());
  else if (rows <= 8) body(std::integral_constant<int, 8>());
  else body(std::integral_constant<int, 16>());
}

void ScoreByTiles(const ChunkTask& task, float* scores) {
  const KvArray& array = task.k;
  const int64_t width = array.width, rows = task.rows();
  auto* const q = reinterpret_cast<uint8_t*>(task.memory);                     // of each 16 rows, see SplitQueries
  auto* const spread = q + (rows + kTileRows - 1) / kTileRows * kTileRows * 2 * width;  // [kTile, width]
  float* const scales = reinterpret_cast<float*>(spread + kTile * width);      // [groups, kTile], and one group more
  float* const worth = scales + (array.groups + 1) * kTile;                    // [rows]
  float* const zeros = worth + rows;                                           // [width / 4]

  std::fill(zeros, zeros + width / 4, 0.0f);
  const float unit = task.scale * Unit<Avx512>(array);
  for (int64_t m = 0; m < rows; m += kTileRows)
    SplitQueries(task, m, std::min<int64_t>(rows - m, kTileRows), unit, q + m * 2 * width, worth + m);
  const int64_t asked = (kTile + array.groups - 1) / array.groups;  // slots of the next tile, for a step of this one
  WithQueries(rows, [&](auto Q) {
    const TilesInUse in_use(ConfigOfKeys(Q));
    ForTiles<kTile>(task, [&](int64_t slot, Mask mask) {
      const Places<kTile> places(task, array, slot, mask, zeros);
      ReadScales<Avx512, kTile>(places, array.groups, scales);
      const uint8_t* bytes[kTile];
      FindBytes(array, places, spread, bytes);
      int64_t stride = bytes[1] - bytes[0];
      if (mask != kAll<kTile> && bytes[0] != spread) {  // those that nobody sees stand elsewhere
        for (int64_t i = 0; i < kTile; ++i) std::memcpy(spread + i * width, bytes[i], width);
        bytes[0] = spread;
        stride = width;
      }
      WithAhead<kTile>(task, array, slot, [&](const auto& ahead) {
        for (int64_t m = 0; m < rows; m += kTileRows) {
          const auto ask = [&](int64_t step) __attribute__((always_inline)) {
            if (m == 0) ahead.Ask(step * asked, std::min((step + 1) * asked, kTile));
          };
          ScoreTile<Q>(array, bytes[0], stride, scales, q + m * 2 * width, worth + m, rows - m, ask,
                       scores + m * kChunk + (slot - task.begin));
        }
      });
    });
  });
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_ATTENTION_AMX_KEYS_H_
