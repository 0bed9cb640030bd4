// Attention of a few query rows over one chunk of slots. What is computed for a row does not depend on the other rows,
// or on slots that only these see, even if NaN is there. See seen.h for the anonymous namespace.
#ifndef SPECJAX_ATTENTION_ATTEND_H_
#define SPECJAX_ATTENTION_ATTEND_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "attention/float_tiles.h"
#include "attention/integer_keys.h"
#include "attention/integer_values.h"
#include "floats/exp.h"

namespace specjax {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// Scores of a row, of which those of the slots that it does not see become `value`.
inline void Hide(const ChunkTask& task, const Seen& seen, float value, float* scores) {
  int64_t at = task.begin;
  const int64_t last = task.begin + kChunk;
  for (int i = 0; i < 2; ++i) {
    const int64_t begin = std::max(at, std::min(seen.begin[i], last));
    std::fill(scores + (at - task.begin), scores + (begin - task.begin), value);
    at = std::max(begin, std::min(seen.end[i], last));
  }
  std::fill(scores + (at - task.begin), scores + kChunk, value);
}

// Scores to weights, of which the largest is 1. Where a score that is seen is NaN, or none is above -inf, the sum is no
// number above 0, and the weights become 0: neither has an integer.
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
  if (!(sum > 0)) std::fill(scores, scores + kChunk, 0.0f);
  task.highest[m] = highest;
  task.total[m] = sum;
}

// Scores and sums of what is kept as integers, by vectors that multiply pairs.
template <typename Vectors>
struct ByPairs {
  using Isa = Vectors;

  // What keys and values are decoded to, and weights as integers: see float_tiles.h, integer_keys.h, integer_values.h.
  static constexpr int64_t Floats(int64_t rows, int64_t k_width, int64_t v_width) {
    return (20 + kSpans) * std::max(k_width, v_width) + 2 * kChunk + rows;
  }
  static constexpr int64_t PreparedFloats(int64_t rows, int64_t k_width) { return rows * (k_width / 2 + 1); }
  static void Prepare(const ChunkTask& task, float* out) { RoundQueries<Isa>(task, out); }
  static void Score(const ChunkTask& task, float* scores) { ScoreIntegers<Isa>(task, scores); }
  static void Add(const ChunkTask& task, const float* weights) { AddIntegers<Isa>(task, weights); }
};

// Floats as they are need no preparation.
template <typename Integers>
void Prepare(const ChunkTask& task, float* out) {
  if (task.k.type->scaled()) Integers::Prepare(task, out);
}

// Whole lines of the processor's caches.
template <typename Integers>
int64_t PreparedFloats(int64_t rows, int64_t k_width) {
  return (Integers::PreparedFloats(rows, k_width) + 15) / 16 * 16;
}

// In a chunk's memory the scores of all rows come first, and then queries that are prepared for it alone.
template <typename Integers>
int64_t ChunkFloats(int64_t rows, int64_t k_width, int64_t v_width) {
  return rows * kChunk + PreparedFloats<Integers>(rows, k_width) + Integers::Floats(rows, k_width, v_width);
}

template <typename Integers>
void AttendChunk(const ChunkTask& all) {
  using Isa = typename Integers::Isa;
  const int64_t rows = all.rows();
  float* const scores = all.memory;
  ChunkTask task = all;
  task.memory += rows * kChunk;
  if (task.prepared == nullptr) {
    Prepare<Integers>(task, task.memory);
    task.prepared = task.memory;
    task.memory += PreparedFloats<Integers>(rows, task.k_width);
  }
  if (task.k.type->scaled()) Integers::Score(task, scores);
  else ScoreFloats<Isa>(task, scores);
  for (int64_t m = 0; m < rows; ++m) Softmax<Isa>(task, m, scores + m * kChunk);
  if (task.v.type->scaled()) Integers::Add(task, scores);
  else AddFloats<Isa>(task, scores);
}

template <typename Isa>
void MergeChunks(const RowOfChunks& row, float* out) {
  float top = kNothing, weight = 0;
  for (int64_t i = 0; i < row.chunks; ++i) top = std::max(top, row.highest[i * row.step]);
  std::fill(out, out + row.width, 0.0f);
  for (int64_t i = 0; i < row.chunks; ++i) {
    const int64_t at = i * row.step;
    // What is nowhere above -inf has no share, unless that holds for all chunks.
    if (row.total[at] == 0 || (row.total[at] == kNothing && top > kNothing)) continue;
    const float factor = std::exp(row.highest[at] - top);
    weight += row.total[at] * factor;
    const auto factors = Isa::Set(factor);
    for (int64_t n = 0; n < row.width; n += Isa::kLanes)
      Isa::Store(out + n, Isa::Fma(Isa::Load(row.sums + at * row.width + n), factors, Isa::Load(out + n)));
  }
  if (weight == 0) return;
  const auto inverse = Isa::Set(1 / weight);  // NaN as well
  for (int64_t n = 0; n < row.width; n += Isa::kLanes) Isa::Store(out + n, Isa::Multiply(Isa::Load(out + n), inverse));
}

template <typename Integers>
constexpr AttentionKernels AttentionKernelsOf() {
  return {Prepare<Integers>, AttendChunk<Integers>, MergeChunks<typename Integers::Isa>, PreparedFloats<Integers>,
          ChunkFloats<Integers>};
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_ATTENTION_ATTEND_H_
