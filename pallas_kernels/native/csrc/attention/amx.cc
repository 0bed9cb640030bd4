// x86-64 with AVX-512 and AMX, which multiplies bytes of 16 rows with those of 16 slots, or of 16 columns, at a time.
//
// Queries and weights are the integers of 16 bits that vectors multiply, here as a lower byte without a sign and an
// upper one, and so are the integers of the turbo types. Their products are formed in tiles, stored, and put together
// by vectors: the sums are the same integers, scaled in the same order, so a row has the bits that vectors give it (but
// for signs of zeros, which merging drops).
#include <algorithm>

#include "attention/avx512vnni.h"

#if defined(__AMX_INT8__)

#include "attention/amx_keys.h"
#include "attention/amx_values.h"

namespace specjax {
namespace {

struct ByTiles {
  using Isa = Avx512;

  // AddByTiles needs the most; `rows` are for AddIntegers.
  static constexpr int64_t Floats(int64_t rows, int64_t k_width, int64_t v_width) {
    return (16 * kSpans + 18) * std::max(k_width, v_width) + 14 * kChunk + rows;
  }
  static constexpr int64_t PreparedFloats(int64_t rows, int64_t k_width) {
    return WholeTiles(rows) * (k_width / 2 + 1);
  }

  // Integers of one byte in groups of 32 and whole pairs of these, or of two bytes in groups of 128.
  static bool Fit(const KvArray& array) {
    return OneByte(array) ? array.group == kStep && array.width % (2 * kStep) == 0 : array.group == kGroup;
  }
  static bool KeysFit(const ChunkTask& task) { return task.rows() >= kFewestQueries && Fit(task.k); }
  static void Prepare(const ChunkTask& task, float* out) {
    KeysFit(task) ? SplitQueries(task, out) : RoundQueries<Avx512>(task, out);
  }
  static void Score(const ChunkTask& task, float* scores) {
    KeysFit(task) ? ScoreByTiles(task, scores) : ScoreIntegers<Avx512>(task, scores);
  }
  static void Add(const ChunkTask& task, float* weights) {
    task.rows() > kHalfTile && Fit(task.v) ? AddByTiles(task, weights) : AddIntegers<Avx512>(task, weights);
  }
};

}  // namespace

const AttentionKernels& AttentionKernels::ForAmx() {
  static constexpr AttentionKernels kKernels = AttentionKernelsOf<ByTiles>();
  return kKernels;
}

}  // namespace specjax

#else  // a compiler that does not know it; see HasAmx

namespace specjax {
const AttentionKernels& AttentionKernels::ForAmx() { return ForAvx512Vnni(); }
}  // namespace specjax

#endif
