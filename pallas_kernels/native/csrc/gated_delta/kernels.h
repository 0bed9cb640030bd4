// What a translation unit compiled for one instruction set offers.
#ifndef SPECJAX_GATED_DELTA_KERNELS_H_
#define SPECJAX_GATED_DELTA_KERNELS_H_

#include <cstdint>

namespace specjax {

inline constexpr int64_t kColumns = 32;  // of a state, worked on at a time: 128 rows of them fit the first cache

// Tokens of one sequence through the state of one value head, see pallas_kernels/gated_delta/api.py.
struct HeadTask {
  int64_t tokens, key_width, value_width;
  const float *q, *k;
  int64_t key_stride;  // floats from a token to the next in q and k
  const float* v;
  int64_t value_stride;  // in v, out and u
  const float *decay, *beta;
  float scale;
  const float* state;  // [key_width, value_width]
  // The newest states go to next, next + slot_stride, ...: the one after the last token first. `state` may be among
  // them. None is wanted if slots is 0.
  float* next;
  int64_t slots, slot_stride;
  float* out;
  float* u;       // null if it is not wanted
  float* memory;  // [TileFloats(...)], aligned to 64 bytes
};

// The first tokens' records, applied to the state of one value head.
struct CommitTask {
  int64_t tokens, key_width, value_width;
  const float* k;
  int64_t key_stride;
  const float* u;
  int64_t value_stride;
  const float* decay;
  const float* state;
  float* next;  // may be `state`
};

// The state by tiles of kColumns columns, the last one padded.
constexpr int64_t TileFloats(int64_t key_width, int64_t value_width) {
  return (value_width + kColumns - 1) / kColumns * kColumns * key_width;
}

struct GatedDeltaKernels {
  void (*head)(const HeadTask& task);
  void (*commit)(const CommitTask& task);

  static const GatedDeltaKernels& ForPortable();
  static const GatedDeltaKernels& ForAvx2();
  static const GatedDeltaKernels& ForAvx512Vnni();
  static const GatedDeltaKernels& ForAmx() { return ForAvx512Vnni(); }
  static const GatedDeltaKernels& ForNeon();
};

}  // namespace specjax

#endif  // SPECJAX_GATED_DELTA_KERNELS_H_
