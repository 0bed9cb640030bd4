// Keys and values that are kept as floats. See seen.h for the anonymous namespace.
#ifndef SPECJAX_ATTENTION_FLOAT_TILES_H_
#define SPECJAX_ATTENTION_FLOAT_TILES_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "attention/seen.h"

namespace specjax {
namespace {

// The vector of a slot and head; `out` has room for a multiple of kPad, which stays as it is beyond the width.
template <typename Isa>
const float* Decode(const KvArray& array, int64_t index, float* out) {
  const uint8_t* in = array.codes + index * array.code_bytes;
  const int64_t width = array.width;
  if (array.type->kind == KvKind::kF32) {
    if (width % kPad == 0) return reinterpret_cast<const float*>(in);
    std::memcpy(out, in, 4 * width);
    return out;
  }
  const auto* halves = reinterpret_cast<const uint16_t*>(in);
  const bool brain = array.type->kind == KvKind::kBf16;
  int64_t i = 0;
  for (; i + Isa::kLanes <= width; i += Isa::kLanes)
    Isa::Store(out + i, brain ? Isa::Brains(halves + i) : Isa::Halves(halves + i));
  for (; i < width; ++i) {
    const uint32_t bits = static_cast<uint32_t>(halves[i]) << 16;
    if (brain) std::memcpy(out + i, &bits, 4);
    else out[i] = Isa::Half(halves[i]);
  }
  return out;
}

// Vectors of floats of a tile, with zeros for the slots that no row sees, which are not read.
template <typename Isa>
class FloatTiles {
 public:
  FloatTiles(const ChunkTask& task, const KvArray& array, int64_t padded)
      : task_(task), array_(array), padded_(padded), zeros_(task.memory + kTile * padded) {
    std::fill(task.memory, task.memory + (kTile + 1) * padded, 0.0f);  // also what decoding leaves beyond a width
  }

  void Read(int64_t slot, Mask mask) {
    WithAhead<kTile>(task_, array_, slot, [&](const auto& ahead) {
      for (int64_t i = 0; i < kTile; ++i) {
        ahead.Ask(i, i + 1);
        vectors_[i] = mask >> i & 1 ? Decode<Isa>(array_, (slot + i) * task_.heads + task_.head,
                                                  task_.memory + i * padded_)
                                    : zeros_;
      }
    });
  }

  // A weight of zero does not hide NaN, so a slot that rows do not see is one of zeros to them.
  void Select(Mask mask, const float** vectors) const {
    for (int64_t i = 0; i < kTile; ++i) vectors[i] = mask >> i & 1 ? vectors_[i] : zeros_;
  }

  const float* const* vectors() const { return vectors_; }

 private:
  const ChunkTask& task_;
  const KvArray& array_;
  const int64_t padded_;
  const float* const zeros_;
  const float* vectors_[kTile];
};

// Scores of `rows` rows from row m on with the slots of a tile. Each is summed up in the same order, whichever way they
// are grouped: as many at a time as there are lanes.
template <typename Isa, int rows>
inline void ScoreFloatRows(const ChunkTask& task, const float* const* keys, int64_t m, float* scores) {
  constexpr int L = Isa::kLanes, kSlots = L / rows;
  const float* q[rows];
  for (int r = 0; r < rows; ++r) q[r] = task.query(m + r);
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
void ScoreFloats(const ChunkTask& task, float* scores) {
  FloatTiles<Isa> tiles(task, task.k, task.k_width);
  ForTiles<kTile>(task, [&](int64_t slot, Mask mask) {
    tiles.Read(slot, mask);
    float* const to = scores + (slot - task.begin);
    int64_t m = 0;
    for (; m + 4 <= task.rows(); m += 4) ScoreFloatRows<Isa, 4>(task, tiles.vectors(), m, to);
    for (; m < task.rows(); ++m) ScoreFloatRows<Isa, 1>(task, tiles.vectors(), m, to);
  });
}

template <typename Isa, int rows>
inline void AddFloatRows(const float* const* values, const float* weights, int64_t width, float* sums) {
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

template <typename Isa>
void AddFloats(const ChunkTask& task, const float* weights) {
  ClearSums(task);
  FloatTiles<Isa> tiles(task, task.v, task.v_width);
  ForTiles<kTile>(task, [&](int64_t slot, Mask mask) {
    tiles.Read(slot, mask);
    ForAlike<kTile>(task, slot, [&](Mask seen, int64_t m, int64_t rows) {
      const float* values[kTile];
      tiles.Select(seen, values);
      const float* const w = weights + (slot - task.begin);
      const int64_t end = m + rows, width = task.v_width;
      for (; m + 4 <= end; m += 4) AddFloatRows<Isa, 4>(values, w + m * kChunk, width, task.sums + m * width);
      for (; m < end; ++m) AddFloatRows<Isa, 1>(values, w + m * kChunk, width, task.sums + m * width);
    });
  });
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_ATTENTION_FLOAT_TILES_H_
