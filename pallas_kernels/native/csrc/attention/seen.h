// Which slots rows see, tile by tile. Included by translation units of one instruction set each, hence the anonymous
// namespace: nothing here may be shared between them.
#ifndef SPECJAX_ATTENTION_SEEN_H_
#define SPECJAX_ATTENTION_SEEN_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

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

// Calls body(count, first row) for blocks of rows, of which the counts are constants.
template <int most, typename Body>
inline void ForBlocks(int64_t rows, const Body& body) {
  int64_t m = 0;
  for (; m + most <= rows; m += most) body(std::integral_constant<int, most>(), m);
  if constexpr (most > 4)
    for (; m + 4 <= rows; m += 4) body(std::integral_constant<int, 4>(), m);
  for (; m < rows; ++m) body(std::integral_constant<int, 1>(), m);
}

inline void ClearSums(const ChunkTask& task) { std::fill(task.sums, task.sums + task.rows() * task.v_width, 0.0f); }

// What is needed later is asked for between other work, because processors do not foresee steps over the other heads.
// Compilers take calls of what only prefetches for calls without an effect, and leave them out: so they are inlined.
inline __attribute__((always_inline)) void AskFor(const KvArray& array, int64_t vector) {
  const uint8_t* const codes = array.codes + vector * array.code_bytes;
  for (int64_t at = 0; at < array.code_bytes; at += 64) __builtin_prefetch(codes + at);
  if (array.groups) __builtin_prefetch(array.scales + vector * array.groups);
}

// The tile after one. All keys of a chunk come first, and then its values.
template <int64_t slots>
class NextTile {
 public:
  NextTile(const ChunkTask& task, const KvArray& array, int64_t slot)
      : array_(&array), index_((slot + slots) * task.heads + task.head), heads_(task.heads) {
    if (slot + 2 * slots <= task.end) return;
    array_ = &array == &task.k && task.begin + slots <= task.end ? &task.v : nullptr;
    index_ = task.begin * task.heads + task.head;
  }

  __attribute__((always_inline)) void Ask(int64_t begin, int64_t end) const {
    if (array_ == nullptr) return;
    for (int64_t i = begin; i < end; ++i) AskFor(*array_, index_ + i * heads_);
  }

 private:
  const KvArray* array_;
  int64_t index_;
  const int64_t heads_;
};

// The next chunk, of which each head asks for a share. A core can wait for a few lines, and its hardware reads some
// more behind those of each stretch of memory that is read: while memory answers, that is too little of one stretch. So
// there are four: halves of a share of keys and of values. Their vectors take turns.
class NextChunk {
 public:
  NextChunk(const ChunkTask& task, const KvArray& array, int64_t slot)
      : task_(task), first_((task.begin + kChunk) * task.heads + task.head * kChunk +
                            (slot - task.begin + (&array == &task.v ? kChunk : 0)) / 4) {}

  __attribute__((always_inline)) void Ask(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i)
      AskFor(i % 2 ? task_.v : task_.k, first_ + i / 2 % 2 * (kChunk / 2) + i / 4);
  }

 private:
  const ChunkTask& task_;
  const int64_t first_;
};

// Where what comes next is asked for elsewhere.
struct NothingAhead {
  void Ask(int64_t, int64_t) const {}
};

// Calls body(ahead) with what is asked for at a tile: ahead.Ask(begin, end) in shares of its slots.
template <int64_t slots, typename Body>
inline __attribute__((always_inline)) void WithAhead(const ChunkTask& task, const KvArray& array, int64_t slot,
                                                     const Body& body) {
  if (task.next_asked) body(NextChunk(task, array, slot));
  else body(NextTile<slots>(task, array, slot));
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_ATTENTION_SEEN_H_
