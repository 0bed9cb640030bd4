// The codes of a panel as bytes, its scales as floats. Included by translation units of one instruction set each,
// hence the anonymous namespace: nothing here may be shared between them.
#ifndef SPECJAX_QUANT_MATMUL_DECODE_H_
#define SPECJAX_QUANT_MATMUL_DECODE_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "quant_matmul/panels.h"

namespace specjax {
namespace {

// Bytes of a register. Compilers make poor code of vectors that are longer.
#if defined(__AVX512BW__)
constexpr int kRegister = 64;
#elif defined(__AVX2__)
constexpr int kRegister = 32;
#else
constexpr int kRegister = 16;
#endif
constexpr int kParts = kVector / kRegister;

using Part = uint8_t __attribute__((vector_size(kRegister)));
using Shorts = uint16_t __attribute__((vector_size(kRegister)));

struct Bytes {
  Part part[kParts];
};

// Bits [from, from + width) of each byte, moved to bit `to`.
template <int from, int width, int to>
inline __attribute__((always_inline)) Part Field(Part packed) {
  if constexpr (width == 8) return packed;
  constexpr uint16_t kMask = static_cast<uint16_t>(((1 << width) - 1) << to) * 0x0101;
  Shorts shifted = reinterpret_cast<Shorts>(packed);
  if constexpr (from > to) shifted = shifted >> (from - to);
  if constexpr (from < to) shifted = shifted << (to - from);
  return reinterpret_cast<Part>(shifted & kMask);
}

// Calls each(j) for j = begin .. end - 1, as constants: compilers keep arrays in registers only where every index is one
// early on.
template <int begin, int end, typename Each>
inline __attribute__((always_inline)) void ForEach(const Each& each) {
  if constexpr (begin < end) {
    each(std::integral_constant<int, begin>{});
    ForEach<begin + 1, end>(each);
  }
}

struct Tables {
  alignas(16) uint8_t high[16];
  alignas(16) uint8_t low[16];
  float step;  // a centroid is step * (256 * (high - 128) + low - 128)
};

// Of integers within those of a signed byte.
constexpr Tables ByteTables(const int* codebook) {
  Tables tables{};
  tables.step = 1.0f;
  for (int i = 0; i < 16; ++i) tables.high[i] = static_cast<uint8_t>(codebook[i] + 128);
  return tables;
}

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

constexpr Tables kIq4Tables = ByteTables(kIq4Codebook);
constexpr Tables kTq3Tables = CentroidTables(kTq3Centroids, 8, -kTq3Centroids[0]);
constexpr Tables kTq4Tables = CentroidTables(kTq4Centroids, 16, kTq4Centroids[15]);

// How the codes of a format are read: widths of its planes, and what they stand for.
template <int plane0, int plane1 = 0, Codebook book = Codebook::kNone>
struct Coding {
  static constexpr int kBytes = kVector * (plane0 + plane1);  // of a group
  static constexpr int kBits = ValueBits(plane0, plane1, book);
  static constexpr bool kInMemory = true;

  template <int quad>
  static inline __attribute__((always_inline)) Bytes Codes(const uint8_t* group) {
    Bytes codes = Vector(group, quad % plane0);
    ForEach<0, kParts>([&](auto i) __attribute__((always_inline)) {
      codes.part[i] = Field<quad / plane0 * plane0, plane0, 0>(codes.part[i]);
    });
    if constexpr (plane1 > 0) {
      const Bytes upper = Vector(group, plane0 + quad % plane1);
      ForEach<0, kParts>([&](auto i) __attribute__((always_inline)) {
        codes.part[i] |= Field<quad / plane1 * plane1, plane1, plane0>(upper.part[i]);
      });
    }
    return codes;
  }

  // What is multiplied: codes less the format's offset, or the upper (0) and lower (1) bytes of centroids, less 128.
  template <typename Isa, int quad, int byte>
  static inline __attribute__((always_inline)) Bytes Values(const uint8_t* group) {
    constexpr const Tables& kTables = book == Codebook::kTq3   ? kTq3Tables
                                      : book == Codebook::kTq4 ? kTq4Tables
                                                               : kIq4Tables;
    if constexpr (book == Codebook::kNone) return Codes<quad>(group);
    else return Isa::Lookup(byte == 0 ? kTables.high : kTables.low, Codes<quad>(group));
  }

 private:
  static inline __attribute__((always_inline)) Bytes Vector(const uint8_t* group, int i) {
    Bytes vector;
    ForEach<0, kParts>([&](auto part) __attribute__((always_inline)) {
      std::memcpy(&vector.part[part], group + kVector * i + kRegister * part, kRegister);
    });
    return vector;
  }
};

// The scales of up to kStep groups, as floats.
struct Step {
  alignas(64) float scale[kStep][2][kLanes];  // of the group, or of its halves
  alignas(64) float minimum[kStep][kLanes];   // what is added to every value of the group
};

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
