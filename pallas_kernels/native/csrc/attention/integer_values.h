// Sums of values that are kept as integers: a lane is a column, and a pair are two slots. See seen.h for the anonymous
// namespace.
#ifndef SPECJAX_ATTENTION_INTEGER_VALUES_H_
#define SPECJAX_ATTENTION_INTEGER_VALUES_H_

#include <algorithm>
#include <cstdint>

#include "attention/integers.h"

namespace specjax {
namespace {

// Pairs of two slots' integers stand in blocks of columns: [width / kStep, kSpan / 2, kStep, 2]. This is where the pair
// of a column stands, from that of the first column on.
inline uint64_t PlaceOf(uint64_t column) { return column / kStep * (kSpan / 2 * kStep) + column % kStep; }

// The integers of two slots as pairs. See PairTable for the order of codes.
template <typename Isa, int bits>
inline void JoinTable(const KvArray& array, const uint8_t* first, const uint8_t* second, int32_t* out) {
  constexpr bool high = bits == 3;
  constexpr int kLow = high ? 2 : bits, kPlanes = 8 / kLow;
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
          auto code = Isa::And(packed[slot], (1 << kLow) - 1);
          if constexpr (high) code = Isa::AddBits(code, (slot ? second : first) + bytes + at / 8, at % 8, 4);
          values[slot] = Isa::LookUp(table, code);
          packed[slot] = Isa::ShiftRight(packed[slot], kLow);
        }
        Isa::StoreInts(out + PlaceOf(g * array.group + at), Isa::Join(values[0], values[1]));
      }
    }
  }
}

template <typename Isa>
inline __attribute__((always_inline)) void JoinCodes(const KvArray& array, const void* const* codes, int32_t* out) {
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
  WithBits(*array.type, [&](auto bits) { JoinTable<Isa, bits>(array, first, second, out); });
}

static_assert(kSpan <= kStep, "levels of types are chosen so that sums of kStep products fit 32 bits");

// Adds a span to the sums of `rows` rows. Weights [groups, rows, kSpan] are integers; one of them times one of the
// integers of `pairs`, which stand as PlaceOf says, is worth `worth` [rows].
template <typename Isa, int rows>
inline void AddIntegerRows(const KvArray& array, const int32_t* pairs, const int16_t* weights, const float* worth,
                           float* sums) {
  constexpr int L = Isa::kLanes, kVectors = 2;
  const int64_t width = array.width;
  typename Isa::Floats one[rows];
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) one[r] = Isa::Set(worth[r]);
  for (int64_t g = 0; g < array.groups; ++g, weights += rows * kSpan) {
    for (int64_t n = g * array.group; n < (g + 1) * array.group; n += kVectors * L) {
      const int32_t* const columns = pairs + PlaceOf(n);
      typename Isa::Ints acc[rows][kVectors];
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r)
        for (int j = 0; j < kVectors; ++j) acc[r][j] = Isa::NoInts();
#pragma GCC unroll 8
      for (int64_t i = 0; i < kSpan; i += 2) {
        typename Isa::Ints v[kVectors];
        for (int j = 0; j < kVectors; ++j) v[j] = Isa::LoadInts(columns + i / 2 * kStep + j * L);
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) {
          const auto both = Isa::Both(weights + r * kSpan + i);
          for (int j = 0; j < kVectors; ++j) acc[r][j] = Isa::AddProducts(acc[r][j], v[j], both);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) {
        for (int j = 0; j < kVectors; ++j) {
          float* const sum = sums + r * width + n + j * L;
          Isa::Store(sum, Isa::Fma(Isa::ToFloats(acc[r][j]), one[r], Isa::Load(sum)));
        }
      }
    }
  }
}

// Weights times scales as integers [groups, rows, kSpan], and what one of them is worth, for each row. The largest of a
// row is `levels`: next to a slot that takes nearly all of the attention, those of the other spans still count. `most`
// [kSpan] has the largest scale of each slot.
template <typename Isa, int rows>
inline void RoundWeights(const KvArray& array, const float* weights, const float* scales, const float* most,
                         int16_t* out, float* worth) {
  constexpr int L = Isa::kLanes;
  const int32_t levels = array.type->levels;
  for (int r = 0; r < rows; ++r, weights += kChunk, out += kSpan) {
    float products[kSpan];
    for (int64_t i = 0; i < kSpan; i += L)
      Isa::Store(products + i, Isa::Multiply(Isa::Load(weights + i), Isa::Load(most + i)));
    const float largest = Largest<Isa>(products, kSpan);
    const auto inverse = Isa::Set(Inverse(largest, levels));
    worth[r] = largest / levels * Unit<Isa>(array);
    if (largest != largest) {  // NaN has no integer, and what they are worth is NaN
      for (int64_t g = 0; g < array.groups; ++g) std::fill_n(out + g * rows * kSpan, kSpan, int16_t{0});
      continue;
    }
    for (int64_t i = 0; i < kSpan; i += L) {
      const auto weight = Isa::Multiply(Isa::Load(weights + i), inverse);
      for (int64_t g = 0; g < array.groups; ++g)
        Isa::StoreShorts(out + g * rows * kSpan + i,
                         Isa::ToInts(Isa::Multiply(weight, Isa::Load(scales + g * kSpan + i))));
    }
  }
}

// The largest scale of each slot, by magnitude; NaN is larger than any.
template <typename Isa>
inline void LargestScales(const float* scales, int64_t groups, float* most) {
  for (int64_t i = 0; i < kSpan; i += Isa::kLanes) {
    auto top = Isa::NoInts();
    for (int64_t g = 0; g < groups; ++g)
      top = Isa::MaxInts(top, Isa::And(Isa::LoadInts(scales + g * kSpan + i), 0x7fffffff));
    Isa::StoreInts(most + i, top);
  }
}

template <typename Isa>
void AddIntegers(const ChunkTask& task, const float* weights) {
  const KvArray& array = task.v;
  const int64_t width = array.width, groups = array.groups;
  auto* const pairs = reinterpret_cast<int32_t*>(task.memory);                // see PlaceOf
  float* const scales = reinterpret_cast<float*>(pairs + kSpan / 2 * width);  // [groups, kSpan], and room for one more
  float* const own = scales + (groups + 1) * kSpan;                           // [groups, kSpan], 0 where not seen
  auto* const integers = reinterpret_cast<int16_t*>(own + groups * kSpan);    // [groups, 4, kSpan]
  float* const zeros = reinterpret_cast<float*>(integers + 4 * groups * kSpan);  // [width / 4]

  std::fill(zeros, zeros + width / 4, 0.0f);
  ForTiles<kSpan>(task, [&](int64_t slot, Mask mask) {
    const Places<kSpan> places(task, array, slot, mask, zeros);
    ReadScales<Isa, kSpan>(places, groups, scales);
    WithAhead<kSpan>(task, array, slot, [&](const auto& ahead) {
      for (int64_t i = 0; i < kSpan; i += 2) {
        ahead.Ask(i, i + 2);
        JoinCodes<Isa>(array, places.codes + i, pairs + i / 2 * kStep);
      }
    });
    ForAlike<kSpan>(task, slot, [&](Mask seen, int64_t first, int64_t rows) {
      const float* of_seen = scales;
      if (seen != kAll<kSpan>) {
        for (int64_t i = 0; i < groups * kSpan; ++i) own[i] = seen >> i % kSpan & 1 ? scales[i] : 0.0f;
        of_seen = own;
      }
      float most[kSpan];
      LargestScales<Isa>(of_seen, groups, most);
      ForBlocks<4>(rows, [&](auto block, int64_t m) {
        float worth[block];
        RoundWeights<Isa, block>(array, weights + (first + m) * kChunk + (slot - task.begin), of_seen, most,
                                 integers, worth);
        AddIntegerRows<Isa, block>(array, pairs, integers, worth, task.sums + (first + m) * width);
      });
    });
  });
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_ATTENTION_INTEGER_VALUES_H_
