// What a translation unit compiled for one instruction set offers.
#ifndef SPECJAX_QUANT_MATMUL_KERNELS_H_
#define SPECJAX_QUANT_MATMUL_KERNELS_H_

#include <cstdint>

#include "quant_matmul/panels.h"

namespace specjax {

inline constexpr int kSlab = 64;  // rows of activations that are worked on at a time
inline constexpr int kFew = 12;   // for more rows than these there may be kernels of their own

struct QuantKernels {
  // What the rounded activations of up to kSlab rows take for each group of 32 columns.
  int64_t (*group_bytes)(const Format& format, bool wide, int64_t rows);

  // Rounds one row x [width] to 8 bits per value, or to 16 when `wide`: row `row` of each group of `records`.
  void (*round)(const Format& format, bool wide, const float* x, int64_t width, int64_t rows, int64_t row,
                uint8_t* records);

  // out[row, 16 * panel + lane] for `rows` rows and the panels [begin, end) of a matrix with `outputs` rows.
  void (*multiply)(const Format& format, bool wide, const uint8_t* codes, const uint8_t* scales, int64_t width,
                   int64_t begin, int64_t end, const uint8_t* records, int64_t rows, float* out, int64_t outputs);

  // out[i] = silu(gate[i]) * up[i]; with a limit above zero, silu is at most that and up within plus and minus that.
  void (*swiglu)(const float* gate, const float* up, int64_t count, float limit, float* out);

  const QuantKernels* many = nullptr;  // those for blocks of more than kFew rows; null: these

  const QuantKernels& For(int64_t rows) const { return many == nullptr || rows <= kFew ? *this : *many; }

  static const QuantKernels& ForPortable();
  static const QuantKernels& ForAvx2();
  static const QuantKernels& ForAvx512Vnni();
  static const QuantKernels& ForAmx();
  static const QuantKernels& ForNeon();
};

}  // namespace specjax

#endif  // SPECJAX_QUANT_MATMUL_KERNELS_H_
