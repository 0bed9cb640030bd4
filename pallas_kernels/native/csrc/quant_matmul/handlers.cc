// Calls from XLA: products with panels, and blocks to panels.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cpu.h"
#include "parallel.h"
#include "quant_matmul/kernels.h"
#include "quant_matmul/pack.h"
#include "quant_matmul/panels.h"
#include "quant_matmul/products.h"
#include "xla/ffi/api/ffi.h"

namespace specjax {
namespace {

namespace ffi = xla::ffi;

ffi::Error Wrong(const std::string& what) { return ffi::Error::InvalidArgument("quant_matmul: " + what); }

using Bytes = ffi::Buffer<ffi::U8>;

ffi::Error ToStack(std::string_view format, const Bytes& codes, const Bytes& scales, int64_t width, Stack* stack) {
  const auto code_dims = codes.dimensions(), scale_dims = scales.dimensions();
  if (code_dims.size() != 3 || scale_dims.size() != 3) return Wrong("codes and scales have three axes");
  *stack = {FindFormat(format), codes.typed_data(), scales.typed_data(), code_dims[0], code_dims[1], width};
  if (stack->format == nullptr) return Wrong("no format " + std::string(format));
  if (width == 0 || width % stack->format->values || code_dims[2] != stack->code_bytes() ||
      scale_dims[2] != stack->scale_bytes() || scale_dims[0] != stack->experts || scale_dims[1] != stack->panels)
    return Wrong("codes and scales do not fit x or each other");
  return ffi::Error::Success();
}

// What several matrices are multiplied with: rounded once for all of one format.
class SharedRows {
 public:
  SharedRows(ffi::ThreadPool& pool, const QuantKernels& kernels, bool wide, const Blocks& blocks, const float* x)
      : pool_(pool), kernels_(kernels), wide_(wide), blocks_(blocks), x_(x) {}

  const RoundedRows* For(const Stack& stack) {
    std::unique_ptr<RoundedRows>& rows = rounded_[stack.format];
    if (rows == nullptr)
      rows = std::make_unique<RoundedRows>(pool_, kernels_, wide_, *stack.format, blocks_, x_, stack.width);
    return rows.get();
  }

 private:
  ffi::ThreadPool& pool_;
  const QuantKernels& kernels_;
  bool wide_;
  const Blocks& blocks_;
  const float* x_;
  std::map<const Format*, std::unique_ptr<RoundedRows>> rounded_;
};

ffi::Error ToBlocks(const ffi::Buffer<ffi::F32>& x, const ffi::Buffer<ffi::S32>& index, Blocks* blocks) {
  const auto dims = x.dimensions();
  if (dims.size() != 3 || static_cast<int64_t>(index.element_count()) != dims[0])
    return Wrong("x has three axes, of which the first is that of the index");
  *blocks = {dims[0], dims[1], index.typed_data()};
  return ffi::Error::Success();
}

bool Fits(ffi::Result<ffi::Buffer<ffi::F32>>& out, const Blocks& blocks, const Stack& stack) {
  const auto dims = out->dimensions();
  return dims.size() == 3 && dims[0] == blocks.batch && dims[1] == blocks.rows &&
         stack.panels == (dims[2] + kLanes - 1) / kLanes && stack.experts > 0;
}

// x [B, M, K] times the matrices index[B] of each of several stacks, given as pairs of codes and scales [E, P, bytes],
// to as many results [B, M, N]. `formats` are names with commas between them.
ffi::Error MultiplyStacks(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::S32> index,
                          ffi::RemainingArgs stacks, ffi::RemainingRets results, std::string_view formats,
                          std::string_view isa, bool wide) {
  const QuantKernels* found = FindKernels<QuantKernels>(isa);
  if (found == nullptr) return Wrong("this processor lacks " + std::string(isa));
  if (stacks.size() != 2 * results.size()) return Wrong("each stack is codes and scales");
  Blocks blocks;
  if (ffi::Error error = ToBlocks(x, index, &blocks); error.failure()) return error;
  if (blocks.batch * blocks.rows == 0) return ffi::Error::Success();
  const QuantKernels& kernels = found->For(blocks.rows);
  SharedRows rows(pool, kernels, wide, blocks, x.typed_data());
  std::vector<Product> products;
  for (size_t i = 0; i < results.size(); ++i) {
    const auto codes = stacks.get<Bytes>(2 * i), scales = stacks.get<Bytes>(2 * i + 1);
    auto out = results.get<ffi::Buffer<ffi::F32>>(i);
    if (!codes || !scales || !out) return Wrong("stacks are bytes, results floats");
    const std::string_view format = formats.substr(0, formats.find(','));
    formats.remove_prefix(std::min(formats.size(), format.size() + 1));
    Stack stack;
    if (ffi::Error error = ToStack(format, *codes, *scales, x.dimensions()[2], &stack); error.failure()) return error;
    if (!Fits(*out, blocks, stack)) return Wrong("a result does not fit its stack");
    products.push_back({stack, rows.For(stack), (*out)->typed_data(), (*out)->dimensions()[2]});
  }
  MultiplyAll(pool, kernels, wide, blocks, products);
  return ffi::Error::Success();
}

// down(silu(gate(x)) * up(x)) of the matrices index[B] of three stacks: x [B, M, K] to [B, M, N].
ffi::Error MultiplySwiglu(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::S32> index, Bytes gate_codes,
                          Bytes gate_scales, Bytes up_codes, Bytes up_scales, Bytes down_codes, Bytes down_scales,
                          ffi::ResultBuffer<ffi::F32> out, std::string_view gate_format, std::string_view up_format,
                          std::string_view down_format, std::string_view isa, bool wide, int64_t hidden, float limit) {
  const QuantKernels* found = FindKernels<QuantKernels>(isa);
  if (found == nullptr) return Wrong("this processor lacks " + std::string(isa));
  Blocks blocks;
  if (ffi::Error error = ToBlocks(x, index, &blocks); error.failure()) return error;
  if (blocks.batch * blocks.rows == 0) return ffi::Error::Success();
  const QuantKernels& kernels = found->For(blocks.rows);
  Stack gate, up, down;
  const int64_t width = x.dimensions()[2];
  if (ffi::Error error = ToStack(gate_format, gate_codes, gate_scales, width, &gate); error.failure()) return error;
  if (ffi::Error error = ToStack(up_format, up_codes, up_scales, width, &up); error.failure()) return error;
  if (ffi::Error error = ToStack(down_format, down_codes, down_scales, hidden, &down); error.failure()) return error;
  if (gate.panels != up.panels || gate.experts != up.experts || gate.panels != (hidden + kLanes - 1) / kLanes ||
      gate.experts == 0 || !Fits(out, blocks, down))
    return Wrong("gate, up, down and the result do not fit together");

  const AlignedBuffer<float> gated(blocks.batch * blocks.rows * hidden), upper(blocks.batch * blocks.rows * hidden);
  {
    SharedRows rows(pool, kernels, wide, blocks, x.typed_data());
    const RoundedRows *for_gate = rows.For(gate), *for_up = rows.For(up);
    const Parts parts(pool, blocks, gate.panels,
                      gate.code_bytes() + gate.scale_bytes() + up.code_bytes() + up.scale_bytes());
    ParallelFor(pool, parts.count(), [&](int64_t i) {
      const Part part = parts[i];
      Multiply(kernels, wide, gate, blocks, *for_gate, part, gated.get(), hidden);
      Multiply(kernels, wide, up, blocks, *for_up, part, upper.get(), hidden);
      const int64_t begin = part.begin * kLanes, end = std::min(hidden, part.end * kLanes);
      for (int64_t row = 0; row < blocks.slab_rows(part.slab); ++row) {
        const int64_t at = (part.b * blocks.rows + part.slab * kSlab + row) * hidden + begin;
        kernels.swiglu(gated.get() + at, upper.get() + at, end - begin, limit, gated.get() + at);
      }
    });
  }
  const RoundedRows rows(pool, kernels, wide, *down.format, blocks, gated.get(), hidden);
  MultiplyAll(pool, kernels, wide, blocks, {{down, &rows, out->typed_data(), out->dimensions()[2]}});
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

XLA_FFI_DEFINE_HANDLER_SYMBOL(specjax_quant_matmul, specjax::MultiplyStacks,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<std::string_view>("formats")
                                  .Attr<std::string_view>("isa")
                                  .Attr<bool>("wide"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(specjax_quant_swiglu, specjax::MultiplySwiglu,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::U8>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::U8>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::U8>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::U8>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::U8>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::U8>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Attr<std::string_view>("gate_format")
                                  .Attr<std::string_view>("up_format")
                                  .Attr<std::string_view>("down_format")
                                  .Attr<std::string_view>("isa")
                                  .Attr<bool>("wide")
                                  .Attr<int64_t>("hidden")
                                  .Attr<float>("limit"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(specjax_quant_pack, specjax::Pack,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::U8>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::U8>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::U8>>()
                                  .Attr<std::string_view>("format"));

#pragma GCC visibility pop
