// Written by `python -m pallas_kernels.native_tables`; do not edit.
#ifndef SPECJAX_ATTENTION_FORMATS_H_
#define SPECJAX_ATTENTION_FORMATS_H_

#include "attention/types.h"

namespace specjax {

inline constexpr KvType kKvTypes[] = {
    {"f32", KvKind::kF32, 32},
    {"f16", KvKind::kF16, 16},
    {"bf16", KvKind::kBf16, 16},
    {"q8_0", KvKind::kBytes, 8, 1.0f, false, 32767, 32767},
    {"q4_0", KvKind::kTable, 4, 1.0f, false, 32767, 32767, {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1}},
    {"turbo2", KvKind::kTable, 2, 0.00036884006f, true, 4097, 16388, {-4095, -1228, 1228, 4095, -4095, -1228, 1228, 4095, -4095, -1228, 1228, 4095, -4095, -1228, 1228, 4095}},
    {"turbo3", KvKind::kTable, 3, 0.0005255189f, true, 4097, 16388, {-4095, -2557, -1439, -466, 466, 1439, 2557, 4095, -4095, -2557, -1439, -466, 466, 1439, 2557, 4095}},
    {"turbo4", KvKind::kTable, 4, 0.00066729914f, true, 4097, 16388, {-4095, -3101, -2425, -1883, -1412, -984, -582, -192, 192, 582, 984, 1412, 1883, 2425, 3101, 4095}},
};

}  // namespace specjax

#endif  // SPECJAX_ATTENTION_FORMATS_H_
