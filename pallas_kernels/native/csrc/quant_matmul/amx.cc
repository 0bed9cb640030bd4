// x86-64 with AVX-512 and AMX, which multiplies 16 rows of activations with 16 rows of a matrix at a time.
//
// A group's products are formed in tiles, stored, and scaled by vectors. They are the same integers that vectors form,
// scaled in the same order: a row has the same bits whether its products come from tiles or not.
#include <immintrin.h>

#include <cstdint>

#include "quant_matmul/avx512vnni.h"

namespace specjax {

#if defined(__AMX_INT8__)

namespace {

constexpr int kVectorRows = 16;  // as many are as fast by vectors

struct alignas(64) TileConfig {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Numbers of tiles. Sums go round among four, what is multiplied among two each.
constexpr int kSumTiles = 4, kActivations = 4, kCodes = 6;

template <int tile>
inline __attribute__((always_inline)) void Load(const void* rows, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(stride), "i"(tile) : "memory");
}

using TileSums = int32_t[kTileRows][kLanes];

// The compiler is told of what is written, so that it keeps everything else in registers.
template <int tile>
inline __attribute__((always_inline)) void Store(TileSums& sums) {
  asm volatile("tilestored %%tmm%c3, (%1,%2,1)" : "=m"(sums) : "r"(&sums), "r"(int64_t{kVector}), "i"(tile));
}

template <int sums, int activations, int codes>
inline __attribute__((always_inline)) void MultiplyTiles() {
  asm volatile("tilezero %%tmm%c0\n\ttdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(activations), "i"(codes));
}

// What a group takes: products of each half, each byte of the codes and each plane of the activations.
template <Kind kind, bool wide>
struct Shape {
  static constexpr int kPlanes = wide ? 2 : 1;
  static constexpr int kBytes = kind == Kind::kCentroids ? 2 : 1;
  static constexpr int kHalves = kind == Kind::kHalves || kind == Kind::kCentroids ? 2 : 1;
  static constexpr int kProducts = kPlanes * kBytes * kHalves;
  static constexpr int kColumns = kGroup / kHalves;
};

template <int kBytes>
using StepCodes = uint8_t[kStep][kBytes][kQuads][kVector];

// The codes of a step, signed: less the format's offset.
template <typename Isa, typename Codes, int kBytes>
void DecodeStep(const Format& format, const uint8_t* codes, StepCodes<kBytes>& out) {
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(format.offset));
  for (int g = 0; g < kStep; ++g, codes += Codes::kBytes) {
    Prefetch(codes + kAhead, Codes::kBytes);
    ForEach<0, kBytes>([&](auto byte) __attribute__((always_inline)) {
      ForEach<0, kQuads>([&](auto quad) __attribute__((always_inline)) {
        const Bytes values = Codes::template Values<Isa, quad.value, byte.value>(codes);
        _mm512_store_si512(out[g][byte][quad], _mm512_sub_epi8(reinterpret_cast<__m512i>(values.part[0]), offset));
      });
    });
  }
}

// Adds to totals [R, 16] what the products of a group with R rows are, scaled.
//
// While tiles are in use, one of the two ports does no arithmetic of floats (measured on a Xeon with AMX), so there is as
// little of it as can be.
template <typename Isa, Kind kind, bool wide, int R>
inline __attribute__((always_inline)) void Scale(const TileSums* sums, const Step& step, int g, const uint8_t* x,
                                                 __m512* total) {
  using Its = Shape<kind, wide>;
  // An integer below 2^22 that is added to the bits of 1.5 * 2^23 is added to the number.
  const __m512 kOffset = _mm512_set1_ps(12582912.0f);
  const __m512i kBytesUp = _mm512_broadcast_i32x4(_mm_setr_epi8(-1, 0, 1, 2, -1, 4, 5, 6, -1, 8, 9, 10, -1, 12, 13, 14));
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
    const Rounded& rounded = Isa::RoundedOf(x + Isa::RecordBytes(wide) * r, wide);
    total[r] = _mm512_fmadd_ps(product, _mm512_set1_ps(rounded.scale), total[r]);
    if constexpr (kind == Kind::kAffine)
      total[r] = _mm512_fmadd_ps(_mm512_load_ps(step.minimum[g]), _mm512_set1_ps(rounded.scaled_sum), total[r]);
  }
}

// Adds the products of a step with the first R rows of a tile to totals [R, 16].
template <typename Isa, Kind kind, bool wide, int R>
void TileBlock(const StepCodes<Shape<kind, wide>::kBytes>& codes, const Step& step, const uint8_t* x,
               int64_t group_bytes, float* totals) {
  using Its = Shape<kind, wide>;
  // To store a tile and to form one takes 16 cycles each, and at the same time where they are two products apart.
  constexpr int kProducts = Its::kProducts, kStoreLag = 2;
  constexpr int kAtOnce = kProducts < kSumTiles ? kSumTiles / kProducts : 1;  // groups until the first tile again
  constexpr int kScaleLag = (kStoreLag + kProducts - 1) / kProducts, kKept = 2 * kScaleLag;
  alignas(64) TileSums sums[kKept][kProducts];
  // A plain array, never named in a lambda: so GCC keeps it in registers.
  __m512 total[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) total[r] = _mm512_load_ps(totals + kLanes * r);

  const auto form = [&](auto i, auto product, int g) __attribute__((always_inline)) {
    constexpr int kAt = i * kProducts + product, kPair = kAt / Its::kPlanes, kPlane = product % Its::kPlanes;
    constexpr int kByte = product / Its::kPlanes % Its::kBytes, kHalf = product / Its::kPlanes / Its::kBytes;
    if constexpr (kPlane == 0) Load<kCodes + kPair % 2>(codes[g][kByte][kHalf * kQuads / 2], kVector);
    Load<kActivations + kAt % 2>(x + g * group_bytes + kPlane * kGroup + kHalf * Its::kColumns, Isa::RecordBytes(wide));
    MultiplyTiles<kAt % kSumTiles, kActivations + kAt % 2, kCodes + kPair % 2>();
    constexpr int kLate = (product + kStoreLag * kProducts - kStoreLag) % kProducts;
    const int late = g - (kStoreLag + kLate - product) / kProducts;
    if (late >= 0) Store<(kAt + kSumTiles - kStoreLag) % kSumTiles>(sums[late % kKept][kLate]);
  };
  for (int begin = 0; begin < kStep; begin += kAtOnce) {
    ForEach<0, kAtOnce>([&](auto i) __attribute__((always_inline)) {
      ForEach<0, kProducts>([&](auto product) __attribute__((always_inline)) { form(i, product, begin + i); });
    });
#pragma GCC unroll 4
    for (int i = 0; i < kAtOnce; ++i) {
      const int g = begin + i - kScaleLag;
      if (g >= 0) Scale<Isa, kind, wide, R>(sums[g % kKept], step, g, x + g * group_bytes, total);
    }
  }
  ForEach<0, kStoreLag>([&](auto i) __attribute__((always_inline)) {
    constexpr int kAt = kStep * kProducts - kStoreLag + i;
    Store<kAt % kSumTiles>(sums[kAt / kProducts % kKept][kAt % kProducts]);
  });
  for (int g = kStep - kScaleLag; g < kStep; ++g)
    Scale<Isa, kind, wide, R>(sums[g % kKept], step, g, x + g * group_bytes, total);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) _mm512_store_ps(totals + kLanes * r, total[r]);
}

// As ByRows, by tiles where there are enough rows. Tiles are in use while it lives.
template <typename Isa, typename Codes, Kind kind, bool wide>
class ByTiles {
  using Its = Shape<kind, wide>;

 public:
  ByTiles(const Format& format, int64_t rows) : format_(format), rows_(rows), by_rows_(format, rows) {
    if (rows <= kVectorRows) return;
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = tile < kActivations || tile >= kCodes ? kVector : Its::kColumns;
      config.rows[tile] = tile < kCodes ? kTileRows : Its::kColumns / 4;
    }
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  ~ByTiles() {
    if (rows_ > kVectorRows) asm volatile("tilerelease");
  }
  ByTiles(const ByTiles&) = delete;
  ByTiles& operator=(const ByTiles&) = delete;

  void Add(const uint8_t* codes, const Step& step, int groups, const uint8_t* x, int64_t group_bytes,
           float* totals) const {
    if (rows_ <= kVectorRows || groups < kStep) return by_rows_.Add(codes, step, groups, x, group_bytes, totals);
    alignas(64) StepCodes<Its::kBytes> decoded;
    DecodeStep<Isa, Codes, Its::kBytes>(format_, codes, decoded);
    constexpr int kHalfTile = kTileRows / 2;
    for (int64_t row = 0; row < rows_; row += kTileRows) {
      const auto block = rows_ - row > kHalfTile ? TileBlock<Isa, kind, wide, kTileRows>
                                                 : TileBlock<Isa, kind, wide, kHalfTile>;
      block(decoded, step, x + row * Isa::RecordBytes(wide), group_bytes, totals + row * kLanes);
    }
  }

 private:
  const Format& format_;
  int64_t rows_;
  ByRows<Isa, Codes, kind, wide> by_rows_;
};

}  // namespace

const QuantKernels& QuantKernels::ForAmx() {
  static constexpr QuantKernels kKernels = KernelsOf<Avx512Vnni, ByTiles>();
  return kKernels;
}

#else  // a compiler that does not know it; see HasAmx

const QuantKernels& QuantKernels::ForAmx() { return ForAvx512Vnni(); }

#endif

}  // namespace specjax
