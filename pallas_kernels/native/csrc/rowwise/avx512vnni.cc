// x86-64 with AVX-512.
#include "rowwise/rows.h"

namespace specjax {

const RowwiseKernels& RowwiseKernels::ForAvx512Vnni() { return kRowwiseKernels; }

}  // namespace specjax
