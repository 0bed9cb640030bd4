// Calls from XLA: norms and totals of rows, and short convolutions.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "cpu.h"
#include "parallel.h"
#include "rowwise/kernels.h"
#include "xla/ffi/api/ffi.h"

namespace specjax {
namespace {

namespace ffi = xla::ffi;
using Floats = ffi::Buffer<ffi::F32>;

constexpr int64_t kChunkFloats = 4 << 10;  // less is not worth another thread's attention

ffi::Error Wrong(const std::string& what) { return ffi::Error::InvalidArgument(what); }

// x [R, D]; weight [D] or empty; gate [R, D] or empty.
ffi::Error Normalize(ffi::ThreadPool pool, Floats x, Floats weight, Floats gate, ffi::ResultBuffer<ffi::F32> out,
                     std::string_view isa, float scale, float epsilon) {
  const RowwiseKernels* kernels = FindKernels<RowwiseKernels>(isa);
  if (kernels == nullptr) return Wrong("rms_norm: this processor lacks " + std::string(isa));
  const auto dims = x.dimensions();
  const int64_t weights = weight.element_count(), gates = gate.element_count();
  if (dims.size() != 2 || out->element_count() != x.element_count() || (weights && weights != dims[1]) ||
      (gates && gate.element_count() != x.element_count()))
    return Wrong("rms_norm: arrays do not fit together");
  const int64_t rows = dims[0], width = dims[1];
  const int64_t at_a_time = std::max<int64_t>(1, kChunkFloats / std::max<int64_t>(1, width));
  const float* const factors = weights ? weight.typed_data() : nullptr;
  ParallelFor(pool, (rows + at_a_time - 1) / at_a_time, [&](int64_t chunk) {
    for (int64_t row = chunk * at_a_time; row < std::min(rows, (chunk + 1) * at_a_time); ++row) {
      kernels->normalize(x.typed_data() + row * width, factors, gates ? gate.typed_data() + row * width : nullptr,
                         width, scale, epsilon, out->typed_data() + row * width);
    }
  });
  return ffi::Error::Success();
}

// x [R, V] to two arrays [R].
ffi::Error SoftmaxTotals(ffi::ThreadPool pool, Floats x, ffi::ResultBuffer<ffi::F32> log_total,
                         ffi::ResultBuffer<ffi::F32> entropy, std::string_view isa) {
  const RowwiseKernels* kernels = FindKernels<RowwiseKernels>(isa);
  if (kernels == nullptr) return Wrong("softmax_totals: this processor lacks " + std::string(isa));
  const auto dims = x.dimensions();
  if (dims.size() != 2 || dims[1] < 1 || static_cast<int64_t>(log_total->element_count()) != dims[0] ||
      static_cast<int64_t>(entropy->element_count()) != dims[0])
    return Wrong("softmax_totals: arrays do not fit together");
  const int64_t rows = dims[0], width = dims[1], at_a_time = std::max<int64_t>(1, kChunkFloats / width);
  ParallelFor(pool, (rows + at_a_time - 1) / at_a_time, [&](int64_t chunk) {
    for (int64_t row = chunk * at_a_time; row < std::min(rows, (chunk + 1) * at_a_time); ++row)
      kernels->softmax_totals(x.typed_data() + row * width, width, log_total->typed_data() + row,
                              entropy->typed_data() + row);
  });
  return ffi::Error::Success();
}

// inputs [B, W-1+T, C] and weight [C, W] to out [B, T, C].
ffi::Error Convolve(ffi::ThreadPool pool, Floats inputs, Floats weight, ffi::ResultBuffer<ffi::F32> out,
                    std::string_view isa, bool silu) {
  const RowwiseKernels* kernels = FindKernels<RowwiseKernels>(isa);
  if (kernels == nullptr) return Wrong("causal_conv1d: this processor lacks " + std::string(isa));
  const auto in = inputs.dimensions(), to = out->dimensions(), taps = weight.dimensions();
  if (in.size() != 3 || to.size() != 3 || taps.size() != 2 || taps[0] != in[2] || taps[1] < 1 || taps[1] > 16 ||
      to[0] != in[0] || to[1] != in[1] - taps[1] + 1 || to[2] != in[2])
    return Wrong("causal_conv1d: arrays do not fit together");
  constexpr int64_t kChannels = 512, kTokens = 32;
  const int64_t channel_chunks = (in[2] + kChannels - 1) / kChannels, token_chunks = (to[1] + kTokens - 1) / kTokens;
  ParallelFor(pool, to[0] * token_chunks * channel_chunks, [&](int64_t i) {
    const int64_t c = i % channel_chunks * kChannels, t = i / channel_chunks % token_chunks * kTokens;
    const int64_t b = i / channel_chunks / token_chunks;
    kernels->convolve({inputs.typed_data() + (b * in[1] + t) * in[2] + c, in[2], weight.typed_data() + c * taps[1],
                       taps[1], std::min(kTokens, to[1] - t), std::min(kChannels, in[2] - c), silu,
                       out->typed_data() + (b * to[1] + t) * in[2] + c});
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace specjax

#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(specjax_rms_norm, specjax::Normalize,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Attr<std::string_view>("isa")
                                  .Attr<float>("scale")
                                  .Attr<float>("epsilon"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(specjax_softmax_totals, specjax::SoftmaxTotals,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Attr<std::string_view>("isa"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(specjax_causal_conv1d, specjax::Convolve,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Attr<std::string_view>("isa")
                                  .Attr<bool>("silu"));

#pragma GCC visibility pop
