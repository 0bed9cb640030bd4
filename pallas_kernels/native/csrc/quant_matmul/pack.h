// Blocks, as files store them, to panels.
#ifndef SPECJAX_QUANT_MATMUL_PACK_H_
#define SPECJAX_QUANT_MATMUL_PACK_H_

#include <cstdint>

#include "quant_matmul/panels.h"

namespace specjax {

// Packs up to 16 rows of `width` columns into one panel. `blocks` are the first row's, `row_bytes` apart; rows that
// are missing become zeros.
void PackPanel(const Format& format, const uint8_t* blocks, int64_t row_bytes, int rows, int64_t width, uint8_t* codes,
               uint8_t* scales);

}  // namespace specjax

#endif  // SPECJAX_QUANT_MATMUL_PACK_H_
