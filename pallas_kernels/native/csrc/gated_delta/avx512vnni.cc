// x86-64 with AVX-512.
#include "floats/avx512.h"
#include "gated_delta/recurrence.h"

namespace specjax {

const GatedDeltaKernels& GatedDeltaKernels::ForAvx512Vnni() {
  static constexpr GatedDeltaKernels kKernels = GatedDeltaKernelsOf<Avx512Floats>();
  return kKernels;
}

}  // namespace specjax
