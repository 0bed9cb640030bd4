// What keys and values that are kept as integers with scales have in common. Queries and weights become integers as
// well, and are multiplied in pairs. See seen.h for the anonymous namespace.
#ifndef SPECJAX_ATTENTION_INTEGERS_H_
#define SPECJAX_ATTENTION_INTEGERS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "attention/seen.h"

namespace specjax {
namespace {

constexpr int64_t kStep = 32;  // values that are multiplied in a step; groups are multiples of it
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Whether the array's integers are a byte each, and not two.
inline bool OneByte(const KvArray& array) {
  const auto& table = array.type->table;
  return std::all_of(table, table + 16, [](int16_t x) { return x == int8_t(x); });
}

// What integers of the array are multiplied with, besides the scale.
template <typename Isa>
inline float Unit(const KvArray& array) {
  return array.type->by_variance ? array.type->unit * Isa::InverseRoot(array.group) : array.type->unit;
}

// The largest magnitude; NaN if one of them is not finite. Magnitudes compare like the integers that they are stored
// as.
template <typename Isa>
inline float Largest(const float* x, int64_t count) {
  typename Isa::Ints top = Isa::NoInts();
  for (int64_t i = 0; i < count; i += Isa::kLanes)
    top = Isa::MaxInts(top, Isa::And(Isa::LoadInts(x + i), 0x7fffffff));
  const int32_t bits = Isa::LargestInt(top);
  float largest;
  std::memcpy(&largest, &bits, 4);
  return bits < 0x7f800000 ? largest : kNan;
}

// What values have to be multiplied with so that the largest becomes `levels`, as far as floats reach.
inline float Inverse(float largest, int32_t levels) {
  return largest > 0 ? std::min(levels / largest, std::numeric_limits<float>::max()) : 0.0f;
}

// How a group of codes of so many bits lies in bytes, see PairTable.
template <int bits>
struct Packing {
  static constexpr bool kThird = bits == 3;  // whether third bits stand behind the others
  static constexpr int kLow = kThird ? 2 : bits, kPlanes = 8 / kLow;

  static int64_t PlaneBytes(const KvArray& array) { return array.group / kPlanes; }
  static int64_t GroupBytes(const KvArray& array) { return PlaneBytes(array) + (kThird ? array.group / 8 : 0); }
};

// Calls body(bits) with the bits of a type's codes, which are looked up in a table, as a constant.
template <typename Body>
inline void WithBits(const KvType& type, const Body& body) {
  if (type.bits == 2) body(std::integral_constant<int, 2>());
  if (type.bits == 3) body(std::integral_constant<int, 3>());
  if (type.bits == 4) body(std::integral_constant<int, 4>());
}

// Where the codes and scales of a tile stand. Those of slots that no row sees are zeros and are not read.
template <int64_t slots>
struct Places {
  const void* codes[slots];
  const void* scales[slots];

  Places(const ChunkTask& task, const KvArray& array, int64_t slot, Mask mask, const void* zeros) {
    for (int64_t i = 0; i < slots; ++i) {
      const int64_t index = (slot + i) * task.heads + task.head;
      const bool seen = mask >> i & 1;
      codes[i] = seen ? array.codes + index * array.code_bytes : zeros;
      scales[i] = seen ? array.scales + index * array.groups : zeros;
    }
  }
};

// Calls body(i, ints) with the bytes of as many slots as there are lanes, of which ints [lanes] are four each, from
// byte 4 * i on. `ask` is called between, once for 16 bytes.
template <typename Isa, typename Ask, typename Body>
inline void ForFours(const void* const* slots, int64_t bytes, const Ask& ask, const Body& body) {
  typename Isa::Ints columns[4];
  int64_t at = 0;
  for (; at + 16 <= bytes; at += 16) {
    ask(at / 16);
    Isa::Columns(slots, at, columns);
#pragma GCC unroll 4
    for (int64_t j = 0; j < 4; ++j) body(at / 4 + j, columns[j]);
  }
  if (at == bytes) return;
  uint8_t rest[Isa::kLanes][16] = {};
  const void* rests[Isa::kLanes];
  const auto copy = [&](auto count) {
    for (int i = 0; i < Isa::kLanes; ++i)
      rests[i] = std::memcpy(rest[i], static_cast<const uint8_t*>(slots[i]) + at, count);
  };
  // One scale, two or four are copied without a call for each slot.
  if (bytes - at == 2) copy(std::integral_constant<int64_t, 2>());
  else if (bytes - at == 4) copy(std::integral_constant<int64_t, 4>());
  else if (bytes - at == 8) copy(std::integral_constant<int64_t, 8>());
  else copy(bytes - at);
  Isa::Columns(rests, 0, columns);
  for (int64_t j = 0; at + 4 * j < bytes; ++j) body(at / 4 + j, columns[j]);
}

// Scales of a tile as floats [groups, slots]; there is room for one group more. What is not finite becomes NaN, as its
// products would sooner or later.
template <typename Isa, int64_t slots>
inline void ReadScales(const Places<slots>& places, int64_t groups, float* scales) {
  for (int64_t i = 0; i < slots; i += Isa::kLanes) {
    const auto store = [&](int64_t group, typename Isa::Floats x) {
      Isa::Store(scales + group * slots + i, Isa::Fma(x, Isa::Set(0.0f), x));
    };
    ForFours<Isa>(places.scales + i, 2 * groups, [](int64_t) {}, [&](int64_t pair, typename Isa::Ints halves) {
      store(2 * pair, Isa::LowHalves(halves));
      store(2 * pair + 1, Isa::LowHalves(Isa::ShiftRight(halves, 16)));
    });
  }
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_ATTENTION_INTEGERS_H_
