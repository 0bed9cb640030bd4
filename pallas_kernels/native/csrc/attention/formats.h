// Written by `python -m pallas_kernels.native_tables`; do not edit.
#ifndef SPECJAX_ATTENTION_FORMATS_H_
#define SPECJAX_ATTENTION_FORMATS_H_

#include "attention/types.h"

namespace specjax {

inline constexpr KvType kKvTypes[] = {
    {"f32", KvKind::kF32, 32},
    {"f16", KvKind::kF16, 16},
    {"bf16", KvKind::kBf16, 16},
    {"q8_0", KvKind::kBytes, 8},
    {"q4_0", KvKind::kTable, 4, false, {0.0f, 1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f, 7.0f, -8.0f, -7.0f, -6.0f, -5.0f, -4.0f, -3.0f, -2.0f, -1.0f}},
    {"turbo2", KvKind::kTable, 2, true, {-1.5104f, -0.4528f, 0.4528f, 1.5104f, -1.5104f, -0.4528f, 0.4528f, 1.5104f, -1.5104f, -0.4528f, 0.4528f, 1.5104f, -1.5104f, -0.4528f, 0.4528f, 1.5104f}},
    {"turbo3", KvKind::kTable, 3, true, {-2.152f, -1.3439f, -0.756f, -0.2451f, 0.2451f, 0.756f, 1.3439f, 2.152f, -2.152f, -1.3439f, -0.756f, -0.2451f, 0.2451f, 0.756f, 1.3439f, 2.152f}},
    {"turbo4", KvKind::kTable, 4, true, {-2.73259f, -2.069017f, -1.618046f, -1.256231f, -0.94234f, -0.656759f, -0.388048f, -0.128395f, 0.128395f, 0.388048f, 0.656759f, 0.94234f, 1.256231f, 1.618046f, 2.069017f, 2.73259f}},
};

}  // namespace specjax

#endif  // SPECJAX_ATTENTION_FORMATS_H_
