// Written by `python -m pallas_kernels.native_tables`; do not edit.
#ifndef SPECJAX_ATTENTION_FORMATS_H_
#define SPECJAX_ATTENTION_FORMATS_H_

#include "attention/types.h"

namespace specjax {

inline constexpr KvType kKvTypes[] = {
    {"f32", KvKind::kF32, 32},
    {"f16", KvKind::kF16, 16},
    {"bf16", KvKind::kBf16, 16},
    {"q8_0", KvKind::kBytes, 8, 1.0f, false, 32767},
    {"q4_0", KvKind::kTable, 4, 1.0f, false, 32767, {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1}},
    {"turbo2", KvKind::kTable, 2, 0.00018439752f, true, 8193, {-8191, -2456, 2456, 8191, -8191, -2456, 2456, 8191, -8191, -2456, 2456, 8191, -8191, -2456, 2456, 8191}},
    {"turbo3", KvKind::kTable, 3, 0.00026272738f, true, 8193, {-8191, -5115, -2878, -933, 933, 2878, 5115, 8191, -8191, -5115, -2878, -933, 933, 2878, 5115, 8191}},
    {"turbo4", KvKind::kTable, 4, 0.00033360883f, true, 8193, {-8191, -6202, -4850, -3766, -2825, -1969, -1163, -385, 385, 1163, 1969, 2825, 3766, 4850, 6202, 8191}},
};

}  // namespace specjax

#endif  // SPECJAX_ATTENTION_FORMATS_H_
