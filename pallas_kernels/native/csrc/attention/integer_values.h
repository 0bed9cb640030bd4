// Sums of values that are kept as integers: a lane is a column, and a pair are two slots. See seen.h for the anonymous
// namespace.
#ifndef SPECJAX_ATTENTION_INTEGER_VALUES_H_
#define SPECJAX_ATTENTION_INTEGER_VALUES_H_

#include <algorithm>
#include <cstdint>

#include "attention/integers.h"

namespace specjax {
namespace {

// Pairs of two slots' integers stand in blocks of columns: [width / kStep, kTile / 2, kStep, 2]. This is where the pair
// of a column stands, from that of the first column on.
inline uint64_t PlaceOf(uint64_t column) { return column / kStep * (kTile / 2 * kStep) + column % kStep; }

// The integers of two slots as pairs. See PairTable for the order of codes.
template <typename Isa, int bits, bool high>
inline void JoinTable(const KvArray& array, const uint8_t* first, const uint8_t* second, int32_t* out) {
  constexpr int kPlanes = 8 / bits;
  const int64_t bytes = array.group / kPlanes, group_bytes = bytes + (high ? array.group / 8 : 0);
  const typename Isa::Table table = Isa::LoadTable(array.type->table);
  for (int64_t g = 0; g < array.groups; ++g, first += group_bytes, second += group_bytes) {
    for (int64_t i = 0; i < bytes; i += Isa::kLanes) {
      typename Isa::Ints packed[2] = {Isa::Bytes(first + i), Isa::Bytes(second + i)};
#pragma GCC unroll 4
      for (int plane = 0; plane < kPlanes; ++plane) {
        const int64_t at = plane * bytes + i;
        typename Isa::Ints values[2];
#pragma GCC unroll 2
        for (int slot = 0; slot < 2; ++slot) {
          auto code = Isa::And(packed[slot], (1 << bits) - 1);
          if constexpr (high) code = Isa::AddBits(code, (slot ? second : first) + bytes + at / 8, at % 8, 4);
          values[slot] = Isa::LookUp(table, code);
          packed[slot] = Isa::ShiftRight(packed[slot], bits);
        }
        Isa::StoreInts(out + PlaceOf(g * array.group + at), Isa::Join(values[0], values[1]));
      }
    }
  }
}

template <typename Isa>
inline void JoinCodes(const KvArray& array, const void* const* codes, int32_t* out) {
  const auto* const first = static_cast<const uint8_t*>(codes[0]);
  const auto* const second = static_cast<const uint8_t*>(codes[1]);
  if (array.type->kind == KvKind::kBytes) {
    for (int64_t n = 0; n < array.width; n += kStep, out += PlaceOf(kStep)) {
#pragma GCC unroll 8
      for (int64_t i = 0; i < kStep; i += Isa::kLanes)
        Isa::StoreInts(out + i, Isa::Join(Isa::SignedBytes(first + n + i), Isa::SignedBytes(second + n + i)));
    }
    return;
  }
  if (array.type->bits == 2) JoinTable<Isa, 2, false>(array, first, second, out);
  if (array.type->bits == 3) JoinTable<Isa, 2, true>(array, first, second, out);
  if (array.type->bits == 4) JoinTable<Isa, 4, false>(array, first, second, out);
}

// Adds a tile to the sums of `rows` rows. Weights [groups, rows, kTile] are integers; `worth` [groups] is that of one
// times one of the integers of `pairs`, which stand as PlaceOf says.
template <typename Isa, int rows>
inline void AddIntegerRows(const KvArray& array, const int32_t* pairs, const int16_t* weights, const float* worth,
                           float* sums) {
  constexpr int L = Isa::kLanes, kVectors = 2;
  const int64_t width = array.width;
  for (int64_t g = 0; g < array.groups; ++g) {
    const int16_t* const w = weights + g * rows * kTile;
    for (int64_t n = g * array.group; n < (g + 1) * array.group; n += kVectors * L) {
      const int32_t* const columns = pairs + PlaceOf(n);
      typename Isa::Ints acc[rows][kVectors];
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r)
        for (int j = 0; j < kVectors; ++j) acc[r][j] = Isa::NoInts();
#pragma GCC unroll 8
      for (int64_t i = 0; i < kTile; i += 2) {
        typename Isa::Ints v[kVectors];
        for (int j = 0; j < kVectors; ++j) v[j] = Isa::LoadInts(columns + i / 2 * kStep + j * L);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
          const auto both = Isa::Both(w + r * kTile + i);
          for (int j = 0; j < kVectors; ++j) acc[r][j] = Isa::AddProducts(acc[r][j], v[j], both);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        for (int j = 0; j < kVectors; ++j) {
          float* const sum = sums + r * width + n + j * L;
          Isa::Store(sum, Isa::Fma(Isa::ToFloats(acc[r][j]), Isa::Set(worth[g]), Isa::Load(sum)));
        }
      }
    }
  }
}

template <typename Isa>
void AddIntegers(const ChunkTask& task, const float* weights) {
  constexpr int L = Isa::kLanes;
  const KvArray& array = task.v;
  const int64_t width = array.width, groups = array.groups;
  const int32_t levels = array.type->levels;
  const float unit = Unit<Isa>(array);
  auto* const pairs = reinterpret_cast<int32_t*>(task.memory);  // see PlaceOf
  float* const scales = reinterpret_cast<float*>(pairs + kTile / 2 * width);  // [groups, kTile]
  float* const factors = scales + (groups + 1) * kTile;               // [groups, kTile]
  auto* const integers = reinterpret_cast<int16_t*>(factors + groups * kTile);  // [groups, 4, kTile]
  float* const worth = reinterpret_cast<float*>(integers + 4 * groups * kTile);  // [groups]
  float* const zeros = worth + groups;                          // [width / 4]

  std::fill(zeros, zeros + width / 4, 0.0f);
  ForTiles(task, [&](int64_t slot, Mask mask) {
    const Places places(task, array, slot, mask, zeros);
    const NextTile next(task, array, slot);
    ReadScales<Isa>(places, groups, scales);
    for (int64_t i = 0; i < kTile; i += 2) {
      next.Ask(i);
      next.Ask(i + 1);
      JoinCodes<Isa>(array, places.codes + i, pairs + i / 2 * kStep);
    }
    ForAlike(task, slot, [&](Mask seen, int64_t m, int64_t rows) {
      for (int64_t g = 0; g < groups; ++g) {
        float* const own = factors + g * kTile;
        std::copy(scales + g * kTile, scales + (g + 1) * kTile, own);
        for (int64_t i = 0; seen != kAll && i < kTile; ++i) own[i] = seen >> i & 1 ? own[i] : 0.0f;
        const float largest = Largest<Isa>(own, kTile), inverse = Inverse(largest, levels);
        for (int64_t i = 0; i < kTile; ++i) own[i] = largest > 0 ? own[i] * inverse : 0.0f;
        worth[g] = largest / levels * unit;
      }
      ForBlocks<4>(rows, [&](auto block, int64_t first) {
        for (int64_t r = 0; r < block; ++r) {
          for (int64_t i = 0; i < kTile; i += L) {
            const auto weight = Isa::Load(weights + (m + first + r) * kChunk + (slot - task.begin) + i);
            for (int64_t g = 0; g < groups; ++g)
              Isa::StoreShorts(integers + (g * block + r) * kTile + i,
                               Isa::ToInts(Isa::Multiply(weight, Isa::Load(factors + g * kTile + i))));
          }
        }
        AddIntegerRows<Isa, block>(array, pairs, integers, worth, task.sums + (m + first) * width);
      });
    });
  });
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_ATTENTION_INTEGER_VALUES_H_
