// What a block format is, see pallas_kernels/matmul/formats.py; `formats.h` has those that there are.
#ifndef SPECJAX_QUANT_MATMUL_FORMAT_H_
#define SPECJAX_QUANT_MATMUL_FORMAT_H_

#include <cstdint>
#include <string_view>

namespace specjax {

inline constexpr int kLanes = 16;             // rows of a panel
inline constexpr int kGroup = 32;             // columns of a group
inline constexpr int kQuads = 8;              // quads of columns in a group
inline constexpr int kVector = 64;            // bytes of a vector: 16 rows x 4 columns
inline constexpr int kStep = 8;               // groups that are decoded at a time; a block of the K formats
inline constexpr int kMostParts = 3;          // in which the bits of integers lie

enum class Scales {
  kOne,               // per group: float16 d
  kAffine,            // per group: float16 d, float16 m; value = d code + m
  kHalves,            // per group: float16 for columns 0..15, float16 for columns 16..31
  kSuperAffine,       // per 8 groups: float16 d, dmin; then per group uint8 s, m; value = d s code - dmin m
  kSuperSigned,       // per 8 groups: float16 d; then per group int8 s; value = d s code
  kSuperSignedHalves  // per 8 groups: float16 d; then per group int8 s for columns 0..15, for 16..31
};

enum class Codebook { kNone, kIq4, kTq3, kTq4 };

// Where some bits of integers lie in a block, see pallas_kernels/matmul/bits.py.
struct Bits {
  int at, width, run, to, first, count;
  int shift, per_word;  // where in a word the first of so many runs begins
  int word, flipped;
};

// Integers of a block; parts of no width are none.
struct Integers {
  int count, offset;
  Bits bits[kMostParts];
};

// Bits of each of the integers that are multiplied: codes, or bytes of the codebook.
constexpr int ValueBits(int plane0, int plane1, Codebook codebook) {
  return codebook == Codebook::kNone ? plane0 + plane1 : 8;
}

struct Format {
  std::string_view name;
  int values, bytes;     // of a block in a file
  int plane0, plane1;    // bits of the planes, low bits first
  int offset;            // what is subtracted from a code, or from a byte of the codebook
  Scales scales;
  Codebook codebook;
  int first_half;        // where the numbers of float16 begin
  Integers codes;
  Integers byte_scales[2];  // scales and minima where they are bytes; those of no count are none

  constexpr int code_bytes() const { return kVector * (plane0 + plane1); }  // of a group

  constexpr int value_bits() const { return ValueBits(plane0, plane1, codebook); }

  constexpr bool super() const { return values == 256; }

  constexpr bool affine() const { return scales == Scales::kAffine || scales == Scales::kSuperAffine; }

  // Numbers of float16 of a block.
  constexpr int halves() const { return affine() || scales == Scales::kHalves ? 2 : 1; }

  // Of a block for the K formats, of a group for the others.
  constexpr int scale_bytes() const {
    return kLanes * (2 * halves() + byte_scales[0].count + byte_scales[1].count);
  }
};

}  // namespace specjax

#endif  // SPECJAX_QUANT_MATMUL_FORMAT_H_
