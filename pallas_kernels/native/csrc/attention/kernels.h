// What a translation unit compiled for one instruction set offers.
#ifndef SPECJAX_ATTENTION_KERNELS_H_
#define SPECJAX_ATTENTION_KERNELS_H_

#include <cstdint>

#include "attention/types.h"

namespace specjax {

inline constexpr int64_t kChunk = 256;  // slots that are added up before they are merged with others
inline constexpr int64_t kTile = 16;    // slots whose keys are decoded at a time
inline constexpr int64_t kSpan = 32;    // slots whose values are, if they are integers
inline constexpr int64_t kPad = 16;     // widths of queries and sums are multiples of it
inline constexpr int64_t kMostOfGroup = 128;  // values that share a scale; KvType::query_levels is made for so many

// The slots that a row sees: [begin[0], end[0]) and [begin[1], end[1]), the second after the first.
struct Seen {
  int64_t begin[2];
  int64_t end[2];
};

// The query rows of one sequence that read one KV head, over one chunk of slots: for each token `per_token` rows.
struct ChunkTask {
  KvArray k, v;              // of the sequence
  int64_t head, heads;       // the KV head, of how many
  int64_t begin, end;        // slots
  bool next_asked;           // whether the tasks of all heads ask for the chunk after this one; see seen.h
  const float* q;            // rows of a token stand together, each padded with zeros to k_width
  int64_t q_stride;          // floats from a token to the next
  const Seen* seen;          // [tokens]
  int64_t tokens, per_token;
  int64_t k_width, v_width;  // padded
  float scale;
  const float* prepared;     // its queries, see AttentionKernels::prepare; null where no other chunk needs them
  float* memory;             // [floats(...) of the kernels], aligned to 64 bytes, for whatever it is needed for
  float* highest;            // [rows]: the largest score, -inf where nothing is seen
  float* total;              // [rows]: sum of exp(score - highest)
  float* sums;               // [rows, v_width]: of the values times these

  int64_t rows() const { return tokens * per_token; }
  const float* query(int64_t row) const { return q + row / per_token * q_stride + row % per_token * k_width; }
};

// What chunks have left of a row; see ChunkTask. From a chunk to the next there are so many rows.
struct RowOfChunks {
  const float *highest, *total, *sums;
  int64_t chunks, step, width;
};

struct AttentionKernels {
  void (*prepare)(const ChunkTask& task, float* out);  // queries in the form that chunks need, the same for all
  void (*chunk)(const ChunkTask& task);
  void (*merge)(const RowOfChunks& row, float* out);
  int64_t (*prepared_floats)(int64_t rows, int64_t k_width);          // of memory that prepared queries need
  int64_t (*floats)(int64_t rows, int64_t k_width, int64_t v_width);  // of memory that a chunk needs

  static const AttentionKernels& ForPortable();
  static const AttentionKernels& ForAvx2();
  static const AttentionKernels& ForAvx512Vnni();
  static const AttentionKernels& ForAmx();
  static const AttentionKernels& ForNeon();
};

}  // namespace specjax

#endif  // SPECJAX_ATTENTION_KERNELS_H_
