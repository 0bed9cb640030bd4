// Calls from XLA: products with panels, and blocks to panels.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <string_view>

#include "cpu.h"
#include "parallel.h"
#include "quant_matmul/kernels.h"
#include "quant_matmul/pack.h"
#include "quant_matmul/panels.h"
#include "xla/ffi/api/ffi.h"

namespace specjax {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kChunksPerThread = 8;
constexpr int64_t kChunkBytes = 32 << 10;   // less is not worth another thread's attention
constexpr int64_t kRoundValues = 16 << 10;  // values rounded at a time

const QuantKernels* FindKernels(std::string_view isa) {
  if (!IsaSupported(isa)) return nullptr;
#if defined(__x86_64__)
  if (isa == "avx512vnni") return &Avx512VnniQuantKernels();
  if (isa == "avx2") return &Avx2QuantKernels();
#elif defined(__aarch64__)
  if (isa == "neon") return &NeonQuantKernels();
#endif
  return &PortableQuantKernels();
}

struct Delete {
  void operator()(uint8_t* bytes) const { ::operator delete[](bytes, std::align_val_t{64}); }
};
using Buffer = std::unique_ptr<uint8_t[], Delete>;

Buffer Allocate(int64_t bytes) { return Buffer(new (std::align_val_t{64}) uint8_t[bytes]); }

ffi::Error Wrong(const std::string& what) { return ffi::Error::InvalidArgument("quant_matmul: " + what); }

// x [B, M, K] times the matrices index[B] of a stack [E, P, bytes], to out [B, M, N]. An index out of range is clipped,
// but one below zero stands for rows that nobody reads: they become zeros.
ffi::Error Multiply(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::S32> index,
                    ffi::Buffer<ffi::U8> codes, ffi::Buffer<ffi::U8> scales, ffi::ResultBuffer<ffi::F32> out,
                    std::string_view format_name, std::string_view isa, bool wide) {
  const Format* format = FindFormat(format_name);
  const QuantKernels* kernels = FindKernels(isa);
  if (format == nullptr) return Wrong("no format " + std::string(format_name));
  if (kernels == nullptr) return Wrong("this processor lacks " + std::string(isa));
  const auto dims = x.dimensions(), code_dims = codes.dimensions(), scale_dims = scales.dimensions();
  const auto out_dims = out->dimensions();
  if (dims.size() != 3 || code_dims.size() != 3 || scale_dims.size() != 3 || out_dims.size() != 3)
    return Wrong("every array has three axes");
  const int64_t batch = dims[0], rows = dims[1], width = dims[2], outputs = out_dims[2];
  const int64_t experts = code_dims[0], panels = code_dims[1];
  const int64_t code_bytes = PanelCodeBytes(*format, width), scale_bytes = PanelScaleBytes(*format, width);
  if (width % format->values || code_dims[2] != code_bytes || scale_dims[2] != scale_bytes ||
      scale_dims[0] != experts || scale_dims[1] != panels || panels != (outputs + kLanes - 1) / kLanes ||
      out_dims[0] != batch || out_dims[1] != rows || static_cast<int64_t>(index.element_count()) != batch)
    return Wrong("panels do not fit x or the result");
  if (batch * rows * outputs == 0) return ffi::Error::Success();
  if (experts == 0 || width == 0) return Wrong("an empty stack or empty rows");

  const int64_t record_bytes = kernels->record_bytes(wide), groups = width / kGroup;
  const Buffer records = Allocate(batch * rows * groups * record_bytes);
  const auto slab_records = [&](int64_t b, int64_t slab) {
    return records.get() + (b * rows + slab * kSlab) * groups * record_bytes;
  };
  const auto slab_rows = [&](int64_t slab) { return std::min<int64_t>(kSlab, rows - slab * kSlab); };
  const int32_t* matrix = index.typed_data();

  const int64_t at_a_time = std::max<int64_t>(1, kRoundValues / width);
  ParallelFor(pool, (batch * rows + at_a_time - 1) / at_a_time, [&](int64_t chunk) {
    for (int64_t i = chunk * at_a_time; i < std::min(batch * rows, (chunk + 1) * at_a_time); ++i) {
      const int64_t b = i / rows, row = i % rows, slab = row / kSlab;
      if (matrix[b] < 0) continue;
      kernels->round(*format, wide, x.typed_data() + i * width, width, slab_rows(slab), row % kSlab,
                     slab_records(b, slab));
    }
  });

  const int64_t slabs = (rows + kSlab - 1) / kSlab, products = batch * slabs;
  const int64_t wanted = std::max<int64_t>(1, pool.num_threads() * kChunksPerThread / products);
  const int64_t smallest = std::max<int64_t>(1, kChunkBytes / (code_bytes + scale_bytes));
  const int64_t per_chunk = std::max(smallest, (panels + wanted - 1) / wanted);
  const int64_t chunks = (panels + per_chunk - 1) / per_chunk;
  ParallelFor(pool, products * chunks, [&](int64_t i) {
    const int64_t chunk = i % chunks, slab = i / chunks % slabs, b = i / chunks / slabs;
    const int64_t begin = chunk * per_chunk, end = std::min(panels, begin + per_chunk);
    float* to = out->typed_data() + (b * rows + slab * kSlab) * outputs;
    if (matrix[b] < 0) {
      const int64_t last = std::min(outputs, end * kLanes);
      for (int64_t row = 0; row < slab_rows(slab); ++row)
        std::fill(to + row * outputs + begin * kLanes, to + row * outputs + last, 0.0f);
      return;
    }
    const int64_t expert = std::min<int64_t>(matrix[b], experts - 1);
    kernels->multiply(*format, wide, codes.typed_data() + expert * panels * code_bytes,
                      scales.typed_data() + expert * panels * scale_bytes, width, begin, end, slab_records(b, slab),
                      slab_rows(slab), to, outputs);
  });
  return ffi::Error::Success();
}

// Blocks [..., N, bytes of a row] to codes and scales [..., P, bytes of a panel].
ffi::Error Pack(ffi::ThreadPool pool, ffi::Buffer<ffi::U8> blocks, ffi::ResultBuffer<ffi::U8> codes,
                ffi::ResultBuffer<ffi::U8> scales, std::string_view format_name) {
  const Format* format = FindFormat(format_name);
  if (format == nullptr) return Wrong("no format " + std::string(format_name));
  const auto dims = blocks.dimensions();
  if (dims.size() != 3) return Wrong("every array has three axes");
  const int64_t matrices = dims[0], rows = dims[1], row_bytes = dims[2];
  const int64_t width = row_bytes / format->bytes * format->values, panels = (rows + kLanes - 1) / kLanes;
  const int64_t code_bytes = PanelCodeBytes(*format, width), scale_bytes = PanelScaleBytes(*format, width);
  if (row_bytes % format->bytes || static_cast<int64_t>(codes->element_count()) != matrices * panels * code_bytes ||
      static_cast<int64_t>(scales->element_count()) != matrices * panels * scale_bytes)
    return Wrong("blocks do not fit panels");
  ParallelFor(pool, matrices * panels, [&](int64_t i) {
    const int64_t first = i % panels * kLanes;
    PackPanel(*format, blocks.typed_data() + (i / panels * rows + first) * row_bytes, row_bytes,
              static_cast<int>(std::min<int64_t>(kLanes, rows - first)), width, codes->typed_data() + i * code_bytes,
              scales->typed_data() + i * scale_bytes);
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace specjax

#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(specjax_quant_matmul, specjax::Multiply,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::U8>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::U8>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Attr<std::string_view>("format")
                                  .Attr<std::string_view>("isa")
                                  .Attr<bool>("wide"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(specjax_quant_pack, specjax::Pack,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::U8>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::U8>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::U8>>()
                                  .Attr<std::string_view>("format"));

#pragma GCC visibility pop
