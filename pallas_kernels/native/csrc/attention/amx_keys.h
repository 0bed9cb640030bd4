// Scores by tiles of AMX. See amx_products.h for the anonymous namespace.
//
// Of a few queries: a row of a tile is the key of a slot, as it stands in the cache, and a column is a query. Of many:
// a row is a query, and keys are put in columns once for all of them. Keys of two bytes are rows for any number.
#ifndef SPECJAX_ATTENTION_AMX_KEYS_H_
#define SPECJAX_ATTENTION_AMX_KEYS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "attention/amx_products.h"
#include "attention/amx_two_bytes.h"

namespace specjax {
namespace {

constexpr int64_t kFewestQueries = 4;  // fewer are left to vectors

// Where the bytes of a query stand: the lower ones of `values` values in a row, the upper ones `upper` bytes behind.
struct QueryPlaces {
  int64_t values, upper;

  explicit QueryPlaces(const KvArray& array)
      : values(OneByte(array) ? kStep : kValues), upper(OneByte(array) ? kStep : kRowsBytes) {}
  int64_t Of(int64_t value) const { return value / values * (values * 2 * kTileRows) + value % values; }
};

// A query as integers. Returns what one is worth, NaN if a value is not finite.
float SplitQuery(const float* q, int64_t width, int32_t levels, const QueryPlaces& places, uint8_t* out) {
  const float largest = Largest<Avx512>(q, width);
  const __m512 inverse = _mm512_set1_ps(Inverse(largest, levels));
  const __m512i halves =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  for (int64_t n = 0; n < width; n += kStep) {
    alignas(64) int16_t shorts[kStep] = {};
    if (largest > 0)
      for (int64_t i = 0; i < kStep; i += Avx512::kLanes)
        Avx512::StoreShorts(shorts + i, Avx512::ToInts(Avx512::Multiply(Avx512::Load(q + n + i), inverse)));
    const __m512i bytes = _mm512_shuffle_epi8(_mm512_load_si512(shorts), halves);
    const __m512i both = _mm512_permutexvar_epi64(order, bytes);
    Avx512::Store32(out + places.Of(n), _mm512_castsi512_si256(both));
    Avx512::Store32(out + places.Of(n) + places.upper, _mm512_extracti64x4_epi64(both, 1));
  }
  return largest / levels;
}

inline constexpr int64_t WholeTiles(int64_t rows) { return (rows + kTileRows - 1) / kTileRows * kTileRows; }

inline bool Few(const ChunkTask& task) { return task.rows() <= kTileRows; }

// All queries as integers, in whole tiles of 16, as rows of a tile or as columns. For keys of one byte a step has
// kRowsBytes. For keys of two bytes 64 values have as many of lower bytes, and then of upper ones. Behind all of them
// stands what one of the integers is worth, for each query.
void SplitQueries(const ChunkTask& task, float* out) {
  const KvArray& array = task.k;
  const float unit = task.scale * Unit<Avx512>(array);
  auto* const bytes = reinterpret_cast<uint8_t*>(out);
  const int64_t tile_bytes = kTileRows * 2 * array.width, all_bytes = WholeTiles(task.rows()) * 2 * array.width;
  const QueryPlaces places(array);
  float* const worth = reinterpret_cast<float*>(bytes + all_bytes);
  for (int64_t m = 0; m < task.rows(); ++m)
    worth[m] = unit * SplitQuery(task.query(m), array.width, array.type->query_levels, places,
                                 bytes + m / kTileRows * tile_bytes + m % kTileRows * kRowBytes);
  const bool in_columns = Few(task) || !OneByte(array);
  for (int64_t at = 0; in_columns && at < all_bytes; at += kRowsBytes) {
    const void* of_step[kTileRows];
    for (int64_t r = 0; r < kTileRows; ++r) of_step[r] = bytes + at + r * kRowBytes;
    __m512i columns[kTileRows];
    for (int64_t n = 0; n < kRowBytes / 16; ++n) Avx512::Columns(of_step, 16 * n, columns + 4 * n);
    std::memcpy(bytes + at, columns, kRowsBytes);
  }
}

// What ScoreByTiles reads, and its memory.
struct KeyMemory {
  const uint8_t* queries;  // see SplitQueries
  const float* worth;      // [rows]
  uint8_t* columns;        // of keys of one byte: [steps, kCacheBytes]
  uint8_t* spread;         // [kTile, width]
  uint8_t *lower, *upper;  // bytes of keys of two, in the same memory: [kTile, width] each
  float* scales;           // [groups, kTile], and room for one group more
  float* zeros;            // [width / 4]

  explicit KeyMemory(const ChunkTask& task) {
    const int64_t width = task.k.width;
    queries = reinterpret_cast<const uint8_t*>(task.prepared);
    worth = reinterpret_cast<const float*>(queries + WholeTiles(task.rows()) * 2 * width);
    columns = reinterpret_cast<uint8_t*>(task.memory);
    spread = columns + kTile * width;
    lower = columns;
    upper = spread;
    scales = reinterpret_cast<float*>(spread + kTile * width);
    zeros = scales + (task.k.groups + 1) * kTile;
    std::fill(zeros, zeros + width / 4, 0.0f);
  }
};

constexpr int kOfKeys = 4, kOfQueries = 6;  // registers where a row is a key; sums come before

// For `columns` queries.
TileConfig ConfigOfKeys(int columns) {
  TileConfig config;
  for (int tile = 0; tile < kOfKeys; ++tile) config.Set(tile, kTileRows, 4 * columns);
  for (int tile = kOfKeys; tile < kOfQueries; ++tile) config.Set(tile, kTileRows, kStep);
  for (int tile = kOfQueries; tile < 8; ++tile) config.Set(tile, kStep / 4, 4 * columns);
  return config;
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

// Scores of a tile of slots for Q queries, of which `rows` are wanted. Keys are `stride` bytes apart. ask(step) is
// called between.
template <int Q, typename Ask>
inline void ScoreFew(const KeyMemory& memory, const KvArray& array, const uint8_t* keys, int64_t stride, int64_t rows,
                     const Ask& ask, float* scores) {
  __m512 total[Q];
#pragma GCC unroll 16
  for (int i = 0; i < Q; ++i) total[i] = _mm512_setzero_ps();
  const auto form = [&](auto turn, int64_t step) __attribute__((always_inline)) {
    const uint8_t* const queries = memory.queries + step * kRowsBytes;
    LoadTile<kOfKeys + turn>(keys + step * kStep, stride);
    LoadTile<kOfQueries>(queries, kTileRowBytes);
    ClearTile<kSum<2, turn, 0>>();
    MultiplyTiles<kSum<2, turn, 0>, kOfKeys + turn, true, kOfQueries, false>();
    LoadTile<kOfQueries + 1>(queries + kRowsBytes / 2, kTileRowBytes);
    ClearTile<kSum<2, turn, 1>>();
    MultiplyTiles<kSum<2, turn, 1>, kOfKeys + turn, true, kOfQueries + 1, true>();
    ask(step);
  };
  SumSteps<2, 4 * Q>(array.groups, form, [&](const Products<2>& products, int64_t step) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int i = 0; i < Q; ++i)
      total[i] = _mm512_fmadd_ps(SumsOf<2>(products, i), ScalesOf<Q>(memory.scales + step * kTile, i), total[i]);
  });
  Turn<Q>(total);
#pragma GCC unroll 16
  for (int r = 0; r < Q; ++r)
    if (r < rows) _mm512_storeu_ps(scores + r * kChunk, _mm512_mul_ps(total[r], _mm512_set1_ps(memory.worth[r])));
}

// Calls body(Q) with a number of queries of a tile as a constant.
template <typename Body>
inline void WithQueries(int64_t rows, const Body& body) {
  if (rows <= 4) body(std::integral_constant<int, 4>());
  else if (rows <= 8) body(std::integral_constant<int, 8>());
  else body(std::integral_constant<int, 16>());
}

void ScoreFewByTiles(const ChunkTask& task, float* scores) {
  const KvArray& array = task.k;
  const int64_t width = array.width, rows = task.rows();
  const KeyMemory memory(task);
  const int64_t asked = (kTile + array.groups - 1) / array.groups;  // slots of the next tile, for a step of this one
  WithQueries(rows, [&](auto Q) {
    const TilesInUse in_use(ConfigOfKeys(Q));
    ForTiles<kTile>(task, [&](int64_t slot, Mask mask) {
      const Places<kTile> places(task, array, slot, mask, memory.zeros);
      ReadScales<Avx512, kTile>(places, array.groups, memory.scales);
      const uint8_t* bytes[kTile];
      FindBytes(array, places, memory.spread, bytes);
      const uint8_t* keys = bytes[0];
      int64_t stride = bytes[1] - bytes[0];
      if (mask != kAll<kTile> && keys != memory.spread) {  // those that nobody sees stand elsewhere
        for (int64_t i = 0; i < kTile; ++i) std::memcpy(memory.spread + i * width, bytes[i], width);
        keys = memory.spread;
        stride = width;
      }
      WithAhead<kTile>(task, array, slot, [&](const auto& ahead) {
        const auto ask = [&](int64_t step) __attribute__((always_inline)) {
          ahead.Ask(step * asked, std::min((step + 1) * asked, kTile));
        };
        ScoreFew<Q>(memory, array, keys, stride, rows, ask, scores + (slot - task.begin));
      });
    });
  });
}

// Scores of a tile of rows, of which `rows` are wanted, with a tile of slots.
template <int R>
void ScoreRows(const KeyMemory& memory, const KvArray& array, int64_t m, int64_t rows, float* scores) {
  __m512 total[R];
  const uint8_t* const queries = memory.queries + m * 2 * array.width;
  SumRows<R>(queries, memory.columns, memory.scales, array.groups, total);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
    if (r < rows) _mm512_storeu_ps(scores + r * kChunk, _mm512_mul_ps(total[r], _mm512_set1_ps(memory.worth[m + r])));
}

void ScoreManyByTiles(const ChunkTask& task, float* scores) {
  const KvArray& array = task.k;
  const int64_t width = array.width, rows = task.rows();
  const KeyMemory memory(task);
  const TilesInUse in_use(ConfigOfRows());
  ForTiles<kTile>(task, [&](int64_t slot, Mask mask) {
    const Places<kTile> places(task, array, slot, mask, memory.zeros);
    const uint8_t* bytes[kTile];
    FindBytes(array, places, memory.spread, bytes);
    auto* const columns = reinterpret_cast<__m512i*>(memory.columns);
    const int64_t asked = (kTile * 16 + width - 1) / width;  // slots of the next tile, for 16 bytes of this one
    WithAhead<kTile>(task, array, slot, [&](const auto& ahead) {
      for (int64_t n = 0; n < width; n += 16) {
        ahead.Ask(n / 16 * asked, std::min(kTile, (n / 16 + 1) * asked));
        Avx512::Columns(reinterpret_cast<const void* const*>(bytes), n, columns + n / 4);
      }
    });
    ReadScales<Avx512, kTile>(places, array.groups, memory.scales);
    for (int64_t m = 0; m < rows; m += kTileRows)
      WithRows(rows - m, [&](auto R) {
        ScoreRows<R>(memory, array, m, rows - m, scores + m * kChunk + (slot - task.begin));
      });
  });
}

// Scores of a tile of slots for Q queries from query m on, of keys of two bytes.
template <int Q>
inline void ScoreTwoBytes(const KeyMemory& memory, const KvArray& array, int64_t m, int64_t rows, float* scores) {
  const int64_t width = array.width;
  const uint8_t* const queries = memory.queries + m * 2 * width;
  __m512 total[Q];
#pragma GCC unroll 16
  for (int i = 0; i < Q; ++i) total[i] = _mm512_setzero_ps();
  const auto form = [&](auto turn, int64_t group) __attribute__((always_inline)) {
    ClearSums<turn>();
#pragma GCC unroll 2
    for (int64_t n = group * kGroup; n < (group + 1) * kGroup; n += kValues) {
      const uint8_t* const of_values = queries + n / kValues * 2 * kRowsBytes;
      MultiplyTwoBytes<turn>(memory.lower + n, memory.upper + n, width, of_values, of_values + kRowsBytes);
    }
  };
  const auto add = [&](const Products<3>& products, int64_t group) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int i = 0; i < Q; ++i)
      total[i] = _mm512_fmadd_ps(SumsOf<3>(products, i), ScalesOf<Q>(memory.scales + group * kTile, i), total[i]);
  };
  SumSteps<3, 4 * Q>(array.groups, form, add);
  Turn<Q>(total);
#pragma GCC unroll 16
  for (int r = 0; r < Q; ++r)
    if (m + r < rows)
      _mm512_storeu_ps(scores + r * kChunk, _mm512_mul_ps(total[r], _mm512_set1_ps(memory.worth[m + r])));
}

void ScoreTwoBytesByTiles(const ChunkTask& task, float* scores) {
  const KvArray& array = task.k;
  const int64_t rows = task.rows();
  const KeyMemory memory(task);
  const Avx512::ByteTable table = Avx512::LoadByteTable(array.type->table);
  WithQueries(rows, [&](auto Q) {
    const TilesInUse in_use(ConfigOfTwoBytes(kValues, Q));
    ForTiles<kTile>(task, [&](int64_t slot, Mask mask) {
      const Places<kTile> places(task, array, slot, mask, memory.zeros);
      ReadScales<Avx512, kTile>(places, array.groups, memory.scales);
      WithAhead<kTile>(task, array, slot, [&](const auto& ahead) {
        ForCodes(array, places, ahead, [&](int64_t place, __m512i codes) __attribute__((always_inline)) {
          StoreTwoBytes(table, codes, memory.lower + place, memory.upper + place);
        });
      });
      for (int64_t m = 0; m < rows; m += kTileRows)
        ScoreTwoBytes<Q>(memory, array, m, rows, scores + m * kChunk + (slot - task.begin));
    });
  });
}

void ScoreByTiles(const ChunkTask& task, float* scores) {
  if (!OneByte(task.k)) ScoreTwoBytesByTiles(task, scores);
  else if (Few(task)) ScoreFewByTiles(task, scores);
  else ScoreManyByTiles(task, scores);
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_ATTENTION_AMX_KEYS_H_
