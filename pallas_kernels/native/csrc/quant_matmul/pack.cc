#include "quant_matmul/pack.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <utility>

namespace specjax {
namespace {

// Everything here is made for one of kFormats by its number: its description is a constant to the compiler.

// A block taken apart: one byte per code, scales as they stand in a panel, one row of them.
struct Block {
  uint8_t codes[256];
  uint8_t halves[2][2];  // float16
  uint8_t scales[2][16];
};

// The codes of a format (0), or its byte scales (1 and 2).
constexpr Integers IntegersOf(size_t format, int which) {
  return which == 0 ? kFormats[format].codes : kFormats[format].byte_scales[which - 1];
}

// Integers of a block, from some part of their bits on.
template <size_t format, int which, int part = 0>
void Read(const uint8_t* __restrict block, uint8_t* __restrict out) {
  constexpr Bits kBits = IntegersOf(format, which).bits[part];
  if constexpr (part == 0) std::memset(out, 0, IntegersOf(format, which).count);
  if constexpr (kBits.width > 0) {
    constexpr int kMask = (1 << kBits.width) - 1, kFull = kBits.run * kBits.per_word;
    const uint8_t* in = block + kBits.at;
    for (int first = kBits.first; first < kBits.first + kBits.count; first += kFull, in += kBits.run * kBits.word) {
      for (int run = 0; run < std::min(kFull, kBits.count) / kBits.run; ++run) {
        for (int i = 0; i < kBits.run; ++i) {
          int word = in[i * kBits.word];
          for (int byte = 1; byte < kBits.word; ++byte) word |= in[i * kBits.word + byte] << 8 * byte;
          out[first + run * kBits.run + i] |=
              ((word >> (kBits.shift + run * kBits.width) & kMask) ^ kBits.flipped) << kBits.to;
        }
      }
    }
  }
  if constexpr (part + 1 < kMostParts) Read<format, which, part + 1>(block, out);
}

template <size_t format, int which>
void ReadScales(const uint8_t* block, uint8_t* out) {
  constexpr Integers kScales = IntegersOf(format, which);
  Read<format, which>(block, out);
  for (int i = 0; i < kScales.count; ++i) out[i] -= kScales.offset;
}

template <size_t format>
void TakeApart(const uint8_t* in, Block* block) {
  std::memcpy(block->halves, in + kFormats[format].first_half, 2 * kFormats[format].halves());
  Read<format, 0>(in, block->codes);
  ReadScales<format, 1>(in, block->scales[0]);
  ReadScales<format, 2>(in, block->scales[1]);
}

// One plane of a group: bits [low, low + W) of the codes.
template <int W>
void PackPlane(const Block* rows, int group, int low, uint8_t* out) {
  constexpr uint32_t kMask = ((1u << W) - 1) * 0x01010101u;
  for (int row = 0; row < kLanes; ++row) {
    uint32_t quads[kQuads];
    std::memcpy(quads, rows[row].codes + kGroup * group, kGroup);
    for (int i = 0; i < W; ++i) {
      uint32_t packed = 0;
      for (int field = 0; field < 8 / W; ++field) packed |= (quads[field * W + i] >> low & kMask) << (field * W);
      std::memcpy(out + kVector * i + 4 * row, &packed, 4);
    }
  }
}

uint8_t* PackScales(const Format& format, const Block* rows, uint8_t* out) {
  for (int i = 0; i < format.halves(); ++i) {
    for (int row = 0; row < kLanes; ++row, out += 2) std::memcpy(out, rows[row].halves[i], 2);
  }
  for (int i = 0; i < format.byte_scales[0].count; ++i) {
    for (int which = 0; which < 2 && format.byte_scales[which].count; ++which) {
      for (int row = 0; row < kLanes; ++row) *out++ = rows[row].scales[which][i];
    }
  }
  return out;
}

template <size_t i>
void Pack(const uint8_t* blocks, int64_t row_bytes, int rows, int64_t width, uint8_t* codes, uint8_t* scales) {
  constexpr Format kFormat = kFormats[i];
  Block taken[kLanes];
  std::memset(taken, 0, sizeof taken);
  for (int64_t block = 0; block < width / kFormat.values; ++block) {
    for (int row = 0; row < rows; ++row) {
      TakeApart<i>(blocks + row * row_bytes + block * kFormat.bytes, &taken[row]);
    }
    for (int group = 0; group < kFormat.values / kGroup; ++group, codes += kFormat.code_bytes()) {
      PackPlane<kFormat.plane0>(taken, group, 0, codes);
      if constexpr (kFormat.plane1 > 0) {
        PackPlane<kFormat.plane1>(taken, group, kFormat.plane0, codes + kVector * kFormat.plane0);
      }
    }
    scales = PackScales(kFormat, taken, scales);
  }
}

template <size_t... i>
constexpr auto PacksOf(std::index_sequence<i...>) {
  return std::array{Pack<i>...};
}

}  // namespace

void PackPanel(const Format& format, const uint8_t* blocks, int64_t row_bytes, int rows, int64_t width, uint8_t* codes,
               uint8_t* scales) {
  static constexpr auto kPacks = PacksOf(std::make_index_sequence<std::size(kFormats)>());
  kPacks[&format - kFormats](blocks, row_bytes, rows, width, codes, scales);
}

}  // namespace specjax
