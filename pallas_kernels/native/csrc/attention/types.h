// How a vector of keys or values is kept in a cache; see pallas_kernels/kv_formats, whose codes and scales these are.
#ifndef SPECJAX_ATTENTION_TYPES_H_
#define SPECJAX_ATTENTION_TYPES_H_

#include <cstdint>
#include <string_view>

namespace specjax {

enum class KvType { kF32, kF16, kBf16, kQ8, kQ4, kTurbo2, kTurbo3, kTurbo4 };

struct KvTypeInfo {
  std::string_view name;
  KvType type;
  int bits;
  bool scaled;
};

inline constexpr KvTypeInfo kKvTypes[] = {
    {"f32", KvType::kF32, 32, false},      {"f16", KvType::kF16, 16, false},     {"bf16", KvType::kBf16, 16, false},
    {"q8_0", KvType::kQ8, 8, true},        {"q4_0", KvType::kQ4, 4, true},       {"turbo2", KvType::kTurbo2, 2, true},
    {"turbo3", KvType::kTurbo3, 3, true},  {"turbo4", KvType::kTurbo4, 4, true},
};

// One array of vectors [slots, KV heads, width].
struct KvArray {
  KvType type;
  const uint8_t* codes;
  const uint16_t* scales;  // float16, one for each group of values
  int64_t width;           // values of a vector
  int64_t groups;          // scales of a vector
  int64_t code_bytes;      // bytes of a vector's codes
};

}  // namespace specjax

#endif  // SPECJAX_ATTENTION_TYPES_H_
