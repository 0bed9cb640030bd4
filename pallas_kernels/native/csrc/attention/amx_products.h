// Products of integers of 16 bits with those of a cache, by tiles of AMX: what keys and values have in common. Included
// by amx.cc alone, hence the anonymous namespace.
#ifndef SPECJAX_ATTENTION_AMX_PRODUCTS_H_
#define SPECJAX_ATTENTION_AMX_PRODUCTS_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "amx_tiles.h"
#include "attention/avx512vnni.h"

namespace specjax {
namespace {

// Sums of products of bytes. Integers of two bytes have a lower byte, which has no sign, and an upper one. A sum is
// worth 256 times the one before. Integers of one byte with those of two have two sums, those of two with each other
// three.
template <int sums>
using Products = TileSums[sums];

// The registers of the sums of a step. Steps take turns, 0 and 1: one is formed while the other is stored.
template <int sums, int turn, int sum>
constexpr int kSum = sums * turn + sum;

// Stores the sums of a turn, rows of `bytes` bytes each behind the other.
template <int sums, int turn, int bytes>
inline __attribute__((always_inline)) void Keep(Products<sums>* products) {
  StoreTile<kSum<sums, turn, 0>, bytes>(products[turn][0]);
  StoreTile<kSum<sums, turn, 1>, bytes>(products[turn][1]);
  if constexpr (sums == 3) StoreTile<kSum<sums, turn, 2>, bytes>(products[turn][2]);
}

// Vector i of all sums together, as floats.
template <int sums>
inline __attribute__((always_inline)) __m512 SumsOf(const Products<sums>& products, int i) {
  __m512i whole = _mm512_load_si512(products[sums - 1][i]);
#pragma GCC unroll 2
  for (int sum = sums - 2; sum >= 0; --sum)
    whole = _mm512_add_epi32(_mm512_slli_epi32(whole, 8), _mm512_load_si512(products[sum][i]));
  return _mm512_cvtepi32_ps(whole);
}

// form(turn, step) forms the products of a step, in the registers of its turn, of which rows are `bytes` bytes.
// add(products, step) is called with them later.
template <int sums, int bytes, typename Form, typename Add>
inline __attribute__((always_inline)) void SumSteps(int64_t steps, const Form& form, const Add& add) {
  alignas(64) Products<sums> products[2];
  for (int64_t i = 0; i < steps + 2; i += 2) {
    const bool second_before = i > 0 && i - 1 < steps;
    if (i < steps) form(std::integral_constant<int, 0>(), i);
    if (second_before) Keep<sums, 1, bytes>(products);
    if (i > 0) add(products[0], i - 2);
    if (i + 1 < steps) form(std::integral_constant<int, 1>(), i + 1);
    if (i < steps) Keep<sums, 0, bytes>(products);
    if (second_before) add(products[1], i - 1);
  }
}

// Integers of up to 16 rows stand in rows of 64 bytes for each step: 32 lower bytes, then 32 upper ones.
constexpr int64_t kRowBytes = 2 * kStep;
constexpr int64_t kRowsBytes = kTileRows * kRowBytes;
constexpr int64_t kCacheBytes = kStep / 4 * kTileRowBytes;  // of 32 integers of 16 slots, or of 16 columns

// Where rows of a tile are rows: the registers of these, and of what is in the cache. Sums come before.
constexpr int kOfRows = 4, kOfCache = 6;

TileConfig ConfigOfRows() {
  TileConfig config;
  for (int tile = 0; tile < kOfRows; ++tile) config.Set(tile, kTileRows, kTileRowBytes);
  for (int tile = kOfRows; tile < kOfCache; ++tile) config.Set(tile, kTileRows, kStep);
  for (int tile = kOfCache; tile < 8; ++tile) config.Set(tile, kStep / 4, kTileRowBytes);
  return config;
}

// Totals of R rows over steps: of rows [steps, kRowsBytes] times what is in the cache [steps, kCacheBytes], times the
// columns' scales [steps, 16].
template <int R>
inline __attribute__((always_inline)) void SumRows(const uint8_t* rows, const uint8_t* cache, const float* scales,
                                                   int64_t steps, __m512* total) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) total[r] = _mm512_setzero_ps();
  const auto form = [&](auto turn, int64_t step) __attribute__((always_inline)) {
    LoadTile<kOfCache + turn>(cache + step * kCacheBytes, kTileRowBytes);
    LoadTile<kOfRows>(rows + step * kRowsBytes, kRowBytes);
    ClearTile<kSum<2, turn, 0>>();
    MultiplyTiles<kSum<2, turn, 0>, kOfRows, false, kOfCache + turn, true>();
    LoadTile<kOfRows + 1>(rows + step * kRowsBytes + kStep, kRowBytes);
    ClearTile<kSum<2, turn, 1>>();
    MultiplyTiles<kSum<2, turn, 1>, kOfRows + 1, true, kOfCache + turn, true>();
  };
  const auto add = [&](const Products<2>& products, int64_t step) __attribute__((always_inline)) {
    const __m512 scale = _mm512_loadu_ps(scales + step * 16);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) total[r] = _mm512_fmadd_ps(SumsOf<2>(products, r), scale, total[r]);
  };
  SumSteps<2, kTileRowBytes>(steps, form, add);
}

// Calls body(R) with the rows of a tile that are computed, as a constant.
template <typename Body>
inline void WithRows(int64_t rows, const Body& body) {
  if (rows > kTileRows / 2) body(std::integral_constant<int, kTileRows>());
  else body(std::integral_constant<int, kTileRows / 2>());
}

// Where the integers of slots stand, a byte each: in the cache, or in `spread` [slots, width], where codes of four bits
// are spread to. See PairTable for their order.
template <int64_t slots>
void FindBytes(const KvArray& array, const Places<slots>& places, uint8_t* spread, const uint8_t** bytes) {
  const __m128i integers = _mm512_cvtepi32_epi8(Avx512::LoadTable(array.type->table));
  const __m512i table = _mm512_broadcast_i32x4(integers), low = _mm512_set1_epi8(15);
  const __m512i twice = _mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3), shifts = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4);
  for (int64_t i = 0; i < slots; ++i) {
    const auto* packed = bytes[i] = static_cast<const uint8_t*>(places.codes[i]);
    if (array.type->kind == KvKind::kBytes) continue;
    bytes[i] = spread;
    for (int64_t g = 0; g < array.groups; g += 2, packed += kStep, spread += 2 * kStep) {
      const __m512i both = _mm512_permutexvar_epi64(twice, _mm512_castsi256_si512(Avx512::Load32(packed)));
      const __m512i codes = _mm512_and_si512(_mm512_srlv_epi64(both, shifts), low);
      _mm512_storeu_si512(spread, _mm512_shuffle_epi8(table, codes));
    }
  }
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_ATTENTION_AMX_PRODUCTS_H_
