// x86-64 with AVX-512.
#include "attention/avx512vnni.h"

namespace specjax {

const AttentionKernels& AttentionKernels::ForAvx512Vnni() {
  static constexpr AttentionKernels kKernels = AttentionKernelsOf<ByPairs<Avx512>>();
  return kKernels;
}

}  // namespace specjax
