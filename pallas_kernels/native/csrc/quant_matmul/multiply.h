// Panels times few rows of rounded activations. See decode.h for the anonymous namespace.
//
// An instruction set `Isa` offers Ints and Floats (one value for each of the 16 lanes), and
//   Dot<R, wide, begin, end>(codes, x, stride, sums): exact integer products of the quads [begin, end) of a group with
//   R rows of activations, their bias included.
// What is computed for one row is the same, in the same order, whatever the other rows are and however many.
#ifndef SPECJAX_QUANT_MATMUL_MULTIPLY_H_
#define SPECJAX_QUANT_MATMUL_MULTIPLY_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "quant_matmul/decode.h"
#include "quant_matmul/kernels.h"
#include "quant_matmul/round.h"

namespace specjax {
namespace {

enum class Kind { kOne, kAffine, kHalves, kCentroids };

constexpr Kind KindOf(const Format& format) {
  switch (format.scales) {
    case Scales::kAffine:
    case Scales::kSuperAffine:
      return Kind::kAffine;
    case Scales::kHalves:
      return Kind::kCentroids;
    case Scales::kSuperSignedHalves:
      return Kind::kHalves;
    default:
      return Kind::kOne;
  }
}

// One half of a group (quads 0..3 or 4..7) times R rows, as floats. Centroids have two bytes.
template <typename Isa, int R, bool wide, bool centroids, int half>
inline __attribute__((always_inline)) void Half(const Step& step, int group, const uint8_t* x, int64_t stride,
                                                typename Isa::Floats* out) {
  typename Isa::Ints sums[R];
  Isa::template Dot<R, wide, 4 * half, 4 * half + 4>(step.high + kPlain * group, x, stride, sums);
  for (int r = 0; r < R; ++r) out[r] = Isa::ToFloat(sums[r]);
  if constexpr (centroids) {
    Isa::template Dot<R, wide, 4 * half, 4 * half + 4>(step.low + kPlain * group, x, stride, sums);
    for (int r = 0; r < R; ++r) out[r] = Isa::Fma(out[r], Isa::Set(256.0f), Isa::ToFloat(sums[r]));
  }
}

// Adds the products of the step's groups with R rows to totals [R, 16]. `x` is the record of the first row and group.
template <typename Isa, int R, Kind kind, bool wide>
void Tile(const Step& step, int groups, const uint8_t* x, int64_t group_bytes, float* totals) {
  using Floats = typename Isa::Floats;
  constexpr int64_t kStride = Isa::RecordBytes(wide);
  Floats total[R];
  for (int r = 0; r < R; ++r) total[r] = Isa::Load(totals + kLanes * r);
  for (int g = 0; g < groups; ++g, x += group_bytes) {
    const Floats scale = Isa::Load(step.scale[g][0]);
    Floats product[R];
    if constexpr (kind == Kind::kOne || kind == Kind::kAffine) {
      typename Isa::Ints sums[R];
      Isa::template Dot<R, wide, 0, kQuads>(step.high + kPlain * g, x, kStride, sums);
      for (int r = 0; r < R; ++r) product[r] = Isa::Multiply(Isa::ToFloat(sums[r]), scale);
    } else {
      const Floats scale1 = Isa::Load(step.scale[g][1]);
      Floats second[R];
      Half<Isa, R, wide, kind == Kind::kCentroids, 0>(step, g, x, kStride, product);
      Half<Isa, R, wide, kind == Kind::kCentroids, 1>(step, g, x, kStride, second);
      for (int r = 0; r < R; ++r) product[r] = Isa::Fma(second[r], scale1, Isa::Multiply(product[r], scale));
    }
    for (int r = 0; r < R; ++r) {
      const Rounded& rounded = Isa::RoundedOf(x + kStride * r, wide);
      total[r] = Isa::Fma(product[r], Isa::Set(rounded.scale), total[r]);
      if constexpr (kind == Kind::kAffine)
        total[r] = Isa::Fma(Isa::Load(step.minimum[g]), Isa::Set(rounded.scaled_sum), total[r]);
    }
  }
  for (int r = 0; r < R; ++r) Isa::Store(totals + kLanes * r, total[r]);
}

template <typename Isa, Kind kind, bool wide, int R = Isa::kRows>
inline void Tiles(const Step& step, int groups, const uint8_t* x, int64_t group_bytes, int64_t rows, float* totals) {
  for (; rows >= R; rows -= R, x += R * Isa::RecordBytes(wide), totals += R * kLanes) {
    Tile<Isa, R, kind, wide>(step, groups, x, group_bytes, totals);
  }
  if constexpr (R > 1) {
    if (rows > 0) Tiles<Isa, kind, wide, R / 2>(step, groups, x, group_bytes, rows, totals);
  }
}

template <typename Isa, Kind kind, bool wide>
void Panels(const Format& format, const uint8_t* codes, const uint8_t* scales, int64_t width, int64_t begin,
            int64_t end, const uint8_t* records, int64_t rows, float* out, int64_t outputs) {
  alignas(64) float totals[kSlab * kLanes];
  Step step;
  const int64_t group_bytes = rows * Isa::RecordBytes(wide), groups = width / kGroup;
  const uint8_t* code = codes + begin * PanelCodeBytes(format, width);
  const uint8_t* scale = scales + begin * PanelScaleBytes(format, width);
  for (int64_t panel = begin; panel < end; ++panel) {
    std::memset(totals, 0, sizeof(float) * kLanes * rows);
    for (int64_t g = 0; g < groups; g += kStep) {
      const int count = static_cast<int>(std::min<int64_t>(kStep, groups - g));
      DecodeCodes<Isa>(format, code, count, &step);
      DecodeScales<Isa>(format, scale, count, &step);
      Tiles<Isa, kind, wide>(step, count, records + g * group_bytes, group_bytes, rows, totals);
      code += count * format.code_bytes();
      scale += (format.super() ? 1 : count) * format.scale_bytes();
    }
    const int64_t lanes = std::min<int64_t>(kLanes, outputs - kLanes * panel);
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(out + row * outputs + kLanes * panel, totals + kLanes * row, sizeof(float) * lanes);
    }
  }
}

template <typename Isa>
void Multiply(const Format& format, bool wide, const uint8_t* codes, const uint8_t* scales, int64_t width,
              int64_t begin, int64_t end, const uint8_t* records, int64_t rows, float* out, int64_t outputs) {
  const auto run = [&](auto kind, auto is_wide) {
    Panels<Isa, kind.value, is_wide.value>(format, codes, scales, width, begin, end, records, rows, out, outputs);
  };
  const auto with_kind = [&](auto is_wide) {
    switch (KindOf(format)) {
      case Kind::kOne:
        return run(std::integral_constant<Kind, Kind::kOne>{}, is_wide);
      case Kind::kAffine:
        return run(std::integral_constant<Kind, Kind::kAffine>{}, is_wide);
      case Kind::kHalves:
        return run(std::integral_constant<Kind, Kind::kHalves>{}, is_wide);
      case Kind::kCentroids:
        return run(std::integral_constant<Kind, Kind::kCentroids>{}, is_wide);
    }
  };
  // Where 8 and 16 bits are computed alike, one instance serves both.
  if (wide || !Isa::kNarrow) {
    with_kind(std::true_type{});
  } else if constexpr (Isa::kNarrow) {
    with_kind(std::false_type{});
  }
}

template <typename Isa>
constexpr QuantKernels KernelsOf() {
  return {[](bool wide) { return Isa::RecordBytes(wide); }, Round<Isa>, Multiply<Isa>};
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_QUANT_MATMUL_MULTIPLY_H_
