// 64-bit Arm.
#include "rowwise/rows.h"

namespace specjax {

const RowwiseKernels& RowwiseKernels::ForNeon() { return kRowwiseKernels; }

}  // namespace specjax
