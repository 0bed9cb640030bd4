// Keys and values that are kept as floats. See seen.h for the anonymous namespace.
#ifndef SPECJAX_ATTENTION_FLOAT_TILES_H_
#define SPECJAX_ATTENTION_FLOAT_TILES_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "attention/seen.h"

namespace specjax {
namespace {

// How values of a vector of a cache, or of a copy in floats, are read: as many from `at` on as there are lanes.
template <typename Isa>
struct AsFloats {
  static typename Isa::Floats Read(const void* vector, int64_t at) {
    return Isa::Load(static_cast<const float*>(vector) + at);
  }
};
template <typename Isa>
struct AsHalves {
  static typename Isa::Floats Read(const void* vector, int64_t at) {
    return Isa::Halves(static_cast<const uint16_t*>(vector) + at);
  }
};
template <typename Isa>
struct AsBrains {
  static typename Isa::Floats Read(const void* vector, int64_t at) {
    return Isa::Brains(static_cast<const uint16_t*>(vector) + at);
  }
};

// Rows that are multiplied at a time. Where there are more, values are converted once, and not for each block of rows.
constexpr int kFewRows = 4;

// Whether products read the vectors of a cache, and not copies in floats, which may be padded.
inline bool AsTheyAre(const KvArray& array, int64_t rows) {
  return array.width % kPad == 0 && (array.type->kind == KvKind::kF32 || rows <= kFewRows);
}

// A vector in floats: `out` has room for a multiple of kPad, which stays as it is beyond the width.
template <typename Isa>
void Decode(const KvArray& array, const uint8_t* in, float* out) {
  if (array.type->kind == KvKind::kF32) {
    std::memcpy(out, in, 4 * array.width);
    return;
  }
  const auto* halves = reinterpret_cast<const uint16_t*>(in);
  const bool brain = array.type->kind == KvKind::kBf16;
  int64_t i = 0;
  for (; i + Isa::kLanes <= array.width; i += Isa::kLanes)
    Isa::Store(out + i, brain ? Isa::Brains(halves + i) : Isa::Halves(halves + i));
  for (; i < array.width; ++i) {
    const uint32_t bits = static_cast<uint32_t>(halves[i]) << 16;
    if (brain) std::memcpy(out + i, &bits, 4);
    else out[i] = Isa::Half(halves[i]);
  }
}

// Vectors of a tile, as they are or in floats, with zeros for the slots that no row sees, which are not read.
template <typename Isa>
class FloatTiles {
 public:
  FloatTiles(const ChunkTask& task, const KvArray& array, int64_t padded)
      : task_(task),
        array_(array),
        as_they_are_(AsTheyAre(array, task.rows())),
        padded_(padded),
        zeros_(task.memory + kTile * padded) {
    // Copies have places beyond a width, too, which decoding does not write.
    float* const first = as_they_are_ ? zeros_ : task.memory;
    std::memset(first, 0, (zeros_ + padded - first) * sizeof(float));
  }

  void Read(int64_t slot, Mask mask) {
    slot_ = slot;
    WithAhead<kTile>(task_, array_, slot, [&](const auto& ahead) {
      for (int64_t i = 0; i < kTile; ++i) {
        if (!as_they_are_) ahead.Ask(i, i + 1);
        vectors_[i] = mask >> i & 1 ? Vector(slot + i, task_.memory + i * padded_) : zeros_;
      }
    });
  }

  // Where vectors are read as they are, what comes next is asked for beside the products of the first row. A tile that
  // it does not see asks for nothing.
  __attribute__((always_inline)) void Ask(int64_t row, int64_t begin, int64_t end) const {
    if (row == 0 && as_they_are_)
      WithAhead<kTile>(task_, array_, slot_,
                       [&](const auto& ahead) __attribute__((always_inline)) { ahead.Ask(begin, end); });
  }

  // A weight of zero does not hide NaN, so a slot that rows do not see is one of zeros to them.
  void Select(Mask mask, const void** vectors) const {
    for (int64_t i = 0; i < kTile; ++i) vectors[i] = mask >> i & 1 ? vectors_[i] : zeros_;
  }

  const void* const* vectors() const { return vectors_; }

  // Calls body(how values of a vector are read).
  template <typename Body>
  void WithReader(const Body& body) const {
    if (as_they_are_ && array_.type->kind == KvKind::kF16) body(AsHalves<Isa>());
    else if (as_they_are_ && array_.type->kind == KvKind::kBf16) body(AsBrains<Isa>());
    else body(AsFloats<Isa>());
  }

 private:
  const void* Vector(int64_t slot, float* out) const {
    const uint8_t* const in = array_.codes + (slot * task_.heads + task_.head) * array_.code_bytes;
    if (as_they_are_) return in;
    Decode<Isa>(array_, in, out);
    return out;
  }

  const ChunkTask& task_;
  const KvArray& array_;
  const bool as_they_are_;
  const int64_t padded_;
  float* const zeros_;
  int64_t slot_;
  const void* vectors_[kTile];
};

// Scores of `rows` rows from row m on with the slots of a tile. Each is summed up in the same order, whichever way they
// are grouped: as many at a time as there are lanes.
template <typename Isa, typename Reader, int rows>
inline void ScoreFloatRows(const ChunkTask& task, const FloatTiles<Isa>& tiles, int64_t m, float* scores) {
  constexpr int L = Isa::kLanes, kSlots = L / rows;
  const float* q[rows];
  for (int r = 0; r < rows; ++r) q[r] = task.query(m + r);
  const void* const* const keys = tiles.vectors();
  for (int64_t first = 0; first < kTile; first += kSlots) {
    tiles.Ask(m, first, first + kSlots);
    typename Isa::Floats sums[L];
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) sums[i] = Isa::Set(0.0f);
    for (int64_t n = 0; n < task.k_width; n += L) {
      typename Isa::Floats x[rows];
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) x[r] = Isa::Load(q[r] + n);
#pragma GCC unroll 16
      for (int i = 0; i < kSlots; ++i) {
        const auto key = Reader::Read(keys[first + i], n);
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
    tiles.WithReader([&](auto reader) {
      using Reader = decltype(reader);
      ForBlocks<kFewRows>(task.rows(), [&](auto block, int64_t m) {
        ScoreFloatRows<Isa, Reader, block>(task, tiles, m, to);
      });
    });
  });
}

template <typename Isa, typename Reader, int rows>
inline void AddFloatRows(const FloatTiles<Isa>& tiles, int64_t m, const void* const* values, const float* weights,
                         int64_t width, float* sums) {
  constexpr int L = Isa::kLanes, kVectors = Isa::kManyRegisters ? 4 : 2;
  for (int64_t n = 0, asked = 0; n < width;) {
    const int64_t ask = (n + kVectors * L) * kTile / width;
    tiles.Ask(m, asked, std::min(ask, kTile));
    asked = ask;
    const auto some = [&](auto count) __attribute__((always_inline)) {
      constexpr int kCount = decltype(count)::value;
      typename Isa::Floats acc[rows][kCount];
      for (int r = 0; r < rows; ++r)
        for (int j = 0; j < kCount; ++j) acc[r][j] = Isa::Load(sums + r * width + n + j * L);
      for (int64_t i = 0; i < kTile; ++i) {
        typename Isa::Floats v[kCount];
        for (int j = 0; j < kCount; ++j) v[j] = Reader::Read(values[i], n + j * L);
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
    ForAlike<kTile>(task, slot, [&](Mask seen, int64_t begin, int64_t rows) {
      const void* values[kTile];
      tiles.Select(seen, values);
      const float* const w = weights + (slot - task.begin);
      tiles.WithReader([&](auto reader) {
        using Reader = decltype(reader);
        ForBlocks<kFewRows>(rows, [&](auto block, int64_t i) {
          const int64_t m = begin + i, width = task.v_width;
          AddFloatRows<Isa, Reader, block>(tiles, m, values, w + m * kChunk, width, task.sums + m * width);
        });
      });
    });
  });
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_ATTENTION_FLOAT_TILES_H_
