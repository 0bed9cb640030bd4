// x86-64 with AVX-512 and AMX, which multiplies 16 rows of activations with 16 rows of a matrix at a time.
//
// A group's products are formed in tiles, stored, and scaled by vectors. They are the same integers that vectors form,
// scaled in the same order: a row has the same bits whether its products come from tiles or not.
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "amx_tiles.h"
#include "quant_matmul/avx512vnni.h"

namespace specjax {

#if defined(__AMX_INT8__)

namespace {

constexpr int kHalfTile = kTileRows / 2;  // tiles of so many rows take half as long

// Rounded activations of a slab, for tiles: of each group the bytes of all rows, then what else there is of each. Rows
// are padded to whole tiles; what the padding holds is multiplied and then ignored.
template <bool wide>
struct Slab {
  static constexpr int kRowBytes = (wide ? 2 : 1) * kGroup;  // upper bytes, then lower ones

  static int64_t Padded(int64_t rows) { return (rows + kTileRows - 1) / kTileRows * kTileRows; }
  static int64_t GroupBytes(int64_t rows) { return Padded(rows) * (kRowBytes + sizeof(Rounded)); }
  static int64_t RoundedAt(int64_t rows, int64_t row) { return Padded(rows) * kRowBytes + row * sizeof(Rounded); }

  static void Round(const Format& format, const float* x, int64_t width, int64_t rows, int64_t row, uint8_t* group) {
    for (int64_t column = 0; column < width; column += kGroup, group += GroupBytes(rows)) {
      RoundGroup<Avx512Vnni>(format, wide, x + column, [=](const int32_t* codes) {
        BytePlanes::Split<wide>(codes, reinterpret_cast<int8_t*>(group + row * kRowBytes));
        return reinterpret_cast<Rounded*>(group + RoundedAt(rows, row));
      });
    }
  }
};

// Numbers of tiles. Sums go round among four, what is multiplied among two each.
constexpr int kSumTiles = 4, kActivations = 4, kCodes = 6;

// What a group takes: products of each half, each byte of the codes and each plane of the activations.
template <Kind kind, bool wide>
struct Shape {
  static constexpr int kPlanes = wide ? 2 : 1;
  static constexpr int kBytes = kind == Kind::kCentroids ? 2 : 1;
  static constexpr int kHalves = kind == Kind::kHalves || kind == Kind::kCentroids ? 2 : 1;
  static constexpr int kProducts = kPlanes * kBytes * kHalves;
  static constexpr int kColumns = kGroup / kHalves;
  static constexpr int kKept = std::max(4, 2 * kProducts);  // products in memory
};

template <int kBytes>
using GroupCodes = uint8_t[kBytes][kQuads][kVector];

// The codes of groups, signed: less the format's offset.
template <typename Isa, typename Codes, int kBytes>
void DecodeGroups(const Format& format, const uint8_t* codes, int groups, GroupCodes<kBytes>* out) {
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(format.offset));
  for (int g = 0; g < groups; ++g, codes += Codes::kBytes) {
    AskAhead<Codes>(codes);
    ForEach<0, kBytes>([&](auto byte) __attribute__((always_inline)) {
      ForEach<0, kQuads>([&](auto quad) __attribute__((always_inline)) {
        const Bytes values = Codes::template Values<Isa, quad.value, byte.value>(codes);
        _mm512_store_si512(out[g][byte][quad], _mm512_sub_epi8(reinterpret_cast<__m512i>(values.part[0]), offset));
      });
    });
  }
}

// A tile's rows of one group.
struct TileOfRows {
  const uint8_t *bytes, *rounded;

  TileOfRows Later(int64_t on) const { return {bytes + on, rounded + on}; }
};

// Adds to totals [R, 16] what the products of a group with R rows are, scaled.
//
// While tiles are in use, vectors of 64 bytes take about a cycle each, instead of half a one (measured on a Xeon with
// AMX): so there are as few operations on them as can be.
template <typename Its, Kind kind, bool wide, int R>
inline __attribute__((always_inline)) void Scale(const TileSums* sums, const Step& step, int g, const TileOfRows& x,
                                                 __m512* total) {
  // An integer below 2^22 that is added to the bits of 1.5 * 2^23 is added to the number.
  const __m512 kOffset = _mm512_set1_ps(12582912.0f);
  const __m512i kBytesUp =
      _mm512_broadcast_i32x4(_mm_setr_epi8(-1, 0, 1, 2, -1, 4, 5, 6, -1, 8, 9, 10, -1, 12, 13, 14));
  const auto sum = [=](int half, int byte, int r) __attribute__((always_inline)) {
    const int at = (half * Its::kBytes + byte) * Its::kPlanes;
    const __m512i first = _mm512_load_si512(sums[at][r]);
    return wide ? _mm512_add_epi32(_mm512_shuffle_epi8(first, kBytesUp), _mm512_load_si512(sums[at + 1][r])) : first;
  };
  const auto value = [=](int half, int r) __attribute__((always_inline)) {
    const __m512 first = _mm512_cvtepi32_ps(sum(half, 0, r));
    return Its::kBytes == 1 ? first
                            : _mm512_fmadd_ps(first, _mm512_set1_ps(256.0f), _mm512_cvtepi32_ps(sum(half, 1, r)));
  };
  const __m512 scale = _mm512_load_ps(step.scale[g][0]), less = _mm512_mul_ps(scale, -kOffset);
  const auto* const rounded = reinterpret_cast<const Rounded*>(x.rounded);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    __m512 product;
    if constexpr (wide || kind == Kind::kCentroids) {
      product = _mm512_mul_ps(value(0, r), scale);
    } else {
      // The offset times a scale is exact: scales are products of a half and a byte at most. Infinite ones become NaN.
      const __m512i bits = _mm512_add_epi32(sum(0, 0, r), _mm512_castps_si512(kOffset));
      product = _mm512_fmadd_ps(_mm512_castsi512_ps(bits), scale, less);
    }
    if constexpr (Its::kHalves == 2) product = _mm512_fmadd_ps(value(1, r), _mm512_load_ps(step.scale[g][1]), product);
    total[r] = _mm512_fmadd_ps(product, _mm512_set1_ps(rounded[r].scale), total[r]);
    if constexpr (kind == Kind::kAffine)
      total[r] = _mm512_fmadd_ps(_mm512_load_ps(step.minimum[g]), _mm512_set1_ps(rounded[r].scaled_sum), total[r]);
  }
}

// Forms the products 2 pair and 2 pair + 1, of `count` of the groups from x on.
template <typename Its, bool wide, int pair, int count>
inline __attribute__((always_inline)) void FormPair(const GroupCodes<Its::kBytes>* codes, const uint8_t* x,
                                                    int64_t group_bytes) {
  ForEach<0, std::min(2, count - 2 * pair)>([&](auto i) __attribute__((always_inline)) {
    constexpr int kAt = 2 * pair + i, kGroupAt = kAt / Its::kProducts, kPlane = kAt % Its::kPlanes;
    constexpr int kByte = kAt / Its::kPlanes % Its::kBytes, kHalf = kAt % Its::kProducts / Its::kPlanes / Its::kBytes;
    constexpr int kCodesTile = kCodes + kAt / Its::kPlanes % 2;
    if constexpr (kPlane == 0) LoadTile<kCodesTile>(codes[kGroupAt][kByte][kHalf * kQuads / 2], kVector);
    LoadTile<kActivations + i>(x + kGroupAt * group_bytes + kPlane * kGroup + kHalf * Its::kColumns,
                               Slab<wide>::kRowBytes);
    ClearTile<kAt % kSumTiles>();
    MultiplyTiles<kAt % kSumTiles, kActivations + i, true, kCodesTile, true>();
  });
}

// Stores the tiles of one of two pairs.
template <int pair>
inline __attribute__((always_inline)) void StorePair(TileSums* sums) {
  StoreTile<2 * pair>(sums[0]);
  StoreTile<2 * pair + 1>(sums[1]);
}

// Forms and scales the products of groups, from `pair` on. To form a tile and to store one takes 16 cycles each, and at
// the same time where they are two products apart: while a pair is formed, the one before it is stored, and groups that
// were stored before that are scaled.
template <typename Its, Kind kind, bool wide, int R, int groups, int pair>
inline __attribute__((always_inline)) void AddPairs(const GroupCodes<Its::kBytes>* codes, const Step& step,
                                                    const TileOfRows& x, int64_t group_bytes, TileSums* sums,
                                                    __m512* total) {
  constexpr int kCount = groups * Its::kProducts, kPairs = (kCount + 1) / 2;
  constexpr int kScaled = std::max(0, 2 * (pair - 2)) / Its::kProducts;
  constexpr int kStored = std::min(groups, std::max(0, 2 * (pair - 1)) / Its::kProducts);
  if constexpr (pair < kPairs) FormPair<Its, wide, pair, kCount>(codes, x.bytes, group_bytes);
  if constexpr (pair > 0 && pair <= kPairs) StorePair<(pair - 1) % 2>(sums + 2 * (pair - 1) % Its::kKept);
#pragma GCC unroll 8
  for (int g = kScaled; g < (pair > kPairs ? groups : kStored); ++g)
    Scale<Its, kind, wide, R>(sums + g * Its::kProducts % Its::kKept, step, g, x.Later(g * group_bytes), total);
  if constexpr (pair <= kPairs)
    AddPairs<Its, kind, wide, R, groups, pair + 1>(codes, step, x, group_bytes, sums, total);
}

// Adds the products of some groups with the first R rows of a tile to totals [R, 16].
template <typename Its, Kind kind, bool wide, int R, int groups>
void TileBlock(const GroupCodes<Its::kBytes>* codes, const Step& step, const TileOfRows& x, int64_t group_bytes,
               float* totals) {
  alignas(64) TileSums sums[Its::kKept];
  // A plain array, never named in a lambda: so GCC keeps it in registers.
  __m512 total[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) total[r] = _mm512_load_ps(totals + kLanes * r);
  AddPairs<Its, kind, wide, R, groups, 0>(codes, step, x, group_bytes, sums, total);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) _mm512_store_ps(totals + kLanes * r, total[r]);
}

// As ByRows, by tiles, which are in use while it lives.
template <typename Isa, typename Codes, Kind kind, bool wide>
class ByTiles {
  using Its = Shape<kind, wide>;

 public:
  static int64_t GroupBytes(int64_t rows) { return Slab<wide>::GroupBytes(rows); }

  ByTiles(const Format& format, int64_t rows) : format_(format), rows_(rows), in_use_(Config(rows)) {}

  void Add(const uint8_t* codes, const Step& step, int groups, const uint8_t* x, int64_t group_bytes,
           float* totals) const {
    alignas(64) GroupCodes<Its::kBytes> decoded[kStep];
    DecodeGroups<Isa, Codes, Its::kBytes>(format_, codes, groups, decoded);
    for (int64_t row = 0; row < rows_; row += kTileRows) {
      const TileOfRows tile = {x + row * Slab<wide>::kRowBytes, x + Slab<wide>::RoundedAt(rows_, row)};
      const auto add = rows_ - row > kHalfTile ? AddBlock<kTileRows> : AddBlock<kHalfTile>;
      add(decoded, step, groups, tile, group_bytes, totals + row * kLanes);
    }
  }

 private:
  template <int R>
  static void AddBlock(const GroupCodes<Its::kBytes>* codes, const Step& step, int groups, const TileOfRows& x,
                       int64_t group_bytes, float* totals) {
    if (groups == kStep) return TileBlock<Its, kind, wide, R, kStep>(codes, step, x, group_bytes, totals);
    for (int g = 0; g < groups; ++g) {
      Step one;
      std::memcpy(one.scale[0], step.scale[g], sizeof one.scale[0]);
      std::memcpy(one.minimum[0], step.minimum[g], sizeof one.minimum[0]);
      TileBlock<Its, kind, wide, R, 1>(codes + g, one, x.Later(g * group_bytes), group_bytes, totals);
    }
  }

  static TileConfig Config(int64_t rows) {
    TileConfig config;
    const int tile_rows = rows > kHalfTile ? kTileRows : kHalfTile;
    for (int tile = 0; tile < 8; ++tile) {
      if (tile >= kCodes) config.Set(tile, Its::kColumns / 4, kVector);
      else config.Set(tile, tile_rows, tile < kActivations ? kVector : Its::kColumns);
    }
    return config;
  }

  const Format& format_;
  const int64_t rows_;
  const TilesInUse in_use_;
};

}  // namespace

const QuantKernels& QuantKernels::ForAmx() {
  static constexpr QuantKernels kTiles = {
      [](const Format&, bool wide, int64_t rows) {
        return (wide ? Slab<true>::GroupBytes : Slab<false>::GroupBytes)(rows);
      },
      [](const Format& format, bool wide, const float* x, int64_t width, int64_t rows, int64_t row, uint8_t* records) {
        (wide ? Slab<true>::Round : Slab<false>::Round)(format, x, width, rows, row, records);
      },
      Multiply<Avx512Vnni, ByTiles>, Swiglu};
  static const QuantKernels kKernels = [] {
    QuantKernels kernels = ForAvx512Vnni();
    kernels.many = &kTiles;
    return kernels;
  }();
  return kKernels;
}

#else  // a compiler that does not know it; see HasAmx

const QuantKernels& QuantKernels::ForAmx() { return ForAvx512Vnni(); }

#endif

}  // namespace specjax
