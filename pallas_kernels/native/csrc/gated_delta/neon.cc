// ARM with NEON.
#include "floats/neon.h"
#include "gated_delta/recurrence.h"

namespace specjax {

const GatedDeltaKernels& GatedDeltaKernels::ForNeon() {
  static constexpr GatedDeltaKernels kKernels = GatedDeltaKernelsOf<NeonFloats>();
  return kKernels;
}

}  // namespace specjax
