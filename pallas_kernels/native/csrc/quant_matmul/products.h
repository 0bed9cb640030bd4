// Products of rows with matrices of panels, spread over threads.
#ifndef SPECJAX_QUANT_MATMUL_PRODUCTS_H_
#define SPECJAX_QUANT_MATMUL_PRODUCTS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "parallel.h"
#include "quant_matmul/kernels.h"
#include "quant_matmul/panels.h"

namespace specjax {

template <typename T>
class AlignedBuffer {
 public:
  explicit AlignedBuffer(int64_t count) : data_(new (std::align_val_t{64}) T[count]) {}
  T* get() const { return data_.get(); }

 private:
  struct Delete {
    void operator()(T* data) const { ::operator delete[](data, std::align_val_t{64}); }
  };
  std::unique_ptr<T[], Delete> data_;
};

// A stack of E matrices in panels.
struct Stack {
  const Format* format;
  const uint8_t *codes, *scales;
  int64_t experts, panels, width;

  int64_t code_bytes() const { return PanelCodeBytes(*format, width); }
  int64_t scale_bytes() const { return PanelScaleBytes(*format, width); }
};

// Which matrix each block of rows is for. Numbers beyond the stack are clipped; below zero, nobody reads the rows.
struct Blocks {
  int64_t batch, rows;
  const int32_t* matrix;

  int64_t slabs() const { return (rows + kSlab - 1) / kSlab; }
  int64_t slab_rows(int64_t slab) const { return std::min<int64_t>(kSlab, rows - slab * kSlab); }
};

// Rows x [B, M, K], rounded for matrices of one format.
class RoundedRows {
 public:
  RoundedRows(xla::ffi::ThreadPool& pool, const QuantKernels& kernels, bool wide, const Format& format,
              const Blocks& blocks, const float* x, int64_t width)
      : blocks_(blocks),
        slab_bytes_(width / kGroup * kernels.group_bytes(format, wide, blocks.slab_rows(0))),
        records_(blocks.batch * blocks.slabs() * slab_bytes_) {
    constexpr int64_t kValues = 4 << 10;  // less is not worth another thread's attention
    const int64_t rows = blocks.rows, total = blocks.batch * rows, at_a_time = std::max<int64_t>(1, kValues / width);
    ParallelFor(pool, (total + at_a_time - 1) / at_a_time, [&](int64_t chunk) {
      for (int64_t i = chunk * at_a_time; i < std::min(total, (chunk + 1) * at_a_time); ++i) {
        const int64_t b = i / rows, row = i % rows, slab = row / kSlab;
        if (blocks.matrix[b] < 0) continue;
        kernels.round(format, wide, x + i * width, width, blocks.slab_rows(slab), row % kSlab, of(b, slab));
      }
    });
  }

  uint8_t* of(int64_t b, int64_t slab) const { return records_.get() + (b * blocks_.slabs() + slab) * slab_bytes_; }

 private:
  Blocks blocks_;
  int64_t slab_bytes_;
  AlignedBuffer<uint8_t> records_;
};

// One slab of rows of a block, and some panels.
struct Part {
  int64_t b, slab, begin, end;
};

// Cuts the work on a stack's panels into parts that take `panel_bytes` of each panel.
class Parts {
 public:
  Parts(const xla::ffi::ThreadPool& pool, const Blocks& blocks, int64_t panels, int64_t panel_bytes)
      : slabs_(blocks.slabs()), panels_(panels) {
    constexpr int64_t kPerThread = 64;
    constexpr int64_t kBytes = 32 << 10;  // less is not worth another thread's attention
    const int64_t wanted = std::max<int64_t>(1, pool.num_threads() * kPerThread / (blocks.batch * slabs_));
    per_part_ = std::max({int64_t{1}, kBytes / panel_bytes, (panels + wanted - 1) / wanted});
    in_slab_ = (panels + per_part_ - 1) / per_part_;
    count_ = blocks.batch * slabs_ * in_slab_;
  }

  int64_t count() const { return count_; }

  Part operator[](int64_t i) const {
    const int64_t begin = i % in_slab_ * per_part_;
    return {i / in_slab_ / slabs_, i / in_slab_ % slabs_, begin, std::min(panels_, begin + per_part_)};
  }

 private:
  int64_t slabs_, panels_, per_part_, in_slab_, count_;
};

// The columns of some panels: out[b, row, 16 * panel + lane], of which there are `outputs`.
inline void Multiply(const QuantKernels& kernels, bool wide, const Stack& stack, const Blocks& blocks,
                     const RoundedRows& x, const Part& part, float* out, int64_t outputs) {
  const int64_t rows = blocks.slab_rows(part.slab);
  float* to = out + (part.b * blocks.rows + part.slab * kSlab) * outputs;
  if (blocks.matrix[part.b] < 0) {
    const int64_t last = std::min(outputs, part.end * kLanes);
    for (int64_t row = 0; row < rows; ++row)
      std::fill(to + row * outputs + part.begin * kLanes, to + row * outputs + last, 0.0f);
    return;
  }
  const int64_t panel = std::min<int64_t>(blocks.matrix[part.b], stack.experts - 1) * stack.panels;
  kernels.multiply(*stack.format, wide, stack.codes + panel * stack.code_bytes(),
                   stack.scales + panel * stack.scale_bytes(), stack.width, part.begin, part.end,
                   x.of(part.b, part.slab), rows, to, outputs);
}

struct Product {
  Stack stack;
  const RoundedRows* x;
  float* out;
  int64_t outputs;
};

// Products that have nothing to do with each other, as one stretch of work.
inline void MultiplyAll(xla::ffi::ThreadPool& pool, const QuantKernels& kernels, bool wide, const Blocks& blocks,
                        const std::vector<Product>& products) {
  std::vector<Parts> parts;
  int64_t total = 0;
  for (const Product& product : products) {
    const Stack& stack = product.stack;
    parts.emplace_back(pool, blocks, stack.panels, stack.code_bytes() + stack.scale_bytes());
    total += parts.back().count();
  }
  ParallelFor(pool, total, [&](int64_t i) {
    size_t which = 0;
    for (; i >= parts[which].count(); ++which) i -= parts[which].count();
    const Product& product = products[which];
    Multiply(kernels, wide, product.stack, blocks, *product.x, parts[which][i], product.out, product.outputs);
  });
}

}  // namespace specjax

#endif  // SPECJAX_QUANT_MATMUL_PRODUCTS_H_
