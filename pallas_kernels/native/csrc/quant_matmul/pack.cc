#include "quant_matmul/pack.h"

#include <algorithm>
#include <cstring>

namespace specjax {
namespace {

// A block taken apart: one byte per code, scales as they stand in a panel, one row of them.
struct Block {
  uint8_t codes[256];
  uint8_t halves[2][2];  // float16
  uint8_t subs[16];
};

void Halves(const uint8_t* in, int count, Block* block) { std::memcpy(block->halves, in, 2 * count); }

void Nibbles(const uint8_t* in, int bytes, uint8_t* low, uint8_t* high) {
  for (int i = 0; i < bytes; ++i) {
    low[i] = in[i] & 15;
    high[i] = in[i] >> 4;
  }
}

void FifthBits(const uint8_t* in, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] |= (in[i / 8] >> (i % 8) & 1) << 4;
}

// The 6-bit scales and minima of a block of Q4_K or Q5_K, alternating.
void SixBitPairs(const uint8_t* in, uint8_t* subs) {
  for (int i = 0; i < 4; ++i) {
    subs[2 * i] = in[i] & 63;
    subs[2 * i + 1] = in[i + 4] & 63;
    subs[2 * i + 8] = (in[i + 8] & 15) | in[i] >> 6 << 4;
    subs[2 * i + 9] = in[i + 8] >> 4 | in[i + 4] >> 6 << 4;
  }
}

void TakeApart(const Format& format, const uint8_t* in, Block* block) {
  uint8_t* codes = block->codes;
  if (format.name == "Q8_0") {
    Halves(in, 1, block);
    for (int i = 0; i < 32; ++i) codes[i] = in[2 + i] ^ 0x80;
  } else if (format.name == "Q4_0" || format.name == "IQ4_NL") {
    Halves(in, 1, block);
    Nibbles(in + 2, 16, codes, codes + 16);
  } else if (format.name == "Q4_1") {
    Halves(in, 2, block);
    Nibbles(in + 4, 16, codes, codes + 16);
  } else if (format.name == "Q5_0") {
    Halves(in, 1, block);
    Nibbles(in + 6, 16, codes, codes + 16);
    FifthBits(in + 2, codes);
  } else if (format.name == "Q5_1") {
    Halves(in, 2, block);
    Nibbles(in + 8, 16, codes, codes + 16);
    FifthBits(in + 4, codes);
  } else if (format.name == "Q4_K" || format.name == "Q5_K") {
    const bool fifth = format.name == "Q5_K";
    Halves(in, 2, block);
    SixBitPairs(in + 4, block->subs);
    const uint8_t* low = in + (fifth ? 48 : 16);
    for (int pair = 0; pair < 4; ++pair) Nibbles(low + 32 * pair, 32, codes + 64 * pair, codes + 64 * pair + 32);
    for (int i = 0; fifth && i < 256; ++i) codes[i] |= (in[16 + i % 32] >> (i / 32) & 1) << 4;
  } else if (format.name == "Q6_K") {
    Halves(in + 208, 1, block);
    std::memcpy(block->subs, in + 192, 16);
    for (int half = 0; half < 2; ++half) {
      uint8_t* out = codes + 128 * half;
      Nibbles(in + 64 * half, 64, out, out + 64);
      for (int i = 0; i < 128; ++i) out[i] |= (in[128 + 32 * half + i % 32] >> (2 * (i / 32)) & 3) << 4;
    }
  } else if (format.name == "IQ4_XS") {
    Halves(in, 1, block);
    for (int i = 0; i < 8; ++i) {
      const int low = in[4 + i / 2] >> (4 * (i % 2)) & 15, high = in[2 + i / 4] >> (2 * (i % 4)) & 3;
      block->subs[i] = static_cast<uint8_t>((low | high << 4) - 32);
      Nibbles(in + 8 + 16 * i, 16, codes + 32 * i, codes + 32 * i + 16);
    }
  } else if (format.name == "TQ3_1S") {
    Halves(in, 2, block);
    for (int eight = 0; eight < 4; ++eight) {
      const uint8_t* three = in + 4 + 3 * eight;
      const uint32_t stream = three[0] | three[1] << 8 | three[2] << 16;
      for (int i = 0; i < 8; ++i) codes[8 * eight + i] = stream >> (3 * i) & 7;
    }
  } else if (format.name == "TQ4_1S") {
    Halves(in, 2, block);
    for (int i = 0; i < 32; ++i) codes[i] = in[4 + i / 2] >> (4 * (i % 2)) & 15;
  }
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

void PackBits(int width, const Block* rows, int group, int low, uint8_t* out) {
  switch (width) {
    case 1:
      return PackPlane<1>(rows, group, low, out);
    case 2:
      return PackPlane<2>(rows, group, low, out);
    case 4:
      return PackPlane<4>(rows, group, low, out);
    case 8:
      return PackPlane<8>(rows, group, low, out);
  }
}

uint8_t* PackScales(const Format& format, const Block* rows, uint8_t* out) {
  const int halves = format.scales == Scales::kAffine || format.scales == Scales::kHalves ||
                             format.scales == Scales::kSuperAffine
                         ? 2
                         : 1;
  for (int i = 0; i < halves; ++i) {
    for (int row = 0; row < kLanes; ++row, out += 2) std::memcpy(out, rows[row].halves[i], 2);
  }
  const int subs = format.super() ? format.scale_bytes() / kLanes - 2 * halves : 0;
  for (int i = 0; i < subs; ++i) {
    for (int row = 0; row < kLanes; ++row) *out++ = rows[row].subs[i];
  }
  return out;
}

}  // namespace

void PackPanel(const Format& format, const uint8_t* blocks, int64_t row_bytes, int rows, int64_t width, uint8_t* codes,
               uint8_t* scales) {
  Block taken[kLanes];
  std::memset(taken, 0, sizeof taken);
  for (int64_t block = 0; block < width / format.values; ++block) {
    for (int row = 0; row < rows; ++row) {
      TakeApart(format, blocks + row * row_bytes + block * format.bytes, &taken[row]);
    }
    for (int group = 0; group < format.values / kGroup; ++group, codes += format.code_bytes()) {
      PackBits(format.plane0, taken, group, 0, codes);
      PackBits(format.plane1, taken, group, format.plane0, codes + kVector * format.plane0);
    }
    scales = PackScales(format, taken, scales);
  }
}

}  // namespace specjax
