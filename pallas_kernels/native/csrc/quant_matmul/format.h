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
inline constexpr int kPlain = kQuads * kVector;  // bytes of a group whose codes are bytes

enum class Scales {
  kOne,               // per group: float16 d
  kAffine,            // per group: float16 d, float16 m; value = d code + m
  kHalves,            // per group: float16 for columns 0..15, float16 for columns 16..31
  kSuperAffine,       // per 8 groups: float16 d, dmin; then per group uint8 s, m; value = d s code - dmin m
  kSuperSigned,       // per 8 groups: float16 d; then per group int8 s; value = d s code
  kSuperSignedHalves  // per 8 groups: float16 d; then per group int8 s for columns 0..15, for 16..31
};

enum class Codebook { kNone, kIq4, kTq3, kTq4 };

struct Format {
  std::string_view name;
  int values, bytes;     // of a block in a file
  int plane0, plane1;    // bits of the planes, low bits first
  int offset;            // what is subtracted from a code
  Scales scales;
  Codebook codebook = Codebook::kNone;

  constexpr int code_bytes() const { return kVector * (plane0 + plane1); }  // of a group

  constexpr bool super() const { return values == 256; }

  // Of a block for the K formats, of a group for the others.
  constexpr int scale_bytes() const {
    switch (scales) {
      case Scales::kOne:
        return 2 * kLanes;
      case Scales::kAffine:
      case Scales::kHalves:
        return 4 * kLanes;
      case Scales::kSuperAffine:
        return (2 * 2 + 8 * 2) * kLanes;
      case Scales::kSuperSigned:
        return (2 + 8) * kLanes;
      case Scales::kSuperSignedHalves:
        return (2 + 8 * 2) * kLanes;
    }
    return 0;
  }
};

}  // namespace specjax

#endif  // SPECJAX_QUANT_MATMUL_FORMAT_H_
