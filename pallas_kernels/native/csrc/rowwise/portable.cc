// Any processor.
#include "rowwise/rows.h"

namespace specjax {

const RowwiseKernels& RowwiseKernels::ForPortable() { return kRowwiseKernels; }

}  // namespace specjax
