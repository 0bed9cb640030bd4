// Scores of keys that are kept as integers: a lane is a slot, and a pair are two values of its key. See seen.h for the
// anonymous namespace.
#ifndef SPECJAX_ATTENTION_INTEGER_KEYS_H_
#define SPECJAX_ATTENTION_INTEGER_KEYS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "attention/integers.h"

namespace specjax {
namespace {

// Codes [code_bytes / 4, lanes] of four bytes each, a lane being a slot, to pairs [width / 2, lanes]. Of four values
// the first and the third come first, see RoundQuery.
//
// Groups of codes of 2 or 4 bits are in planes: byte i has value i in its lowest bits, value i + bytes in the next, ...
// Of 3 bits the lower two are so, and then come the third bits, in the order of the values.
template <typename Isa, int bits>
inline void PairTable(const KvArray& array, const int32_t* fours, int32_t* out) {
  using Codes = Packing<bits>;
  constexpr int L = Isa::kLanes;
  const int64_t bytes = Codes::PlaneBytes(array), group_bytes = Codes::GroupBytes(array);
  const typename Isa::ByteTable table = Isa::LoadByteTable(array.type->table);
  for (int64_t g = 0; g < array.groups; ++g, fours += group_bytes / 4 * L, out += array.group / 2 * L) {
    for (int64_t j = 0; j < bytes / 4; ++j) {
      typename Isa::Ints packed = Isa::LoadInts(fours + j * L);
#pragma GCC unroll 4
      for (int plane = 0; plane < Codes::kPlanes; ++plane) {
        const int64_t at = plane * bytes + 4 * j;
        typename Isa::Ints codes = Isa::And(packed, 0x01010101 * ((1 << Codes::kLow) - 1));
        if constexpr (Codes::kThird)
          codes = Isa::AddFours(codes, Isa::LoadInts(fours + (bytes / 4 + at / 32) * L), at % 32);
        Isa::LookUpPairs(table, codes, out + at / 2 * L);
        packed = Isa::ShiftRight(packed, Codes::kLow);
      }
    }
  }
}

// The same from the codes of the slots of a tile from `first` on; `fours` is memory for what PairTable takes. Meanwhile
// the same slots of the next tile are asked for.
template <typename Isa, typename Next>
inline void PairCodes(const KvArray& array, const void* const* codes, const Next& ahead, int64_t first,
                      int32_t* fours, int32_t* out) {
  constexpr int L = Isa::kLanes;
  const int64_t times = array.code_bytes / 16, each = (L + times - 1) / times;
  const auto ask = [&](int64_t time) __attribute__((always_inline)) {
    ahead.Ask(first + time * each, first + std::min<int64_t>((time + 1) * each, L));
  };
  const auto turn = [&](const auto& body) { ForFours<Isa>(codes + first, array.code_bytes, ask, body); };
  if (array.type->kind == KvKind::kBytes)
    return turn([&](int64_t i, typename Isa::Ints bytes) { Isa::SignedPairs(bytes, out + 2 * i * L); });
  turn([&](int64_t i, typename Isa::Ints bytes) { Isa::StoreInts(fours + i * L, bytes); });
  WithBits(*array.type, [&](auto bits) { PairTable<Isa, bits>(array, fours, out); });
}

// A query as pairs of integers [width / 2, 2], `step` integers from one to the next. Of four values the first and the
// third come first, as SignedPairs and LookUpPairs leave keys. Returns what one is worth, NaN if a value is not finite.
template <typename Isa>
inline float RoundQuery(const float* q, int64_t width, int32_t levels, int64_t step, int16_t* out) {
  const float largest = Largest<Isa>(q, width);
  const auto inverse = Isa::Set(Inverse(largest, levels));
  int16_t some[Isa::kLanes] = {};
  for (int64_t n = 0; n < width; n += Isa::kLanes) {
    if (largest > 0) Isa::StoreShorts(some, Isa::ToInts(Isa::Multiply(Isa::Load(q + n), inverse)));
    for (int i = 0; i < Isa::kLanes; i += 4) {
      for (const int first : {i, i + 1}) {
        const int16_t pair[] = {some[first], some[first + 2]};
        std::memcpy(out, pair, sizeof pair);
        out += step;
      }
    }
  }
  return largest / levels;
}

// Scores of `rows` rows with as many slots as there are lanes, of pairs q [width / 2, rows, 2]; `worth` is that of a
// query's integers, for each row.
template <typename Isa, int rows>
inline void ScoreIntegerRows(const KvArray& array, const int32_t* pairs, const float* scales, const int16_t* q,
                             const float* worth, float* scores) {
  constexpr int L = Isa::kLanes;
  typename Isa::Floats sums[rows];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) sums[r] = Isa::Set(0.0f);
  for (int64_t g = 0; g < array.groups; ++g) {
    typename Isa::Ints dots[2][rows];  // products take turns, so that none waits for the one just before
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) dots[0][r] = dots[1][r] = Isa::NoInts();
    for (int64_t n = 0; n < array.group; n += kStep, pairs += kStep / 2 * L, q += kStep * rows) {
#pragma GCC unroll 16
      for (int64_t i = 0; i < kStep / 2; ++i) {
        const auto key = Isa::LoadInts(pairs + i * L);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r)
          dots[i % 2][r] = Isa::AddProducts(dots[i % 2][r], key, Isa::Both(q + 2 * (i * rows + r)));
      }
    }
    const auto scale = Isa::Load(scales + g * kTile);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
      sums[r] = Isa::Fma(Isa::ToFloats(Isa::AddInts(dots[0][r], dots[1][r])), scale, sums[r]);
  }
  for (int r = 0; r < rows; ++r) Isa::Store(scores + r * kChunk, Isa::Multiply(sums[r], Isa::Set(worth[r])));
}

// The rows that are scored at a time.
template <typename Isa>
constexpr int kMostRows = Isa::kManyRegisters ? 8 : 4;

// All queries as integers [rows, width], see RoundQuery, and then what one of each is worth.
template <typename Isa>
void RoundQueries(const ChunkTask& task, float* out) {
  const KvArray& array = task.k;
  const int64_t width = array.width;
  auto* const q = reinterpret_cast<int16_t*>(out);
  float* const worth = reinterpret_cast<float*>(q + task.rows() * width);
  const float unit = task.scale * Unit<Isa>(array);
  ForBlocks<kMostRows<Isa>>(task.rows(), [&](auto block, int64_t m) {
    for (int64_t r = 0; r < block; ++r) {
      int16_t* const to = q + m * width + 2 * r;
      worth[m + r] = unit * RoundQuery<Isa>(task.query(m + r), width, array.type->query_levels, 2 * block, to);
    }
  });
}

template <typename Isa>
void ScoreIntegers(const ChunkTask& task, float* scores) {
  constexpr int L = Isa::kLanes;
  const KvArray& array = task.k;
  const int64_t width = array.width, rows = task.rows();
  const auto* const q = reinterpret_cast<const int16_t*>(task.prepared);  // see RoundQueries
  const float* const worth = reinterpret_cast<const float*>(q + rows * width);
  auto* const pairs = reinterpret_cast<int32_t*>(task.memory);  // [width / 2, L]
  auto* const fours = pairs + width / 2 * L;                    // [width / 4, L]
  float* const scales = reinterpret_cast<float*>(fours + width / 4 * L);  // [groups, kTile]
  float* const zeros = scales + (array.groups + 1) * kTile;     // [width / 4]

  std::fill(zeros, zeros + width / 4, 0.0f);
  ForTiles<kTile>(task, [&](int64_t slot, Mask mask) {
    const Places<kTile> places(task, array, slot, mask, zeros);
    ReadScales<Isa, kTile>(places, array.groups, scales);
    for (int64_t i = 0; i < kTile; i += L) {
      WithAhead<kTile>(task, array, slot, [&](const auto& ahead) {
        PairCodes<Isa>(array, places.codes, ahead, i, fours, pairs);
      });
      ForBlocks<kMostRows<Isa>>(rows, [&](auto block, int64_t m) {
        ScoreIntegerRows<Isa, block>(array, pairs, scales + i, q + m * width, worth + m,
                                     scores + m * kChunk + (slot - task.begin) + i);
      });
    }
  });
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_ATTENTION_INTEGER_KEYS_H_
