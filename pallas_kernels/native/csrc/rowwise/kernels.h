// What a translation unit compiled for one instruction set offers.
#ifndef SPECJAX_ROWWISE_KERNELS_H_
#define SPECJAX_ROWWISE_KERNELS_H_

#include <cstdint>

namespace specjax {

// Some channels of some tokens of one sequence, see pallas_kernels/causal_conv1d/api.py.
struct ConvTask {
  const float* inputs;  // those of the first token's window, of the first channel
  int64_t stride;       // floats from a token to the next in inputs and out
  const float* weight;  // [channels, taps]
  int64_t taps, tokens, channels;
  bool silu;
  float* out;
};

struct RowwiseKernels {
  // out = x / sqrt(scale * sum(x^2) + epsilon), times weight and silu(gate) where they are not null; [width] each.
  void (*normalize)(const float* x, const float* weight, const float* gate, int64_t width, float scale, float epsilon,
                    float* out);
  void (*convolve)(const ConvTask& task);
  // log(sum(exp(x))), and the entropy of the softmax; x [width]. Of a NaN or
  // of +inf in x NaN; of nothing but -inf, -inf and 0.
  void (*softmax_totals)(const float* x, int64_t width, float* log_total, float* entropy);

  static const RowwiseKernels& ForPortable();
  static const RowwiseKernels& ForAvx2();
  static const RowwiseKernels& ForAvx512Vnni();
  static const RowwiseKernels& ForAmx() { return ForAvx512Vnni(); }
  static const RowwiseKernels& ForNeon();
};

}  // namespace specjax

#endif  // SPECJAX_ROWWISE_KERNELS_H_
