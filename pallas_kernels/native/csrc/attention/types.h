// How a vector of keys or values is kept in a cache; see pallas_kernels/kv_formats, whose codes and scales these are.
#ifndef SPECJAX_ATTENTION_TYPES_H_
#define SPECJAX_ATTENTION_TYPES_H_

#include <cstdint>
#include <string_view>

namespace specjax {

enum class KvKind { kF32, kF16, kBf16, kBytes, kTable };

struct KvType {
  std::string_view name;
  KvKind kind;
  int bits;  // of a value

  // A value is unit * scale * an integer: the code itself or, for codes of few bits, its entry of the table.
  float unit = 1;
  bool by_variance = false;  // whether the unit is for values of variance 1, where those of a group have 1 / group
  // The integers that the largest value of a query and the largest weight become. Sums of their products with integers
  // fit 32 bits: over a group of a key, and over 32 slots; those of integers of one byte over 256 slots.
  int32_t query_levels = 0, levels = 0;
  int16_t table[16] = {};  // shorter ones are repeated

  constexpr bool scaled() const { return kind >= KvKind::kBytes; }
};

// One array of vectors [slots, KV heads, width].
struct KvArray {
  const KvType* type;
  const uint8_t* codes;
  const uint16_t* scales;  // float16, one for each group of values
  int64_t width;           // values of a vector
  int64_t groups;          // scales of a vector
  int64_t group;           // values that share one
  int64_t code_bytes;      // bytes of a vector's codes
};

}  // namespace specjax

#endif  // SPECJAX_ATTENTION_TYPES_H_
