// The gated delta rule, one token after the other. The columns of a state are independent of each other, so tokens run
// through one tile of columns after the other, each small enough to stay in the first cache.
//
// A state has the same bits however its tokens were grouped into calls, and whether they were run or committed.
#ifndef SPECJAX_GATED_DELTA_RECURRENCE_H_
#define SPECJAX_GATED_DELTA_RECURRENCE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "gated_delta/kernels.h"

namespace specjax {
namespace {

// Fewer than kColumns floats are padded with zeros.
template <typename Isa>
inline void LoadColumns(const float* in, int64_t columns, typename Isa::Floats* out) {
  float padded[kColumns];
  if (columns < kColumns) {
    std::memset(padded, 0, sizeof padded);
    std::memcpy(padded, in, columns * sizeof(float));
    in = padded;
  }
  for (int i = 0; i < kColumns / Isa::kLanes; ++i) out[i] = Isa::Load(in + i * Isa::kLanes);
}

template <typename Isa>
inline void StoreColumns(const typename Isa::Floats* in, int64_t columns, float* out) {
  float padded[kColumns];
  float* const to = columns < kColumns ? padded : out;
  for (int i = 0; i < kColumns / Isa::kLanes; ++i) Isa::Store(to + i * Isa::kLanes, in[i]);
  if (columns < kColumns) std::memcpy(out, padded, columns * sizeof(float));
}

template <typename Isa>
inline typename Isa::Floats Updated(typename Isa::Floats state, typename Isa::Floats decay, typename Isa::Floats k,
                                    typename Isa::Floats u) {
  return Isa::Fma(k, u, Isa::Multiply(state, decay));
}

// One token through a tile: the new state, its product with q, and with the next token's k where there is one.
template <typename Isa, bool more>
inline void Token(float* tile, int64_t rows, float decay_of_all, const float* k, const float* q, const float* next_k,
                  const typename Isa::Floats* u_of_tile, typename Isa::Floats* with_q,
                  typename Isa::Floats* with_k) {
  constexpr int V = kColumns / Isa::kLanes;
  const auto decay = Isa::Set(decay_of_all);
  typename Isa::Floats u[V], products[V], next[V];  // in registers: memory could be the tile's
  for (int i = 0; i < V; ++i) {
    u[i] = u_of_tile[i];
    products[i] = next[i] = Isa::Set(0.0f);
  }
  for (int64_t row = 0; row < rows; ++row, tile += kColumns) {
    const auto here = Isa::Set(k[row]), query = Isa::Set(q[row]), after = Isa::Set(more ? next_k[row] : 0.0f);
#pragma GCC unroll 8
    for (int i = 0; i < V; ++i) {
      const auto state = Updated<Isa>(Isa::Load(tile + i * Isa::kLanes), decay, here, u[i]);
      Isa::Store(tile + i * Isa::kLanes, state);
      products[i] = Isa::Fma(state, query, products[i]);
      if constexpr (more) next[i] = Isa::Fma(state, after, next[i]);
    }
  }
  for (int i = 0; i < V; ++i) {
    with_q[i] = products[i];
    if constexpr (more) with_k[i] = next[i];
  }
}

// Writes a tile to its columns of a state.
template <typename Isa>
inline void StoreTile(const float* tile, int64_t rows, int64_t columns, int64_t width, float* state) {
  typename Isa::Floats part[kColumns / Isa::kLanes];
  for (int64_t row = 0; row < rows; ++row) {
    LoadColumns<Isa>(tile + row * kColumns, kColumns, part);
    StoreColumns<Isa>(part, columns, state + row * width);
  }
}

template <typename Isa>
void RunTile(const HeadTask& task, int64_t column, float* tile) {
  constexpr int V = kColumns / Isa::kLanes;
  const int64_t columns = std::min(kColumns, task.value_width - column);
  typename Isa::Floats with_k[V], with_q[V], u[V], v[V];
  for (int i = 0; i < V; ++i) with_k[i] = Isa::Set(0.0f);
  for (int64_t row = 0; row < task.key_width; ++row) {
#pragma GCC unroll 8
    for (int i = 0; i < V; ++i)
      with_k[i] = Isa::Fma(Isa::Load(tile + row * kColumns + i * Isa::kLanes), Isa::Set(task.k[row]), with_k[i]);
  }
  for (int64_t t = 0; t < task.tokens; ++t) {
    const int64_t at = t * task.value_stride + column;
    const float *k = task.k + t * task.key_stride, *q = task.q + t * task.key_stride;
    const auto decay = Isa::Set(task.decay[t]), beta = Isa::Set(task.beta[t]);
    LoadColumns<Isa>(task.v + at, columns, v);
    for (int i = 0; i < V; ++i)
      u[i] = Isa::Multiply(beta, Isa::Subtract(v[i], Isa::Multiply(decay, with_k[i])));
    const auto token = t + 1 < task.tokens ? Token<Isa, true> : Token<Isa, false>;
    token(tile, task.key_width, task.decay[t], k, q, k + task.key_stride, u, with_q, with_k);
    for (int i = 0; i < V; ++i) with_q[i] = Isa::Multiply(with_q[i], Isa::Set(task.scale));
    StoreColumns<Isa>(with_q, columns, task.out + at);
    if (task.u != nullptr) StoreColumns<Isa>(u, columns, task.u + at);
    const int64_t age = task.tokens - 1 - t;
    if (age > 0 && age < task.slots)
      StoreTile<Isa>(tile, task.key_width, columns, task.value_width, task.next + age * task.slot_stride + column);
  }
}

template <typename Isa>
void RunHead(const HeadTask& task) {
  const int64_t rows = task.key_width, width = task.value_width;
  // Memory is read once and from front to back, whatever the order of work.
  const auto for_parts = [&](const auto& body) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < width; column += kColumns)
        body(row * width + column, column * rows + row * kColumns, std::min(kColumns, width - column));
    }
  };
  typename Isa::Floats part[kColumns / Isa::kLanes];
  for_parts([&](int64_t at, int64_t tiled, int64_t columns) {
    LoadColumns<Isa>(task.state + at, columns, part);
    StoreColumns<Isa>(part, kColumns, task.memory + tiled);
  });
  for (int64_t column = 0; column < width; column += kColumns) RunTile<Isa>(task, column, task.memory + column * rows);
  if (task.slots == 0) return;
  for_parts([&](int64_t at, int64_t tiled, int64_t columns) {
    LoadColumns<Isa>(task.memory + tiled, kColumns, part);
    StoreColumns<Isa>(part, columns, task.next + at);
  });
}

template <typename Isa>
void CommitHead(const CommitTask& task) {
  constexpr int V = kColumns / Isa::kLanes;
  typename Isa::Floats state[V], u[V];
  for (int64_t row = 0; row < task.key_width; ++row) {
    for (int64_t column = 0; column < task.value_width; column += kColumns) {
      const int64_t columns = std::min(kColumns, task.value_width - column);
      const int64_t at = row * task.value_width + column;
      LoadColumns<Isa>(task.state + at, columns, state);
      for (int64_t t = 0; t < task.tokens; ++t) {
        const auto decay = Isa::Set(task.decay[t]), k = Isa::Set(task.k[t * task.key_stride + row]);
        LoadColumns<Isa>(task.u + t * task.value_stride + column, columns, u);
        for (int i = 0; i < V; ++i) state[i] = Updated<Isa>(state[i], decay, k, u[i]);
      }
      StoreColumns<Isa>(state, columns, task.next + at);
    }
  }
}

template <typename Isa>
constexpr GatedDeltaKernels GatedDeltaKernelsOf() {
  return {RunHead<Isa>, CommitHead<Isa>};
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_GATED_DELTA_RECURRENCE_H_
