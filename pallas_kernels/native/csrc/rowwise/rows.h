// Norms, totals of a softmax and short convolutions, as loops that compilers make vectors of. Their results have the
// same bits on every processor, and for a row whatever the others are.
// Included by translation units of one instruction set each, hence the anonymous namespace.
#ifndef SPECJAX_ROWWISE_ROWS_H_
#define SPECJAX_ROWWISE_ROWS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "floats/silu.h"
#include "rowwise/kernels.h"

namespace specjax {
namespace {

constexpr int kSums = 32;  // that grow side by side, so that none waits for the one before

// The sum of term(x[i]), of several of them side by side.
template <typename Term>
inline float SumOf(const float* x, int64_t width, Term term) {
  float sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= width; i += kSums) {
    for (int lane = 0; lane < kSums; ++lane) sums[lane] += term(x[i + lane]);
  }
  for (int lane = 0; i < width; ++i, ++lane) sums[lane] += term(x[i]);
  for (int half = kSums / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

inline float Sum(const float* x, int64_t width) {
  return SumOf(x, width, [](float value) { return value; });
}

inline float SumOfSquares(const float* x, int64_t width) {
  return SumOf(x, width, [](float value) { return value * value; });
}

inline void Normalize(const float* x, const float* weight, const float* gate, int64_t width, float scale,
                      float epsilon, float* out) {
  const float factor = 1.0f / std::sqrt(scale * SumOfSquares(x, width) + epsilon);
  if (weight == nullptr) {
    for (int64_t i = 0; i < width; ++i) out[i] = x[i] * factor;
  } else if (gate == nullptr) {
    for (int64_t i = 0; i < width; ++i) out[i] = x[i] * factor * weight[i];
  } else {
    for (int64_t i = 0; i < width; ++i) out[i] = x[i] * factor * weight[i] * Silu(gate[i]);
  }
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline float Largest(const float* x, int64_t width) {
  float peaks[kSums];
  std::fill(peaks, peaks + kSums, -kInfinity);
  int64_t i = 0;
  for (; i + kSums <= width; i += kSums) {
    for (int lane = 0; lane < kSums; ++lane) peaks[lane] = std::max(peaks[lane], x[i + lane]);
  }
  for (int lane = 0; i < width; ++i, ++lane) peaks[lane] = std::max(peaks[lane], x[i]);
  return *std::max_element(peaks, peaks + kSums);
}

inline void SoftmaxTotals(const float* x, int64_t width, float* log_total, float* entropy) {
  constexpr int64_t kTerms = 1024;  // so few that single floats add them up without losing digits
  const float largest = Largest(x, width), peak = largest == -kInfinity ? 0.0f : largest;
  float share[kTerms], weighted[kTerms];
  double sum = 0, weighted_sum = 0;
  for (int64_t begin = 0; begin < width; begin += kTerms) {
    const int64_t terms = std::min(kTerms, width - begin);
    for (int64_t i = 0; i < terms; ++i) {
      const float below = x[begin + i] - peak, e = ExpOfNegative(below);
      share[i] = below < -87.0f ? 0.0f : e;
      weighted[i] = e * (below < -87.0f ? 0.0f : below);  // NaN for a NaN
    }
    sum += Sum(share, terms);
    weighted_sum += Sum(weighted, terms);
  }
  const double log_sum = std::log(sum);
  *log_total = static_cast<float>(peak + log_sum + 0 * weighted_sum);
  *entropy = sum == 0 ? 0.0f : static_cast<float>(log_sum - weighted_sum / sum);
}

// `fixed` taps where it is not 0: compilers make more of a number that they know.
template <int fixed>
void ConvolveTaps(const ConvTask& task) {
  constexpr int64_t kChannels = 64, kMaxTaps = 16;
  const int64_t taps = fixed ? fixed : task.taps;
  float weights[fixed ? fixed : kMaxTaps][kChannels];
  for (int64_t begin = 0; begin < task.channels; begin += kChannels) {
    const int64_t channels = std::min(kChannels, task.channels - begin);
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t tap = 0; tap < taps; ++tap) weights[tap][c] = task.weight[(begin + c) * taps + tap];
    }
    for (int64_t t = 0; t < task.tokens; ++t) {
      const float* in = task.inputs + t * task.stride + begin;
      float* out = task.out + t * task.stride + begin;
      float sums[kChannels];
      for (int64_t c = 0; c < channels; ++c) {
        sums[c] = in[c] * weights[0][c];
        for (int64_t tap = 1; tap < taps; ++tap) sums[c] += in[tap * task.stride + c] * weights[tap][c];
      }
      for (int64_t c = 0; c < channels; ++c) out[c] = task.silu ? Silu(sums[c]) : sums[c];
    }
  }
}

inline void Convolve(const ConvTask& task) {
  const auto run = task.taps == 4 ? ConvolveTaps<4> : ConvolveTaps<0>;
  run(task);
}

constexpr RowwiseKernels kRowwiseKernels = {Normalize, Convolve, SoftmaxTotals};

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_ROWWISE_ROWS_H_
