// Panels times few rows of rounded activations. See decode.h for the anonymous namespace.
//
// An instruction set `Isa` offers Ints and Floats (one value for each of the 16 lanes), and
//   Dot<R, wide, bits, begin, end>(values, x, sums): exact integer products of the quads [begin, end) of a group with R
//   rows of activations, their bias included; values(quad) are the 64 bytes of a quad, of so many bits each. `wide`
//   says whether activations are kept in two bytes, see TwoBytes.
// What is computed for one row is the same, in the same order, whatever the other rows are and however many.
#ifndef SPECJAX_QUANT_MATMUL_MULTIPLY_H_
#define SPECJAX_QUANT_MATMUL_MULTIPLY_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <type_traits>

#include "floats/silu.h"
#include "quant_matmul/decode.h"
#include "quant_matmul/kernels.h"
#include "quant_matmul/round.h"

namespace specjax {
namespace {

enum class Kind { kOne, kAffine, kHalves, kCentroids };

// How many bytes ahead codes are asked for. Arithmetic on several rows leaves the processor's own prefetching too far
// behind, and it stops at pages. Lines come to the core's second cache first, and then to its nearest one. Measured on
// two cores of a Sapphire Rapids; other distances, and several panels at a time, were slower.
constexpr int kFar = 3072, kNear = 768;
constexpr int kStepsAhead = 2;  // how many steps ahead scales are asked for

template <int locality>
inline void Prefetch(const uint8_t* in, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kVector) __builtin_prefetch(in + at, 0, locality);
}

// Asks for what comes after the codes of a group.
template <typename Codes>
inline void AskAhead(const uint8_t* group) {
  Prefetch<2>(group + kFar, Codes::kBytes);
  Prefetch<3>(group + kNear, Codes::kBytes);
}

template <typename Isa, typename Codes, int R, bool wide, int begin, int end, int byte = 0>
inline __attribute__((always_inline)) void Sums(const uint8_t* group, const uint8_t* x, typename Isa::Floats* out) {
  typename Isa::Ints sums[R];
  const auto values = [=](auto quad) __attribute__((always_inline)) {
    return Codes::template Values<Isa, quad.value, byte>(group);
  };
  Isa::template Dot<R, wide, Codes::kBits, begin, end>(values, x, sums);
  for (int r = 0; r < R; ++r) out[r] = Isa::ToFloat(sums[r]);
}

// One half of a group times R rows. Centroids have two bytes.
template <typename Isa, typename Codes, bool centroids, int R, bool wide, int half>
inline __attribute__((always_inline)) void Half(const uint8_t* group, const uint8_t* x, typename Isa::Floats* out) {
  Sums<Isa, Codes, R, wide, 4 * half, 4 * half + 4>(group, x, out);
  if constexpr (centroids) {
    typename Isa::Floats lower[R];
    Sums<Isa, Codes, R, wide, 4 * half, 4 * half + 4, 1>(group, x, lower);
    for (int r = 0; r < R; ++r) out[r] = Isa::Fma(out[r], Isa::Set(256.0f), lower[r]);
  }
}

// Adds the products of the step's groups with R rows to totals [R, 16]. `x` is the record of the first row and group.
//
// Inlined, it would be slower: GCC then stores the sums of some R after every product, at up to 1.6 times the time.
template <typename Isa, typename Codes, Kind kind, bool wide, int R>
__attribute__((noinline)) void Tile(const uint8_t* codes, const Step& step, int groups, const uint8_t* x,
                                    int64_t group_bytes, float* totals) {
  using Floats = typename Isa::Floats;
  Floats total[R];
  for (int r = 0; r < R; ++r) total[r] = Isa::Load(totals + kLanes * r);
  for (int g = 0; g < groups; ++g, codes += Codes::kBytes, x += group_bytes) {
    if constexpr (Codes::kInMemory) AskAhead<Codes>(codes);
    const Floats scale = Isa::Load(step.scale[g][0]);
    Floats product[R];
    if constexpr (kind == Kind::kOne || kind == Kind::kAffine) {
      Sums<Isa, Codes, R, wide, 0, kQuads>(codes, x, product);
      for (int r = 0; r < R; ++r) product[r] = Isa::Multiply(product[r], scale);
    } else {
      const Floats scale1 = Isa::Load(step.scale[g][1]);
      Floats second[R];
      Half<Isa, Codes, kind == Kind::kCentroids, R, wide, 0>(codes, x, product);
      Half<Isa, Codes, kind == Kind::kCentroids, R, wide, 1>(codes, x, second);
      for (int r = 0; r < R; ++r) product[r] = Isa::Fma(second[r], scale1, Isa::Multiply(product[r], scale));
    }
    for (int r = 0; r < R; ++r) {
      const Rounded& rounded = Isa::RoundedOf(x + Isa::RecordBytes(wide) * r, wide);
      total[r] = Isa::Fma(product[r], Isa::Set(rounded.scale), total[r]);
      if constexpr (kind == Kind::kAffine)
        total[r] = Isa::Fma(Isa::Load(step.minimum[g]), Isa::Set(rounded.scaled_sum), total[r]);
    }
  }
  for (int r = 0; r < R; ++r) Isa::Store(totals + kLanes * r, total[r]);
}

template <typename Isa, typename Codes, Kind kind, bool wide, int R = Isa::kRows>
inline void Tiles(const uint8_t* codes, const Step& step, int groups, const uint8_t* x, int64_t group_bytes,
                  int64_t rows, float* totals) {
  for (; rows >= R; rows -= R, x += R * Isa::RecordBytes(wide), totals += R * kLanes) {
    Tile<Isa, Codes, kind, wide, R>(codes, step, groups, x, group_bytes, totals);
  }
  if constexpr (R > 1) {
    constexpr int kNext = R > 4 ? 4 : R - 1;
    if (rows > 0) Tiles<Isa, Codes, kind, wide, kNext>(codes, step, groups, x, group_bytes, rows, totals);
  }
}

// Adds the products of steps with `rows` rows to totals [rows, 16]. AMX does it in another way, see amx.cc.
template <typename Isa, typename Codes, Kind kind, bool wide>
class ByRows {
 public:
  static int64_t GroupBytes(int64_t rows) { return rows * Isa::RecordBytes(wide); }

  ByRows(const Format&, int64_t rows) : rows_(rows) {}

  void Add(const uint8_t* codes, const Step& step, int groups, const uint8_t* x, int64_t group_bytes,
           float* totals) const {
    Tiles<Isa, Codes, kind, wide>(codes, step, groups, x, group_bytes, rows_, totals);
  }

 protected:
  int64_t rows_;
};

template <typename Isa, typename Codes, Kind kind, bool wide, template <typename, typename, Kind, bool> class How>
void Panels(const Format& format, const uint8_t* codes, const uint8_t* scales, int64_t width, int64_t begin,
            int64_t end, const uint8_t* records, int64_t rows, float* out, int64_t outputs) {
  alignas(64) float totals[kSlab * kLanes];
  Step step;
  const How<Isa, Codes, kind, wide> how(format, rows);
  const int64_t group_bytes = how.GroupBytes(rows), groups = width / kGroup;
  codes += begin * PanelCodeBytes(format, width);
  scales += begin * PanelScaleBytes(format, width);
  for (int64_t panel = begin; panel < end; ++panel) {
    for (int64_t row = 0; row < rows; ++row) Isa::Store(totals + kLanes * row, Isa::Set(0.0f));
    float* const to = out + kLanes * panel;
    for (int64_t g = 0, asked = 0; g < groups; g += kStep) {
      // Rows of the result lie far apart: some of their lines are asked for with each step, long before they are due.
      for (const int64_t ask = rows * std::min(groups, g + kStep) / groups; asked < ask; ++asked)
        __builtin_prefetch(to + asked * outputs, 1, 2);
      const int count = static_cast<int>(std::min<int64_t>(kStep, groups - g));
      const int64_t scale_bytes = (format.super() ? 1 : count) * format.scale_bytes();
      Prefetch<2>(scales + kStepsAhead * scale_bytes, scale_bytes);
      DecodeScales<Isa>(format, scales, count, &step);
      how.Add(codes, step, count, records + g * group_bytes, group_bytes, totals);
      codes += count * Codes::kBytes;
      scales += scale_bytes;
    }
    const int64_t lanes = outputs - kLanes * panel;
    for (int64_t row = 0; row < rows; ++row) {
      const float* const from = totals + kLanes * row;
      if (lanes >= kLanes) Isa::Store(to + row * outputs, Isa::Load(from));
      else std::memcpy(to + row * outputs, from, sizeof(float) * lanes);
    }
  }
}

using PanelsFunction = void (*)(const Format&, const uint8_t*, const uint8_t*, int64_t, int64_t, int64_t,
                                const uint8_t*, int64_t, float*, int64_t);

constexpr Kind KindOf(const Format& format) {
  if (format.codebook != Codebook::kNone && format.scales == Scales::kHalves) return Kind::kCentroids;
  if (format.scales == Scales::kSuperSignedHalves) return Kind::kHalves;
  return format.affine() ? Kind::kAffine : Kind::kOne;
}

// For one of kFormats. Those that are computed alike share an instance.
template <typename Isa, bool wide, template <typename, typename, Kind, bool> class How, size_t i = 0>
PanelsFunction PanelsOf(const Format& format) {
  if constexpr (i == std::size(kFormats)) {
    return nullptr;
  } else {
    constexpr Format kOne = kFormats[i];
    using Codes = Coding<kOne.plane0, kOne.plane1, kOne.codebook>;
    if (&format != &kFormats[i]) return PanelsOf<Isa, wide, How, i + 1>(format);
    return Panels<Isa, Codes, KindOf(kOne), TwoBytes<Isa>(kOne, wide), How>;
  }
}

template <typename Isa, template <typename, typename, Kind, bool> class How>
void Multiply(const Format& format, bool wide, const uint8_t* codes, const uint8_t* scales, int64_t width,
              int64_t begin, int64_t end, const uint8_t* records, int64_t rows, float* out, int64_t outputs) {
  const auto run = wide ? PanelsOf<Isa, true, How>(format) : PanelsOf<Isa, false, How>(format);
  run(format, codes, scales, width, begin, end, records, rows, out, outputs);
}

template <typename Isa, template <typename, typename, Kind, bool> class How = ByRows>
constexpr QuantKernels KernelsOf() {
  return {[](const Format& format, bool wide, int64_t rows) {
            return rows * Isa::RecordBytes(TwoBytes<Isa>(format, wide));
          },
          Round<Isa>, Multiply<Isa, How>, Swiglu};
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_QUANT_MATMUL_MULTIPLY_H_
