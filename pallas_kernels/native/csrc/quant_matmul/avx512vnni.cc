#include "quant_matmul/avx512vnni.h"

namespace specjax {

const QuantKernels& QuantKernels::ForAvx512Vnni() {
  static constexpr QuantKernels kKernels = KernelsOf<Avx512Vnni>();
  return kKernels;
}

}  // namespace specjax
