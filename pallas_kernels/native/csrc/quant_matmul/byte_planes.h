// Records of rounded activations as signed bytes. See decode.h for the anonymous namespace.
#ifndef SPECJAX_QUANT_MATMUL_BYTE_PLANES_H_
#define SPECJAX_QUANT_MATMUL_BYTE_PLANES_H_

#include <cstdint>

#include "quant_matmul/round.h"

namespace specjax {
namespace {

// For instruction sets that multiply bytes: integers of 16 bits are 256 * upper + lower.
struct BytePlanes {
  template <bool wide>
  struct Record {
    int8_t codes[wide ? 2 : 1][kGroup];  // upper, lower
    Rounded rounded;
  };

  static constexpr bool InBytes(const Format&) { return true; }
  static constexpr int64_t RecordBytes(bool wide) { return wide ? sizeof(Record<true>) : sizeof(Record<false>); }
  static const Rounded& RoundedOf(const uint8_t* record, bool wide) {
    return wide ? reinterpret_cast<const Record<true>*>(record)->rounded
                : reinterpret_cast<const Record<false>*>(record)->rounded;
  }
  template <bool wide>
  static void Split(const int32_t* codes, int8_t* out) {
    for (int i = 0; i < kGroup; ++i) {
      const int32_t upper = wide ? (codes[i] + 128) >> 8 : codes[i];
      out[i] = static_cast<int8_t>(upper);
      if (wide) out[kGroup + i] = static_cast<int8_t>(codes[i] - 256 * upper);
    }
  }
  static Rounded* Arrange(const int32_t* codes, bool wide, uint8_t* out) {
    wide ? Split<true>(codes, reinterpret_cast<int8_t*>(out)) : Split<false>(codes, reinterpret_cast<int8_t*>(out));
    return const_cast<Rounded*>(&RoundedOf(out, wide));
  }
};

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_QUANT_MATMUL_BYTE_PLANES_H_
