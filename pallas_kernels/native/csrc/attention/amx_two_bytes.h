// Integers of two bytes, those of the turbo types, in tiles: lower bytes, which have no sign, and upper ones stand
// apart. See amx_products.h for the anonymous namespace.
#ifndef SPECJAX_ATTENTION_AMX_TWO_BYTES_H_
#define SPECJAX_ATTENTION_AMX_TWO_BYTES_H_

#include <cstdint>
#include <cstring>

#include "attention/amx_products.h"

namespace specjax {
namespace {

constexpr int64_t kGroup = kMostOfGroup;  // of vectors with more than 64 values
constexpr int64_t kValues = kTileRowBytes;  // of a key or a query in a row of a tile

constexpr int kBytesOfRows = 6, kBytesOfColumns = 7;  // the registers of what is multiplied; sums come before

// For rows and columns of `values` values, and `columns` columns.
TileConfig ConfigOfTwoBytes(int values, int columns) {
  TileConfig config;
  for (int tile = 0; tile < kBytesOfRows; ++tile) config.Set(tile, kTileRows, 4 * columns);
  config.Set(kBytesOfRows, kTileRows, values);
  config.Set(kBytesOfColumns, values / 4, 4 * columns);
  return config;
}

template <int turn>
inline __attribute__((always_inline)) void ClearSums() {
  ClearTile<kSum<3, turn, 0>>();
  ClearTile<kSum<3, turn, 1>>();
  ClearTile<kSum<3, turn, 2>>();
}

// Adds the products of rows, `stride` bytes apart, with columns.
template <int turn>
inline __attribute__((always_inline)) void MultiplyTwoBytes(const uint8_t* lower, const uint8_t* upper, int64_t stride,
                                                            const uint8_t* lower_columns,
                                                            const uint8_t* upper_columns) {
  LoadTile<kBytesOfRows>(lower, stride);
  LoadTile<kBytesOfColumns>(lower_columns, kTileRowBytes);
  MultiplyTiles<kSum<3, turn, 0>, kBytesOfRows, false, kBytesOfColumns, false>();
  LoadTile<kBytesOfColumns>(upper_columns, kTileRowBytes);
  MultiplyTiles<kSum<3, turn, 1>, kBytesOfRows, false, kBytesOfColumns, true>();
  LoadTile<kBytesOfRows>(upper, stride);
  MultiplyTiles<kSum<3, turn, 2>, kBytesOfRows, true, kBytesOfColumns, true>();
  LoadTile<kBytesOfColumns>(lower_columns, kTileRowBytes);
  MultiplyTiles<kSum<3, turn, 1>, kBytesOfRows, true, kBytesOfColumns, false>();
}

// The codes of 64 values of a group, the first or the second half of it. See PairTable for their order.
template <int bits>
inline __attribute__((always_inline)) __m512i CodesOfHalf(const uint8_t* group, int half) {
  if constexpr (bits == 4) {
    const __m512i packed = _mm512_loadu_si512(group);
    return Avx512::And(half ? _mm512_srli_epi16(packed, 4) : packed, 0x0f0f0f0f);
  }
  const __m512i shifts = half ? _mm512_setr_epi64(4, 4, 4, 4, 6, 6, 6, 6) : _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2);
  const __m512i codes =
      Avx512::And(_mm512_srlv_epi64(_mm512_broadcast_i64x4(Avx512::Load32(group)), shifts), 0x03030303);
  if constexpr (bits == 2) return codes;
  uint64_t third;
  std::memcpy(&third, group + kGroup / 4 + half * 8, 8);
  return _mm512_mask_add_epi8(codes, third, codes, _mm512_set1_epi8(4));
}

// Calls body(place, codes) with the codes of slots, a byte each, 64 at a time: `place` is where they stand in [slots,
// width]. Meanwhile those of the next tile are asked for.
template <int64_t slots, typename Next, typename Body>
inline void ForCodes(const KvArray& array, const Places<slots>& places, const Next& ahead, const Body& body) {
  WithBits(*array.type, [&](auto bits) {
    int64_t place = 0;
    for (int64_t i = 0; i < slots; ++i) {
      ahead.Ask(i, i + 1);
      const auto* codes = static_cast<const uint8_t*>(places.codes[i]);
      for (int64_t g = 0; g < array.groups; ++g, codes += kGroup / 8 * bits, place += kGroup) {
        body(place, CodesOfHalf<bits>(codes, 0));
        body(place + kGroup / 2, CodesOfHalf<bits>(codes, 1));
      }
    }
  });
}

// The integers of 64 codes: their lower bytes, and their upper ones.
inline __attribute__((always_inline)) void StoreTwoBytes(const Avx512::ByteTable& table, __m512i codes, uint8_t* lower,
                                                         uint8_t* upper) {
  _mm512_storeu_si512(lower, _mm512_shuffle_epi8(table.low, codes));
  _mm512_storeu_si512(upper, _mm512_shuffle_epi8(table.high, codes));
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_ATTENTION_AMX_TWO_BYTES_H_
