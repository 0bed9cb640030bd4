// Calls from XLA: the gated delta rule.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "cpu.h"
#include "gated_delta/kernels.h"
#include "parallel.h"
#include "thread_memory.h"
#include "xla/ffi/api/ffi.h"

namespace specjax {
namespace {

namespace ffi = xla::ffi;
using Floats = ffi::Buffer<ffi::F32>;
using Counts = ffi::Buffer<ffi::S32>;
using Result = ffi::ResultBuffer<ffi::F32>;

constexpr int64_t kChunkFloats = 16 << 10;  // of states; less is not worth another thread's attention

ffi::Error Wrong(const std::string& what) { return ffi::Error::InvalidArgument("gated_delta: " + what); }

// Sizes, taken from k [B, T, Hk, Dk] and values [B, T, Hv, Dv]. States are [B, Hv, Dk, Dv], or slots
// [B, M, Hv, Dk, Dv].
struct Sizes {
  int64_t batch = 0, tokens = 0, key_heads = 0, key_width = 0, value_heads = 0, value_width = 0, slots = 1;

  static ffi::Error Of(const Floats& k, const Floats& values, const Floats& g, const Floats& states,
                       const Counts& counts, Sizes* sizes) {
    const auto keys = k.dimensions(), v = values.dimensions(), s = states.dimensions();
    if (keys.size() != 4 || v.size() != 4 || s.size() < 4 || s.size() > 5)
      return Wrong("keys and values have four axes, states four or five");
    const size_t last = s.size() - 3;
    *sizes = {keys[0], keys[1], keys[2], keys[3], v[2], v[3], last == 2 ? s[1] : 1};
    if (v[0] != keys[0] || v[1] != keys[1] || keys[2] == 0 || v[2] % keys[2] || s[0] != keys[0] || s[last] != v[2] ||
        s[last + 1] != keys[3] || s[last + 2] != v[3] || sizes->slots == 0 ||
        static_cast<int64_t>(g.element_count()) != keys[0] * keys[1] * v[2] ||
        static_cast<int64_t>(counts.element_count()) != keys[0])
      return Wrong("arrays do not fit together");
    return ffi::Error::Success();
  }

  int64_t key_stride() const { return key_heads * key_width; }
  int64_t value_stride() const { return value_heads * value_width; }
  int64_t state_floats() const { return key_width * value_width; }
  int64_t slot_stride() const { return value_heads * state_floats(); }
  // Where sequence b's head starts in keys, in values, and in states.
  int64_t key_at(int64_t b, int64_t head, bool tiled) const {
    const int64_t own = tiled ? head % key_heads : head / (value_heads / key_heads);
    return (b * tokens * key_heads + own) * key_width;
  }
  int64_t value_at(int64_t b, int64_t head) const { return (b * tokens * value_heads + head) * value_width; }
  int64_t state_at(int64_t b, int64_t slot, int64_t head) const {
    return (b * slots + slot) * slot_stride() + head * state_floats();
  }
  // Scalars of a head, one for each token.
  template <typename F>
  void Gather(const float* from, int64_t b, int64_t head, const F& f, std::vector<float>* to) const {
    to->resize(tokens);
    for (int64_t t = 0; t < tokens; ++t) (*to)[t] = f(from[(b * tokens + t) * value_heads + head]);
  }
  // Calls body(b, head) for each.
  template <typename Body>
  void ForHeads(ffi::ThreadPool& pool, const Body& body) const {
    const int64_t heads = batch * value_heads;
    const int64_t at_once = std::max<int64_t>(1, kChunkFloats / std::max<int64_t>(1, state_floats()));
    ParallelFor(pool, (heads + at_once - 1) / at_once, [&](int64_t chunk) {
      for (int64_t i = chunk * at_once; i < std::min(heads, (chunk + 1) * at_once); ++i)
        body(i / value_heads, i % value_heads);
    });
  }
};

int64_t Clipped(int32_t count, int64_t tokens) { return std::clamp<int64_t>(count, 0, tokens); }

// Rows beyond n_valid have zeros. Without `slot`, states are read from slot 0. `u` may be null; and `next`, which is the
// memory of `states`, is null where no state is wanted.
ffi::Error Run(ffi::ThreadPool& pool, const Floats& q, const Floats& k, const Floats& v, const Floats& g,
               const Floats& beta, const Floats& states, const Counts* slot, const Counts& n_valid, Result& out,
               Result* u, float* next, std::string_view isa, float scale, bool tiled) {
  const GatedDeltaKernels* kernels = FindKernels<GatedDeltaKernels>(isa);
  if (kernels == nullptr) return Wrong("this processor lacks " + std::string(isa));
  Sizes sizes;
  if (ffi::Error error = Sizes::Of(k, v, g, states, n_valid, &sizes); error.failure()) return error;
  if (q.element_count() != k.element_count() || beta.element_count() != g.element_count() ||
      (slot != nullptr && slot->element_count() != n_valid.element_count()) ||
      out->element_count() != v.element_count() || (u != nullptr && (*u)->element_count() != v.element_count()))
    return Wrong("arrays do not fit together");
  sizes.ForHeads(pool, [&](int64_t b, int64_t head) {
    thread_local std::vector<float> decay, strength;
    sizes.Gather(g.typed_data(), b, head, [](float x) { return std::exp(x); }, &decay);
    sizes.Gather(beta.typed_data(), b, head, [](float x) { return x; }, &strength);
    const int64_t keys = sizes.key_at(b, head, tiled), values = sizes.value_at(b, head);
    const int64_t read = slot == nullptr ? 0 : Clipped(slot->typed_data()[b], sizes.slots - 1);
    HeadTask task;
    task.tokens = Clipped(n_valid.typed_data()[b], sizes.tokens);
    task.key_width = sizes.key_width;
    task.value_width = sizes.value_width;
    task.q = q.typed_data() + keys;
    task.k = k.typed_data() + keys;
    task.key_stride = sizes.key_stride();
    task.v = v.typed_data() + values;
    task.value_stride = sizes.value_stride();
    task.decay = decay.data();
    task.beta = strength.data();
    task.scale = scale;
    task.state = states.typed_data() + sizes.state_at(b, read, head);
    task.next = next == nullptr ? nullptr : next + sizes.state_at(b, 0, head);
    task.slots = next == nullptr ? 0 : sizes.slots;
    task.slot_stride = sizes.slot_stride();
    task.out = out->typed_data() + values;
    task.u = u == nullptr ? nullptr : (*u)->typed_data() + values;
    task.memory = ThreadMemory<Purpose::kChunk>(TileFloats(sizes.key_width, sizes.value_width));
    for (int64_t t = task.tokens; t < sizes.tokens; ++t) {
      for (float* rows : {task.out, task.u})
        if (rows != nullptr) std::fill_n(rows + t * task.value_stride, sizes.value_width, 0.0f);
    }
    if (task.tokens > 0) kernels->head(task);
  });
  return ffi::Error::Success();
}

ffi::Error Prefill(ffi::ThreadPool pool, Floats q, Floats k, Floats v, Floats g, Floats beta, Floats state,
                   Counts n_valid, Result out, Result next, std::string_view isa, float scale, bool tiled) {
  if (next->typed_data() != state.typed_data()) return Wrong("the state is not updated in place");
  return Run(pool, q, k, v, g, beta, state, nullptr, n_valid, out, nullptr, next->typed_data(), isa, scale, tiled);
}

ffi::Error Verify(ffi::ThreadPool pool, Floats q, Floats k, Floats v, Floats g, Floats beta, Floats state,
                  Counts n_valid, Result out, Result u, std::string_view isa, float scale, bool tiled) {
  return Run(pool, q, k, v, g, beta, state, nullptr, n_valid, out, &u, nullptr, isa, scale, tiled);
}

ffi::Error Snapshots(ffi::ThreadPool pool, Floats q, Floats k, Floats v, Floats g, Floats beta, Floats slots,
                     Counts slot, Counts n_valid, Result out, Result next, std::string_view isa, float scale,
                     bool tiled) {
  if (next->typed_data() != slots.typed_data()) return Wrong("the slots are not updated in place");
  return Run(pool, q, k, v, g, beta, slots, &slot, n_valid, out, nullptr, next->typed_data(), isa, scale, tiled);
}

ffi::Error Commit(ffi::ThreadPool pool, Floats state, Floats k, Floats u, Floats g, Counts n, Result next,
                  std::string_view isa, bool tiled) {
  const GatedDeltaKernels* kernels = FindKernels<GatedDeltaKernels>(isa);
  if (kernels == nullptr) return Wrong("this processor lacks " + std::string(isa));
  Sizes sizes;
  if (ffi::Error error = Sizes::Of(k, u, g, state, n, &sizes); error.failure()) return error;
  if (next->element_count() != state.element_count()) return Wrong("arrays do not fit together");
  sizes.ForHeads(pool, [&](int64_t b, int64_t head) {
    thread_local std::vector<float> decay;
    const int64_t states = sizes.state_at(b, 0, head);
    CommitTask task;
    task.tokens = Clipped(n.typed_data()[b], sizes.tokens);
    task.state = state.typed_data() + states;
    task.next = next->typed_data() + states;
    if (task.tokens == 0 && task.next == task.state) return;
    sizes.Gather(g.typed_data(), b, head, [](float x) { return std::exp(x); }, &decay);
    task.key_width = sizes.key_width;
    task.value_width = sizes.value_width;
    task.k = k.typed_data() + sizes.key_at(b, head, tiled);
    task.key_stride = sizes.key_stride();
    task.u = u.typed_data() + sizes.value_at(b, head);
    task.value_stride = sizes.value_stride();
    task.decay = decay.data();
    kernels->commit(task);
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace specjax

#pragma GCC visibility push(default)

#define SPECJAX_ARGS_BINDING                \
  xla::ffi::Ffi::Bind()                     \
      .Ctx<xla::ffi::ThreadPool>()          \
      .Arg<xla::ffi::Buffer<xla::ffi::F32>>() \
      .Arg<xla::ffi::Buffer<xla::ffi::F32>>() \
      .Arg<xla::ffi::Buffer<xla::ffi::F32>>() \
      .Arg<xla::ffi::Buffer<xla::ffi::F32>>() \
      .Arg<xla::ffi::Buffer<xla::ffi::F32>>() \
      .Arg<xla::ffi::Buffer<xla::ffi::F32>>() \
      .Arg<xla::ffi::Buffer<xla::ffi::S32>>()

#define SPECJAX_RUN_BINDING(arguments)      \
  arguments                                 \
      .Ret<xla::ffi::Buffer<xla::ffi::F32>>() \
      .Ret<xla::ffi::Buffer<xla::ffi::F32>>() \
      .Attr<std::string_view>("isa")        \
      .Attr<float>("scale")                 \
      .Attr<bool>("tiled")

XLA_FFI_DEFINE_HANDLER_SYMBOL(specjax_gated_delta_prefill, specjax::Prefill,
                              SPECJAX_RUN_BINDING(SPECJAX_ARGS_BINDING));
XLA_FFI_DEFINE_HANDLER_SYMBOL(specjax_gated_delta_verify, specjax::Verify, SPECJAX_RUN_BINDING(SPECJAX_ARGS_BINDING));
XLA_FFI_DEFINE_HANDLER_SYMBOL(specjax_gated_delta_verify_snapshots, specjax::Snapshots,
                              SPECJAX_RUN_BINDING(SPECJAX_ARGS_BINDING.Arg<xla::ffi::Buffer<xla::ffi::S32>>()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(specjax_gated_delta_commit, specjax::Commit,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Attr<std::string_view>("isa")
                                  .Attr<bool>("tiled"));

#pragma GCC visibility pop
