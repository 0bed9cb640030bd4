// Any processor.
#include "floats/portable.h"
#include "gated_delta/recurrence.h"

namespace specjax {

const GatedDeltaKernels& PortableGatedDeltaKernels() {
  static constexpr GatedDeltaKernels kKernels = GatedDeltaKernelsOf<PortableFloats>();
  return kKernels;
}

}  // namespace specjax
