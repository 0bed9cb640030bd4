// Which slots rows see, tile by tile. Included by translation units of one instruction set each, hence the anonymous
// namespace: nothing here may be shared between them.
#ifndef SPECJAX_ATTENTION_SEEN_H_
#define SPECJAX_ATTENTION_SEEN_H_

#include <algorithm>
#include <cstdint>

#include "attention/kernels.h"

namespace specjax {
namespace {

using Mask = uint64_t;  // of the slots of a tile

template <int64_t slots>
constexpr Mask kAll = ~Mask{0} >> (64 - slots);

// The slots of the tile at `slot` that the rows of a token see.
template <int64_t slots>
inline Mask SeenOfTile(const Seen& seen, int64_t slot) {
  Mask mask = 0;
  for (int i = 0; i < 2; ++i) {
    const int64_t begin = std::max(seen.begin[i] - slot, int64_t{0});
    const int64_t end = std::min(seen.end[i] - slot, slots);
    if (begin < end) mask |= ~Mask{0} >> (64 - (end - begin)) << begin;
  }
  return mask;
}

// Those that any row sees.
template <int64_t slots>
inline Mask SeenOfTile(const ChunkTask& task, int64_t slot) {
  Mask mask = 0;
  for (int64_t t = 0; t < task.tokens && mask != kAll<slots>; ++t) mask |= SeenOfTile<slots>(task.seen[t], slot);
  return mask;
}

// Calls body(mask, first row, rows) for tokens that follow each other and see the same slots of a tile.
template <int64_t slots, typename Body>
inline void ForAlike(const ChunkTask& task, int64_t slot, const Body& body) {
  for (int64_t first = 0, end = 1; first < task.tokens; first = end++) {
    const Mask mask = SeenOfTile<slots>(task.seen[first], slot);
    while (end < task.tokens && SeenOfTile<slots>(task.seen[end], slot) == mask) ++end;
    if (mask) body(mask, first * task.per_token, (end - first) * task.per_token);
  }
}

// Calls body(slot, mask of what any row sees) for the tiles of a chunk of which something is seen.
template <int64_t slots, typename Body>
inline void ForTiles(const ChunkTask& task, const Body& body) {
  for (int64_t slot = task.begin; slot < task.end; slot += slots)
    if (const Mask mask = SeenOfTile<slots>(task, slot)) body(slot, mask);
}

// The tile after one, to be asked for slot by slot between other work, because processors do not foresee steps over the
// other heads and can wait for a few lines only. All keys of a chunk come first, and then its values.
template <int64_t slots>
class NextTile {
 public:
  NextTile(const ChunkTask& task, const KvArray& array, int64_t slot)
      : array_(&array), index_((slot + slots) * task.heads + task.head), heads_(task.heads) {
    if (slot + 2 * slots <= task.end) return;
    array_ = &array == &task.k && task.begin + slots <= task.end ? &task.v : nullptr;
    index_ = task.begin * task.heads + task.head;
  }

  // Compilers take calls of what only prefetches for calls without an effect, and leave them out: so it is inlined.
  __attribute__((always_inline)) void Ask(int64_t i) const {
    if (array_ == nullptr) return;
    const int64_t index = index_ + i * heads_;
    const uint8_t* const codes = array_->codes + index * array_->code_bytes;
    for (int64_t at = 0; at < array_->code_bytes; at += 64) __builtin_prefetch(codes + at);
    if (array_->groups) __builtin_prefetch(array_->scales + index * array_->groups);
  }

 private:
  const KvArray* array_;
  int64_t index_;
  const int64_t heads_;
};

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_ATTENTION_SEEN_H_
