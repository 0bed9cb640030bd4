// One vector of a cache to floats. Included by translation units of one instruction set each, hence the anonymous
// namespace: nothing here may be shared between them.
#ifndef SPECJAX_ATTENTION_DECODE_H_
#define SPECJAX_ATTENTION_DECODE_H_

#include <cstdint>
#include <cstring>

#include "attention/kernels.h"

namespace specjax {
namespace {

// Groups of codes of 2 or 4 bits in planes: byte i has value i in its lowest bits, value i + bytes in the next, ...
// With `high`, each code has a third bit, in the order of the values.
template <typename Isa, int bits, bool high>
void DecodeTable(const float* table, const uint8_t* in, const uint16_t* scales, int64_t groups, int64_t group,
                 float unit, float* out) {
  constexpr int kPlanes = 8 / bits;
  const int64_t bytes = group / kPlanes;
  const typename Isa::Table values = Isa::LoadTable(table);
  for (int64_t g = 0; g < groups; ++g, out += group) {
    const auto scale = Isa::Set(Isa::Half(scales[g]) * unit);
    const uint8_t* top = in + bytes;
    for (int64_t i = 0; i < bytes; i += Isa::kLanes) {
      typename Isa::Ints packed = Isa::Bytes(in + i);
      for (int plane = 0; plane < kPlanes; ++plane) {
        const int64_t at = plane * bytes + i;
        typename Isa::Ints code = Isa::And(packed, (1 << bits) - 1);
        if constexpr (high) code = Isa::AddBits(code, top + at / 8, at % 8, 4);
        Isa::Store(out + at, Isa::Multiply(Isa::Lookup(values, code), scale));
        packed = Isa::ShiftRight(packed, bits);
      }
    }
    in += bytes + (high ? group / 8 : 0);
  }
}

// The vector of a slot and head; `out` has room for a multiple of kPad, which stays as it is beyond the width.
template <typename Isa>
const float* Decode(const KvArray& array, int64_t index, float* out) {
  const uint8_t* in = array.codes + index * array.code_bytes;
  const uint16_t* scales = array.scales + index * array.groups;
  const int64_t width = array.width, group = array.group;
  const KvType& type = *array.type;
  switch (type.kind) {
    case KvKind::kF32:
      if (width % kPad == 0) return reinterpret_cast<const float*>(in);
      std::memcpy(out, in, 4 * width);
      break;
    case KvKind::kF16:
    case KvKind::kBf16: {
      const auto* halves = reinterpret_cast<const uint16_t*>(in);
      const bool brain = type.kind == KvKind::kBf16;
      int64_t i = 0;
      for (; i + Isa::kLanes <= width; i += Isa::kLanes)
        Isa::Store(out + i, brain ? Isa::Brains(halves + i) : Isa::Halves(halves + i));
      for (; i < width; ++i) {
        const uint32_t bits = static_cast<uint32_t>(halves[i]) << 16;
        if (brain) std::memcpy(out + i, &bits, 4);
        else out[i] = Isa::Half(halves[i]);
      }
      break;
    }
    case KvKind::kBytes:
      for (int64_t g = 0; g < array.groups; ++g) {
        const auto scale = Isa::Set(Isa::Half(scales[g]));
        for (int64_t i = g * group; i < (g + 1) * group; i += Isa::kLanes)
          Isa::Store(out + i, Isa::Multiply(Isa::SignedBytes(in + i), scale));
      }
      break;
    case KvKind::kTable: {
      const auto decode = type.bits == 2   ? DecodeTable<Isa, 2, false>
                          : type.bits == 3 ? DecodeTable<Isa, 2, true>
                                           : DecodeTable<Isa, 4, false>;
      decode(type.table, in, scales, array.groups, group, type.by_variance ? Isa::Unit(group) : 1.0f, out);
      break;
    }
  }
  return out;
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_ATTENTION_DECODE_H_
