// Attention of a few query rows over one chunk of slots. What is computed for a row does not depend on the other rows, or
// on slots that only these see, even if NaN is there.
#ifndef SPECJAX_ATTENTION_ATTEND_H_
#define SPECJAX_ATTENTION_ATTEND_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "attention/decode.h"
#include "floats/exp.h"

namespace specjax {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

inline void Fill(float* begin, float* end, float value) {
  for (; begin < end; ++begin) *begin = value;
}

// Whether a slot in [begin, end) is among those that a row sees, or with `all`, every one of them.
inline bool Sees(const Seen& seen, int64_t begin, int64_t end, bool all) {
  for (int i = 0; i < 2; ++i) {
    const int64_t from = seen.begin[i], to = seen.end[i];
    if (all ? from <= begin && end <= to : std::max(begin, from) < std::min(end, to)) return true;
  }
  return false;
}

// The same of the rows of any token.
inline bool SeenBySome(const ChunkTask& task, int64_t begin, int64_t end, bool all) {
  return std::any_of(task.seen, task.seen + task.tokens,
                     [&](const Seen& seen) { return Sees(seen, begin, end, all); });
}

struct Tile {
  const KvArray* array;
  int64_t slot;
};

// The tile after this one, null after the last: all keys of a chunk come first, and then its values.
inline Tile Next(const ChunkTask& task, const KvArray& array, int64_t slot) {
  if (slot + 2 * kTile <= task.end) return {&array, slot + kTile};
  return {&array == &task.k && task.begin + kTile <= task.end ? &task.v : nullptr, task.begin};
}

// Asks for the vector of a slot and head, because processors do not foresee steps over the other heads.
inline void Prefetch(const KvArray& array, int64_t index) {
  const uint8_t* codes = array.codes + index * array.code_bytes;
  for (int64_t at = 0; at < array.code_bytes; at += 64) __builtin_prefetch(codes + at);
  if (array.groups) __builtin_prefetch(array.scales + index * array.groups);
}

// Pointers to the vectors of a tile; slots that no row sees are not read, and have zeros.
template <typename Isa>
void DecodeTile(const ChunkTask& task, const KvArray& array, int64_t padded, int64_t slot, const float* zeros,
                const float** vectors) {
  const bool all = SeenBySome(task, slot, slot + kTile, true);
  const Tile next = Next(task, array, slot);
  for (int64_t i = 0; i < kTile; ++i) {
    if (next.array) Prefetch(*next.array, (next.slot + i) * task.heads + task.head);
    vectors[i] = all || SeenBySome(task, slot + i, slot + i + 1, false)
                     ? Decode<Isa>(array, (slot + i) * task.heads + task.head, task.memory + i * padded)
                     : zeros;
  }
}

// Scores of `rows` rows from row m on with the slots of a tile. Each is summed up in the same order, whichever way they
// are grouped: as many at a time as there are lanes.
template <typename Isa, int rows>
inline void ScoreRows(const ChunkTask& task, const float* const* keys, int64_t m, float* scores) {
  constexpr int L = Isa::kLanes, kSlots = L / rows;
  const float* q[rows];
  for (int r = 0; r < rows; ++r)
    q[r] = task.q + (m + r) / task.per_token * task.q_stride + (m + r) % task.per_token * task.k_width;
  for (int64_t first = 0; first < kTile; first += kSlots) {
    typename Isa::Floats sums[L];
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) sums[i] = Isa::Set(0.0f);
    for (int64_t n = 0; n < task.k_width; n += L) {
      typename Isa::Floats x[rows];
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) x[r] = Isa::Load(q[r] + n);
#pragma GCC unroll 16
      for (int i = 0; i < kSlots; ++i) {
        const auto key = Isa::Load(keys[first + i] + n);
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) sums[r * kSlots + i] = Isa::Fma(key, x[r], sums[r * kSlots + i]);
      }
    }
    float each[L];
    Isa::Store(each, Isa::Multiply(Isa::SumEach(sums), Isa::Set(task.scale)));
    for (int r = 0; r < rows; ++r)
      for (int i = 0; i < kSlots; ++i) scores[(m + r) * kChunk + first + i] = each[r * kSlots + i];
  }
}

template <typename Isa>
void ScoreTile(const ChunkTask& task, const float* const* keys, float* scores) {
  int64_t m = 0;
  for (; m + 4 <= task.rows(); m += 4) ScoreRows<Isa, 4>(task, keys, m, scores);
  for (; m < task.rows(); ++m) ScoreRows<Isa, 1>(task, keys, m, scores);
}

template <typename Isa, int rows>
inline void AddRows(const float* const* values, const float* weights, int64_t width, float* sums) {
  constexpr int L = Isa::kLanes, kVectors = Isa::kManyRegisters ? 4 : 2;
  for (int64_t n = 0; n < width;) {
    const auto some = [&](auto count) __attribute__((always_inline)) {
      constexpr int kCount = decltype(count)::value;
      typename Isa::Floats acc[rows][kCount];
      for (int r = 0; r < rows; ++r)
        for (int j = 0; j < kCount; ++j) acc[r][j] = Isa::Load(sums + r * width + n + j * L);
      for (int64_t i = 0; i < kTile; ++i) {
        typename Isa::Floats v[kCount];
        for (int j = 0; j < kCount; ++j) v[j] = Isa::Load(values[i] + n + j * L);
        for (int r = 0; r < rows; ++r) {
          const auto w = Isa::Set(weights[r * kChunk + i]);
          for (int j = 0; j < kCount; ++j) acc[r][j] = Isa::Fma(v[j], w, acc[r][j]);
        }
      }
      for (int r = 0; r < rows; ++r)
        for (int j = 0; j < kCount; ++j) Isa::Store(sums + r * width + n + j * L, acc[r][j]);
      n += kCount * L;
    };
    if (width - n >= kVectors * L) some(std::integral_constant<int, kVectors>());
    else some(std::integral_constant<int, 1>());
  }
}

// Adds the values of a tile to the sums of `rows` rows from row m on.
template <typename Isa>
void AddTile(const ChunkTask& task, const float* const* values, int64_t m, int64_t rows, const float* weights) {
  const int64_t end = m + rows, width = task.v_width;
  for (; m + 4 <= end; m += 4) AddRows<Isa, 4>(values, weights + m * kChunk, width, task.sums + m * width);
  for (; m < end; ++m) AddRows<Isa, 1>(values, weights + m * kChunk, width, task.sums + m * width);
}

// The same where tokens see different slots of the tile: a slot that a row does not see is one of zeros to it, because
// a weight of zero does not hide NaN.
template <typename Isa>
void AddWhatEachSees(const ChunkTask& task, const float* const* values, int64_t slot, const float* zeros,
                     const float* weights) {
  for (int64_t t = 0; t < task.tokens; ++t) {
    const float* own[kTile];
    for (int64_t i = 0; i < kTile; ++i)
      own[i] = Sees(task.seen[t], slot + i, slot + i + 1, false) ? values[i] : zeros;
    AddTile<Isa>(task, own, t * task.per_token, task.per_token, weights);
  }
}

// Scores of a row, of which those of the slots that it does not see become `value`.
inline void Hide(const ChunkTask& task, const Seen& seen, float value, float* scores) {
  int64_t at = task.begin;
  const int64_t last = task.begin + kChunk;
  for (int i = 0; i < 2; ++i) {
    const int64_t begin = std::max(at, std::min(seen.begin[i], last));
    Fill(scores + (at - task.begin), scores + (begin - task.begin), value);
    at = std::max(begin, std::min(seen.end[i], last));
  }
  Fill(scores + (at - task.begin), scores + kChunk, value);
}

// Scores to weights, of which the largest is 1. Where a score that is seen is NaN, so is the sum.
template <typename Isa>
void Softmax(const ChunkTask& task, int64_t m, float* scores) {
  constexpr int L = Isa::kLanes;
  const Seen& seen = task.seen[m / task.per_token];
  float lanes[L], highest = kNothing, sum = 0;
  Hide(task, seen, kNothing, scores);
  auto most = Isa::Set(kNothing);
  for (int64_t i = 0; i < kChunk; i += L) most = Isa::Max(Isa::Load(scores + i), most);
  Isa::Store(lanes, most);
  for (const float lane : lanes) highest = std::max(highest, lane);
  if (highest > kNothing) {
    for (int64_t i = 0; i < kChunk; i += L)
      Isa::Store(scores + i, Exp<Isa>(Isa::Subtract(Isa::Load(scores + i), Isa::Set(highest))));
  }
  Hide(task, seen, 0.0f, scores);
  auto total = Isa::Set(0.0f);
  for (int64_t i = 0; i < kChunk; i += L) total = Isa::Add(total, Isa::Load(scores + i));
  Isa::Store(lanes, total);
  for (const float lane : lanes) sum += lane;
  task.highest[m] = highest;
  task.total[m] = sum;
}

template <typename Isa>
void AttendChunk(const ChunkTask& task) {
  const int64_t rows = task.rows(), widest = std::max(task.k_width, task.v_width);
  const float* const zeros = task.memory + kTile * widest;
  float* const scores = task.memory + (kTile + 1) * widest;
  const float* vectors[kTile];
  const auto for_tiles = [&](const auto& body) __attribute__((always_inline)) {
    Fill(task.memory, scores, 0.0f);  // what decoding leaves between a width and the padded one
    for (int64_t slot = task.begin; slot < task.end; slot += kTile)
      if (SeenBySome(task, slot, slot + kTile, false)) body(slot, slot - task.begin);
  };
  Fill(task.sums, task.sums + rows * task.v_width, 0.0f);
  for_tiles([&](int64_t slot, int64_t at) {
    DecodeTile<Isa>(task, task.k, task.k_width, slot, zeros, vectors);
    ScoreTile<Isa>(task, vectors, scores + at);
  });
  for (int64_t m = 0; m < rows; ++m) Softmax<Isa>(task, m, scores + m * kChunk);
  for_tiles([&](int64_t slot, int64_t at) {
    DecodeTile<Isa>(task, task.v, task.v_width, slot, zeros, vectors);
    const bool alike = std::all_of(task.seen, task.seen + task.tokens,
                                   [&](const Seen& seen) { return Sees(seen, slot, slot + kTile, true); });
    if (alike) AddTile<Isa>(task, vectors, 0, rows, scores + at);
    else AddWhatEachSees<Isa>(task, vectors, slot, zeros, scores + at);
  });
}

template <typename Isa>
constexpr AttentionKernels AttentionKernelsOf() {
  return {AttendChunk<Isa>};
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_ATTENTION_ATTEND_H_
