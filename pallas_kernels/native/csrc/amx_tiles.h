// Tiles of AMX: eight registers of up to 16 rows of 64 bytes. For files that are compiled for AMX, hence the anonymous
// namespace.
#ifndef SPECJAX_AMX_TILES_H_
#define SPECJAX_AMX_TILES_H_

#include <cstdint>

namespace specjax {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileRowBytes = 64;

struct alignas(64) TileConfig {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void Set(int tile, int tile_rows, int bytes) {
    rows[tile] = tile_rows;
    row_bytes[tile] = bytes;
  }
};

// Tiles are in use while it lives.
class TilesInUse {
 public:
  explicit TilesInUse(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }
  ~TilesInUse() { asm volatile("tilerelease"); }
  TilesInUse(const TilesInUse&) = delete;
  TilesInUse& operator=(const TilesInUse&) = delete;
};

template <int tile>
inline __attribute__((always_inline)) void LoadTile(const void* rows, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(stride), "i"(tile) : "memory");
}

using TileSums = int32_t[kTileRows][kTileRowBytes / 4];

// Rows of the tile, of `row_bytes` each, stand behind each other. The compiler is told of what is written, so that it
// keeps everything else in registers.
template <int tile, int row_bytes = kTileRowBytes>
inline __attribute__((always_inline)) void StoreTile(TileSums& sums) {
  asm volatile("tilestored %%tmm%c3, (%1,%2,1)"
               : "=m"(sums)
               : "r"(&sums), "r"(int64_t{row_bytes}), "i"(tile));
}

template <int tile>
inline __attribute__((always_inline)) void ClearTile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(tile));
}

// Adds to tile `sums` the products of the bytes of the rows of tile a with those of the columns of tile b, of which a
// row has four bytes of each column.
template <int sums, int a, bool a_signed, int b, bool b_signed>
inline __attribute__((always_inline)) void MultiplyTiles() {
  if constexpr (a_signed && b_signed) asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(a), "i"(b));
  else if constexpr (a_signed) asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(a), "i"(b));
  else if constexpr (b_signed) asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(a), "i"(b));
  else asm volatile("tdpbuud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(a), "i"(b));
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_AMX_TILES_H_
