// Which slots of a chunk the rows see, and asking for these early. See decode.h for the anonymous namespace.
#ifndef SPECJAX_ATTENTION_SLOTS_H_
#define SPECJAX_ATTENTION_SLOTS_H_

#include <algorithm>
#include <cstdint>

#include "attention/kernels.h"

namespace specjax {
namespace {

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

// Asks for the vectors of a tile of slots, where the chunk has all of them.
inline void Prefetch(const ChunkTask& task, const KvArray& array, int64_t slot) {
  if (slot + kTile > task.end) return;
  const uint8_t* vector = array.codes + (slot * task.heads + task.head) * array.code_bytes;
  for (int64_t i = 0; i < kTile; ++i, vector += task.heads * array.code_bytes)
    for (int64_t at = 0; at < array.code_bytes; at += 64) __builtin_prefetch(vector + at, 0, 2);
}

// Bit i says whether slot + i is seen.
inline uint16_t SeenMask(const Seen& seen, int64_t slot) {
  uint32_t mask = 0;
  for (int i = 0; i < 2; ++i) {
    const int64_t begin = std::clamp<int64_t>(seen.begin[i] - slot, 0, kTile);
    const int64_t end = std::clamp<int64_t>(seen.end[i] - slot, begin, kTile);
    mask |= (1u << end) - (1u << begin);
  }
  return static_cast<uint16_t>(mask);
}

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

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_ATTENTION_SLOTS_H_
