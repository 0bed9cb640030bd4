// The layout "panels16" of quantized matrices: sixteen rows of outputs side by side.
//
// A matrix [N, K] is cut into panels of 16 rows (the last one padded with zeros) and groups of 32 columns. A group's
// codes are unsigned integers in one or two planes of bits. In a plane of w bits, 64-byte vector i (of w) holds in its
// byte 4 * row + t, at bits f * w, the code of column 4 * (f * w + i) + t. A panel's groups follow each other; so do
// the planes of a group.
//
// Scales stand apart, in the order of the groups, each as 16 values, one per row. See `Scales` in `format.h`.
#ifndef SPECJAX_QUANT_MATMUL_PANELS_H_
#define SPECJAX_QUANT_MATMUL_PANELS_H_

#include <cstdint>
#include <string_view>

#include "quant_matmul/formats.h"

namespace specjax {

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
