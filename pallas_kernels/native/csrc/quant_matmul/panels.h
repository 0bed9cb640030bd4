// The layout "panels16" of quantized matrices: sixteen rows of outputs side by side.
//
// A matrix [N, K] is cut into panels of 16 rows (the last one padded with zeros) and groups of 32 columns. A group's
// codes are unsigned integers in one or two planes of bits. In a plane of w bits, 64-byte vector i (of w) holds in its
// byte 4 * row + t, at bits f * w, the code of column 4 * (f * w + i) + t. A panel's groups follow each other; so do
// the planes of a group.
//
// Scales stand apart, in the order of the groups, each as 16 values, one per row. See `Scales`.
#ifndef SPECJAX_QUANT_MATMUL_PANELS_H_
#define SPECJAX_QUANT_MATMUL_PANELS_H_

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

inline constexpr Format kFormats[] = {
    {"Q8_0", 32, 34, 8, 0, 128, Scales::kOne},
    {"Q4_0", 32, 18, 4, 0, 8, Scales::kOne},
    {"Q4_1", 32, 20, 4, 0, 0, Scales::kAffine},
    {"Q5_0", 32, 22, 4, 1, 16, Scales::kOne},
    {"Q5_1", 32, 24, 4, 1, 0, Scales::kAffine},
    {"Q4_K", 256, 144, 4, 0, 0, Scales::kSuperAffine},
    {"Q5_K", 256, 176, 4, 1, 0, Scales::kSuperAffine},
    {"Q6_K", 256, 210, 4, 2, 32, Scales::kSuperSignedHalves},
    {"IQ4_NL", 32, 18, 4, 0, 128, Scales::kOne, Codebook::kIq4},
    {"IQ4_XS", 256, 136, 4, 0, 128, Scales::kSuperSigned, Codebook::kIq4},
    {"TQ3_1S", 32, 16, 2, 1, 128, Scales::kHalves, Codebook::kTq3},
    {"TQ4_1S", 32, 20, 4, 0, 128, Scales::kHalves, Codebook::kTq4},
};

inline const Format* FindFormat(std::string_view name) {
  for (const Format& format : kFormats) {
    if (format.name == name) return &format;
  }
  return nullptr;
}

// What a panel of `width` columns takes.
inline int64_t PanelCodeBytes(const Format& format, int64_t width) { return width / kGroup * format.code_bytes(); }
inline int64_t PanelScaleBytes(const Format& format, int64_t width) {
  return width / format.values * format.scale_bytes();
}

}  // namespace specjax

#endif  // SPECJAX_QUANT_MATMUL_PANELS_H_
