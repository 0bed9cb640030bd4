// x86-64 with AVX2 and FMA.
#include "floats/avx2.h"
#include "gated_delta/recurrence.h"

namespace specjax {

const GatedDeltaKernels& GatedDeltaKernels::ForAvx2() {
  static constexpr GatedDeltaKernels kKernels = GatedDeltaKernelsOf<Avx2Floats>();
  return kKernels;
}

}  // namespace specjax
