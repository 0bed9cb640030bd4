// Any processor.
#include "floats/portable.h"
#include "gated_delta/recurrence.h"

namespace specjax {

const GatedDeltaKernels& GatedDeltaKernels::ForPortable() {
  static constexpr GatedDeltaKernels kKernels = GatedDeltaKernelsOf<PortableFloats>();
  return kKernels;
}

}  // namespace specjax
