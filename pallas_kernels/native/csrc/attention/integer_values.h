// Sums of values that are kept as integers: a lane is a column, and a pair are two slots. See seen.h for the anonymous
// namespace.
#ifndef SPECJAX_ATTENTION_INTEGER_VALUES_H_
#define SPECJAX_ATTENTION_INTEGER_VALUES_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "attention/integers.h"

namespace specjax {
namespace {

// Pairs of two slots' integers stand in blocks of columns: [width / kStep, kSpan / 2, kStep, 2]. This is where the pair
// of a column stands, from that of the first column on.
inline uint64_t PlaceOf(uint64_t column) { return column / kStep * (kSpan / 2 * kStep) + column % kStep; }

// The integers of two slots as pairs. See PairTable for the order of codes.
template <typename Isa, int bits>
struct TableValues {
  static void Join(const KvArray& array, const uint8_t* first, const uint8_t* second, int32_t* out) {
    using Codes = Packing<bits>;
    const int64_t bytes = Codes::PlaneBytes(array), group_bytes = Codes::GroupBytes(array);
    const typename Isa::Table table = Isa::LoadTable(array.type->table);
    for (int64_t g = 0; g < array.groups; ++g, first += group_bytes, second += group_bytes) {
      for (int64_t i = 0; i < bytes; i += Isa::kLanes) {
        typename Isa::Ints packed[2] = {Isa::Bytes(first + i), Isa::Bytes(second + i)};
#pragma GCC unroll 4
        for (int plane = 0; plane < Codes::kPlanes; ++plane) {
          const int64_t at = plane * bytes + i;
          typename Isa::Ints values[2];
#pragma GCC unroll 2
          for (int slot = 0; slot < 2; ++slot) {
            auto code = Isa::And(packed[slot], (1 << Codes::kLow) - 1);
            if constexpr (Codes::kThird) code = Isa::AddBits(code, (slot ? second : first) + bytes + at / 8, at % 8, 4);
            values[slot] = Isa::LookUp(table, code);
            packed[slot] = Isa::ShiftRight(packed[slot], Codes::kLow);
          }
          Isa::StoreInts(out + PlaceOf(g * array.group + at), Isa::Join(values[0], values[1]));
        }
      }
    }
  }
};

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
  WithBits(*array.type, [&](auto bits) { TableValues<Isa, bits>::Join(array, first, second, out); });
}

constexpr int64_t kSpans = kChunk / kSpan;
static_assert(kSpan <= kStep, "levels of types are chosen so that sums of kStep products fit 32 bits");
static_assert(int64_t{32767} * 128 * kChunk <= std::numeric_limits<int32_t>::max(), "sums over a chunk fit, see Whole");

// Whether weights of a whole chunk share what an integer of theirs is worth, and not those of a span alone: where sums
// of so many products fit 32 bits, these are scaled once.
inline bool Whole(const KvArray& array) { return OneByte(array); }

// What an integer of a row's weights is worth, if the largest of its weights times scales is `largest`. That becomes
// `levels`: next to a slot that takes nearly all of the attention, weights that have another worth still count.
template <typename Isa>
inline float Worth(const KvArray& array, float largest) {
  return largest / array.type->levels * Unit<Isa>(array);
}

// Adds a span to the sums of `rows` rows, which remain integers where those of a whole chunk share their worth. Weights
// [groups, rows, kSpan] are integers, see RoundWeights, and those of `pairs` stand as PlaceOf says.
template <typename Isa, int rows, bool whole>
inline void AddIntegerRows(const KvArray& array, const int32_t* pairs, const int16_t* weights, const float* largest,
                           float* sums) {
  constexpr int L = Isa::kLanes, kVectors = 2;
  const int64_t width = array.width;
  typename Isa::Floats one[rows];
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) one[r] = Isa::Set(whole ? 0.0f : Worth<Isa>(array, largest[r]));
  for (int64_t g = 0; g < array.groups; ++g, weights += rows * kSpan) {
    for (int64_t n = g * array.group; n < (g + 1) * array.group; n += kVectors * L) {
      const int32_t* columns = pairs + PlaceOf(n);
      typename Isa::Ints acc[rows][kVectors];
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r)
        for (int j = 0; j < kVectors; ++j)
          acc[r][j] = whole ? Isa::LoadInts(sums + r * width + n + j * L) : Isa::NoInts();
#pragma GCC unroll 8
      for (int64_t i = 0; i < kSpan; i += 2, columns += kStep) {
        typename Isa::Ints v[kVectors];
        for (int j = 0; j < kVectors; ++j) v[j] = Isa::LoadInts(columns + j * L);
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
          if constexpr (whole) Isa::StoreInts(sum, acc[r][j]);
          else Isa::Store(sum, Isa::Fma(Isa::ToFloats(acc[r][j]), one[r], Isa::Load(sum)));
        }
      }
    }
  }
}

// The largest of `top` and of a row's weights of a span times `most` [kSpan], the largest scales of the slots that it
// sees; NaN if one is not finite.
template <typename Isa>
inline float LargestWeight(const float* weights, const float* most, float top) {
  float products[kSpan];
  for (int64_t i = 0; i < kSpan; i += Isa::kLanes)
    Isa::Store(products + i, Isa::Multiply(Isa::Load(weights + i), Isa::Load(most + i)));
  const float largest = Largest<Isa>(products, kSpan);
  return top != top || largest <= top ? top : largest;
}

// Weights of a span times scales as integers [groups, rows, kSpan]. `largest` [rows] is what LargestWeight says of all
// spans that share their worth.
template <typename Isa, int rows>
inline void RoundWeights(const KvArray& array, const float* weights, const float* scales, const float* largest,
                         int16_t* out) {
  for (int r = 0; r < rows; ++r, weights += kChunk, out += kSpan) {
    if (largest[r] != largest[r]) {  // NaN has no integer, and what they are worth is NaN
      for (int64_t g = 0; g < array.groups; ++g) std::fill_n(out + g * rows * kSpan, kSpan, int16_t{0});
      continue;
    }
    const auto inverse = Isa::Set(Inverse(largest[r], array.type->levels));
    for (int64_t i = 0; i < kSpan; i += Isa::kLanes) {
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

// `count` times kSpan scales: those of slots that are not seen become zeros, in `own`, unless all are seen.
inline const float* OfSeen(Mask seen, const float* scales, int64_t count, float* own) {
  if (seen == kAll<kSpan>) return scales;
  for (int64_t i = 0; i < count * kSpan; ++i) own[i] = seen >> i % kSpan & 1 ? scales[i] : 0.0f;
  return own;
}

template <typename Isa>
void AddIntegers(const ChunkTask& task, const float* weights) {
  const KvArray& array = task.v;
  const int64_t width = array.width, groups = array.groups, scales_each = (groups + 1) * kSpan;
  const bool whole = Whole(array);
  auto* const pairs = reinterpret_cast<int32_t*>(task.memory);                // see PlaceOf
  float* const scales = reinterpret_cast<float*>(pairs + kSpan / 2 * width);  // of each span, see ReadScales
  float* const most = scales + kSpans * scales_each;                          // [kSpans, kSpan]
  float* const own = most + kChunk;                                           // [groups, kSpan], 0 where not seen
  auto* const integers = reinterpret_cast<int16_t*>(own + groups * kSpan);    // [groups, 4, kSpan]
  float* const zeros = reinterpret_cast<float*>(integers + 4 * groups * kSpan);  // [width / 4]
  float* const largest = zeros + width / 4;                                      // of each row

  std::fill(zeros, zeros + width / 4, 0.0f);
  ClearSums(task);
  int64_t spans = 0, slots[kSpans];
  Mask masks[kSpans];
  ForTiles<kSpan>(task, [&](int64_t slot, Mask mask) {
    slots[spans] = slot;
    masks[spans++] = mask;
  });
  for (int64_t first = 0, last; first < spans; first = last) {
    last = whole ? spans : first + 1;
    std::fill(largest, largest + task.rows(), 0.0f);
    for (int64_t i = first; i < last; ++i) {
      const Places<kSpan> places(task, array, slots[i], masks[i], zeros);
      ReadScales<Isa, kSpan>(places, groups, scales + i * scales_each);
      LargestScales<Isa>(scales + i * scales_each, groups, most + i * kSpan);
      ForAlike<kSpan>(task, slots[i], [&](Mask seen, int64_t begin, int64_t rows) {
        const float* const of_seen = OfSeen(seen, most + i * kSpan, 1, own);
        for (int64_t m = begin; m < begin + rows; ++m)
          largest[m] = LargestWeight<Isa>(weights + m * kChunk + (slots[i] - task.begin), of_seen, largest[m]);
      });
    }
    for (int64_t i = first; i < last; ++i) {
      const Places<kSpan> places(task, array, slots[i], masks[i], zeros);
      WithAhead<kSpan>(task, array, slots[i], [&](const auto& ahead) {
        for (int64_t j = 0; j < kSpan; j += 2) {
          ahead.Ask(j, j + 2);
          JoinCodes<Isa>(array, places.codes + j, pairs + j / 2 * kStep);
        }
      });
      ForAlike<kSpan>(task, slots[i], [&](Mask seen, int64_t begin, int64_t rows) {
        const float* const of_seen = OfSeen(seen, scales + i * scales_each, groups, own);
        ForBlocks<4>(rows, [&](auto block, int64_t m) {
          const int64_t row = begin + m;
          float* const sums = task.sums + row * width;
          RoundWeights<Isa, block>(array, weights + row * kChunk + (slots[i] - task.begin), of_seen, largest + row,
                                   integers);
          if (whole) AddIntegerRows<Isa, block, true>(array, pairs, integers, largest + row, sums);
          else AddIntegerRows<Isa, block, false>(array, pairs, integers, largest + row, sums);
        });
      });
    }
  }
  if (!whole) return;
  for (int64_t m = 0; m < task.rows(); ++m) {
    const auto worth = Isa::Set(Worth<Isa>(array, spans == 0 ? 0.0f : largest[m]));
    float* const sums = task.sums + m * width;
    for (int64_t n = 0; n < width; n += Isa::kLanes)
      Isa::Store(sums + n, Isa::Multiply(Isa::ToFloats(Isa::LoadInts(sums + n)), worth));
  }
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_ATTENTION_INTEGER_VALUES_H_
