// x86-64 with AVX2.
#include "rowwise/rows.h"

namespace specjax {

const RowwiseKernels& RowwiseKernels::ForAvx2() { return kRowwiseKernels; }

}  // namespace specjax
