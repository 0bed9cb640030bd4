// A few groups of a panel to plain bytes and float scales. Included by translation units of one instruction set each,
// hence the anonymous namespace: nothing here may be shared between them.
#ifndef SPECJAX_QUANT_MATMUL_DECODE_H_
#define SPECJAX_QUANT_MATMUL_DECODE_H_

#include <cstdint>
#include <cstring>

#include "quant_matmul/panels.h"

namespace specjax {
namespace {

using Bytes = uint8_t __attribute__((vector_size(kVector)));
using Shorts = uint16_t __attribute__((vector_size(kVector)));

// Bits [from, from + width) of each byte, moved to bit `to`.
template <int from, int width, int to>
inline __attribute__((always_inline)) Bytes Field(Bytes packed) {
  constexpr uint16_t kMask = static_cast<uint16_t>(((1 << width) - 1) << to) * 0x0101;
  Shorts shifted = reinterpret_cast<Shorts>(packed);
  if constexpr (from > to) shifted = shifted >> (from - to);
  if constexpr (from < to) shifted = shifted << (to - from);
  return reinterpret_cast<Bytes>(shifted & kMask);
}

// Codes of quads j.. of a group whose planes have P0 and P1 bits, to `store(j, codes)`.
template <int P0, int P1, int j = 0, typename Store>
inline __attribute__((always_inline)) void Quads(const Bytes* planes, const Store& store) {
  if constexpr (j < kQuads) {
    Bytes codes = Field<j / P0 * P0, P0, 0>(planes[j % P0]);
    if constexpr (P1 > 0) codes |= Field<j / P1 * P1, P1, P0>(planes[P0 + j % P1]);
    store(j, codes);
    Quads<P0, P1, j + 1>(planes, store);
  }
}

struct Tables {
  alignas(16) uint8_t high[16];
  alignas(16) uint8_t low[16];
  float step;  // a centroid is step * (256 * (high - 128) + low - 128)
};

constexpr Tables kIq4Tables = {
    {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241}, {}, 1.0f};

constexpr Tables CentroidTables(const float* centroids, int count, float largest) {
  Tables tables{};
  tables.step = largest / (127 * 256);
  for (int i = 0; i < 16; ++i) {
    const float scaled = centroids[i % count] / largest * (127 * 256);
    const int code = static_cast<int>(scaled < 0 ? scaled - 0.5f : scaled + 0.5f);
    const int high = (code + 128 + 65536) / 256 - 256;
    tables.high[i] = static_cast<uint8_t>(high + 128);
    tables.low[i] = static_cast<uint8_t>(code - 256 * high + 128);
  }
  return tables;
}

constexpr float kTq3Centroids[] = {-1.996684f, -1.291398f, -0.740341f, -0.247508f,
                                   0.230106f,  0.725222f,  1.277503f,  1.988943f};
constexpr float kTq4Centroids[] = {-2.732590f, -2.069017f, -1.618046f, -1.256231f, -0.942340f, -0.656759f,
                                   -0.388048f, -0.128395f, 0.128395f,  0.388048f,  0.656759f,  0.942340f,
                                   1.256231f,  1.618046f,  2.069017f,  2.732590f};
constexpr Tables kTq3Tables = CentroidTables(kTq3Centroids, 8, 1.996684f);
constexpr Tables kTq4Tables = CentroidTables(kTq4Centroids, 16, 2.732590f);

// Up to kStep groups, decoded.
struct Step {
  const uint8_t* high;  // [group][quad][64]: the codes, or the upper bytes of centroids
  const uint8_t* low;   // the lower bytes of centroids
  alignas(64) uint8_t high_bytes[kStep * kPlain];
  alignas(64) uint8_t low_bytes[kStep * kPlain];
  alignas(64) float scale[kStep][2][kLanes];  // of the group, or of its halves
  alignas(64) float minimum[kStep][kLanes];   // what is added to every value of the group
};

template <typename Isa, int P0, int P1, Codebook book>
void DecodePlanes(const uint8_t* in, int groups, Step* step) {
  constexpr const Tables& kTables = book == Codebook::kTq3   ? kTq3Tables
                                    : book == Codebook::kTq4 ? kTq4Tables
                                                             : kIq4Tables;
  for (int group = 0; group < groups; ++group, in += kVector * (P0 + P1)) {
    Bytes planes[P0 + P1];
    std::memcpy(planes, in, sizeof planes);
    Quads<P0, P1>(planes, [&](int j, Bytes codes) __attribute__((always_inline)) {
      const int at = kPlain * group + kVector * j;
      if constexpr (book == Codebook::kTq3 || book == Codebook::kTq4) {
        const Bytes low = Isa::Lookup(kTables.low, codes);
        std::memcpy(step->low_bytes + at, &low, kVector);
      }
      if constexpr (book != Codebook::kNone) codes = Isa::Lookup(kTables.high, codes);
      std::memcpy(step->high_bytes + at, &codes, kVector);
    });
  }
}

template <typename Isa>
void DecodeCodes(const Format& format, const uint8_t* in, int groups, Step* step) {
  step->high = step->high_bytes;
  step->low = step->low_bytes;
  if (format.plane0 == 8) {
    step->high = in;
  } else if (format.codebook == Codebook::kIq4) {
    DecodePlanes<Isa, 4, 0, Codebook::kIq4>(in, groups, step);
  } else if (format.codebook == Codebook::kTq3) {
    DecodePlanes<Isa, 2, 1, Codebook::kTq3>(in, groups, step);
  } else if (format.codebook == Codebook::kTq4) {
    DecodePlanes<Isa, 4, 0, Codebook::kTq4>(in, groups, step);
  } else if (format.plane1 == 1) {
    DecodePlanes<Isa, 4, 1, Codebook::kNone>(in, groups, step);
  } else if (format.plane1 == 2) {
    DecodePlanes<Isa, 4, 2, Codebook::kNone>(in, groups, step);
  } else {
    DecodePlanes<Isa, 4, 0, Codebook::kNone>(in, groups, step);
  }
}

template <typename Isa>
void DecodeScales(const Format& format, const uint8_t* in, int groups, Step* step) {
  using Floats = typename Isa::Floats;
  constexpr int kHalf = 2 * kLanes;  // bytes of 16 values of float16
  switch (format.scales) {
    case Scales::kOne:
      for (int g = 0; g < groups; ++g, in += kHalf) Isa::Store(step->scale[g][0], Isa::Half(in));
      break;
    case Scales::kAffine:
      for (int g = 0; g < groups; ++g, in += 2 * kHalf) {
        Isa::Store(step->scale[g][0], Isa::Half(in));
        Isa::Store(step->minimum[g], Isa::Half(in + kHalf));
      }
      break;
    case Scales::kHalves: {
      const Floats unit = Isa::Set(format.codebook == Codebook::kTq3 ? kTq3Tables.step : kTq4Tables.step);
      for (int g = 0; g < groups; ++g, in += 2 * kHalf) {
        Isa::Store(step->scale[g][0], Isa::Multiply(Isa::Half(in), unit));
        Isa::Store(step->scale[g][1], Isa::Multiply(Isa::Half(in + kHalf), unit));
      }
      break;
    }
    case Scales::kSuperAffine: {
      const Floats d = Isa::Half(in), negative = Isa::Multiply(Isa::Half(in + kHalf), Isa::Set(-1.0f));
      in += 2 * kHalf;
      for (int g = 0; g < groups; ++g, in += 2 * kLanes) {
        Isa::Store(step->scale[g][0], Isa::Multiply(d, Isa::Unsigned(in)));
        Isa::Store(step->minimum[g], Isa::Multiply(negative, Isa::Unsigned(in + kLanes)));
      }
      break;
    }
    case Scales::kSuperSigned: {
      const Floats d = Isa::Half(in);
      in += kHalf;
      for (int g = 0; g < groups; ++g, in += kLanes) Isa::Store(step->scale[g][0], Isa::Multiply(d, Isa::Signed(in)));
      break;
    }
    case Scales::kSuperSignedHalves: {
      const Floats d = Isa::Half(in);
      in += kHalf;
      for (int g = 0; g < groups; ++g, in += 2 * kLanes) {
        Isa::Store(step->scale[g][0], Isa::Multiply(d, Isa::Signed(in)));
        Isa::Store(step->scale[g][1], Isa::Multiply(d, Isa::Signed(in + kLanes)));
      }
      break;
    }
  }
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_QUANT_MATMUL_DECODE_H_
