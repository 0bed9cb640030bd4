// Calls from XLA: attention over a cache.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "attention/formats.h"
#include "attention/kernels.h"
#include "cpu.h"
#include "parallel.h"
#include "thread_memory.h"
#include "xla/ffi/api/ffi.h"

namespace specjax {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kTokens = 16;                    // of a block, which decodes a vector of a cache once for all of them
constexpr int64_t kMostFloats = int64_t{1} << 22;  // that wait to be merged, unless one block has more
constexpr int64_t kMostOfBlock = int64_t{1} << 25;  // beyond that a block has fewer tokens
constexpr int64_t kMostAsked = int64_t{5} << 17;   // bytes of a chunk that wait in a core's cache of level 2
constexpr int64_t kLeastPrepared = 8;              // chunks for which queries are prepared once, not by each

ffi::Error Wrong(const std::string& what) { return ffi::Error::InvalidArgument("attention: " + what); }

// The slots that a row at a position sees, see pallas_kernels/cache_attention/visibility.py; window 0 for none.
Seen SeenFrom(int64_t position, int64_t slots, int64_t window) {
  if (position < 0 || slots == 0) return {{0, 0}, {0, 0}};
  if (window == 0) return {{0, 0}, {std::min(position + 1, slots), 0}};
  const int64_t count = std::min({window, position + 1, slots}), last = position % slots;
  if (last + 1 >= count) return {{last + 1 - count, 0}, {last + 1, 0}};
  return {{0, slots - (count - last - 1)}, {last + 1, slots}};
}

ffi::Error Describe(std::string_view name, ffi::AnyBuffer codes, ffi::AnyBuffer scales, int64_t padded,
                    KvArray* array) {
  const auto* info = std::find_if(std::begin(kKvTypes), std::end(kKvTypes),
                                  [&](const KvType& each) { return each.name == name; });
  if (info == std::end(kKvTypes)) return Wrong("no type " + std::string(name));
  const auto dims = codes.dimensions(), scale_dims = scales.dimensions();
  if (dims.size() != 4 || (info->scaled() && scale_dims.size() != 4)) return Wrong("caches have four axes");
  array->type = info;
  array->codes = static_cast<const uint8_t*>(codes.untyped_data());
  array->scales = info->scaled() ? static_cast<const uint16_t*>(scales.untyped_data()) : nullptr;
  array->code_bytes = dims[3] * static_cast<int64_t>(ffi::ByteWidth(codes.element_type()));
  array->width = array->code_bytes * 8 / info->bits;
  array->groups = info->scaled() ? scale_dims[3] : 0;
  array->group = array->groups ? array->width / array->groups : 0;
  if (info->scaled() && (array->group == 0 || array->group * array->groups != array->width ||
                       array->group % (info->bits < 4 ? 64 : 32) || array->group > kMostOfGroup ||
                       scale_dims[0] != dims[0] || scale_dims[1] != dims[1] ||
                       scale_dims[2] != dims[2]))
    return Wrong("scales do not fit codes");
  if (info->scaled() && scales.element_type() != ffi::F16) return Wrong("scales are float16");
  if ((array->width + kPad - 1) / kPad * kPad != padded) return Wrong("widths do not fit");
  return ffi::Error::Success();
}

// q [B, T, H, padded] over k and v [B, S, G, ...], to out [B, T, H, padded]. Chunks of slots are the same whatever the
// rows and the threads, and are merged in their order.
//
// A block is some tokens of one sequence. A task is what one block and one KV head make of one chunk. As many blocks are
// taken at a time as have room for what their tasks leave to be merged.
ffi::Error Attend(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> q, ffi::Buffer<ffi::S32> positions,
                  ffi::AnyBuffer k_codes, ffi::AnyBuffer k_scales, ffi::AnyBuffer v_codes, ffi::AnyBuffer v_scales,
                  ffi::ResultBuffer<ffi::F32> out, std::string_view k_type, std::string_view v_type,
                  std::string_view isa, float scale, int64_t window) {
  const AttentionKernels* kernels = FindKernels<AttentionKernels>(isa);
  if (kernels == nullptr) return Wrong("this processor lacks " + std::string(isa));
  const auto q_dims = q.dimensions(), out_dims = out->dimensions(), dims = k_codes.dimensions();
  const auto v_dims = v_codes.dimensions();
  if (q_dims.size() != 4 || out_dims.size() != 4) return Wrong("queries and results have four axes");
  KvArray k, v;
  if (ffi::Error error = Describe(k_type, k_codes, k_scales, q_dims[3], &k); error.failure()) return error;
  if (ffi::Error error = Describe(v_type, v_codes, v_scales, out_dims[3], &v); error.failure()) return error;
  const int64_t batch = q_dims[0], rows = q_dims[1], query_heads = q_dims[2], slots = dims[1], heads = dims[2];
  if (dims[0] != batch || v_dims[0] != batch || v_dims[1] != slots || v_dims[2] != heads || out_dims[0] != batch ||
      out_dims[1] != rows || out_dims[2] != query_heads || heads == 0 || query_heads % heads ||
      static_cast<int64_t>(positions.element_count()) != batch * rows)
    return Wrong("arrays do not fit together");
  const int64_t k_width = q_dims[3], v_width = out_dims[3], per_head = query_heads / heads;
  if (batch * rows == 0) return ffi::Error::Success();

  std::vector<Seen> seen(batch * rows);
  std::vector<int64_t> row_chunks(batch * rows);
  for (int64_t i = 0; i < batch * rows; ++i) {
    seen[i] = SeenFrom(positions.typed_data()[i], slots, window);
    row_chunks[i] = (std::max(seen[i].end[0], seen[i].end[1]) + kChunk - 1) / kChunk;
  }
  const int64_t most_chunks = *std::max_element(row_chunks.begin(), row_chunks.end());
  int64_t tokens = kTokens;  // of a block
  while (tokens > 1 && most_chunks * query_heads * tokens * (2 + v_width) > kMostOfBlock) tokens /= 2;
  const int64_t blocks = (rows + tokens - 1) / tokens;  // of a sequence
  std::vector<int64_t> chunks_seen(batch * blocks, 1);
  for (int64_t i = 0; i < batch * rows; ++i) {
    int64_t& chunks = chunks_seen[i / rows * blocks + i % rows / tokens];
    chunks = std::max(chunks, row_chunks[i]);
  }
  const int64_t group = std::min(rows, tokens) * per_head;  // the most rows of a task
  const int64_t task_floats = group * (2 + v_width);
  const int64_t prepared_floats = kernels->prepared_floats(group, k_width);
  const int64_t chunk_bytes = kChunk * heads * (k.code_bytes + v.code_bytes);

  for (int64_t first = 0, last = 0; first < batch * blocks; first = last) {
    int64_t chunks = chunks_seen[first];
    for (++last; last < batch * blocks; ++last) {
      const int64_t most = std::max(chunks, chunks_seen[last]);
      if ((last + 1 - first) * most * heads * task_floats > kMostFloats) break;
      chunks = most;
    }
    const int64_t tasks = (last - first) * chunks * heads;
    // A thread takes neighbouring tasks: with many, it comes to the next chunk itself. Codes of few bits take longer to
    // decode than to come.
    const bool ask_next = k.type->bits + v.type->bits >= 16 && chunk_bytes <= kMostAsked &&
                          tasks >= 2 * heads * pool.num_threads();
    // For each task and row: the largest score, the sum of weights, and the weighted values.
    float* const highest = ThreadMemory<Purpose::kCall>(tasks * task_floats);
    float* const total = highest + tasks * group;
    float* const sums = total + tasks * group;

    const auto task_of = [&](int64_t block, int64_t head) {
      const int64_t b = block / blocks, token = block % blocks * tokens;
      ChunkTask task = {};
      task.k = k;
      task.v = v;
      for (KvArray* array : {&task.k, &task.v}) {
        array->codes += b * slots * heads * array->code_bytes;
        if (array->groups) array->scales += b * slots * heads * array->groups;
      }
      task.head = head;
      task.heads = heads;
      task.q = q.typed_data() + ((b * rows + token) * query_heads + head * per_head) * k_width;
      task.q_stride = query_heads * k_width;
      task.seen = seen.data() + b * rows + token;
      task.tokens = std::min(tokens, rows - token);
      task.per_token = per_head;
      task.k_width = k_width;
      task.v_width = v_width;
      task.scale = scale;
      return task;
    };

    const bool prepare = k.type->scaled() && chunks >= kLeastPrepared;
    float* const prepared =
        prepare ? ThreadMemory<Purpose::kQueries>((last - first) * heads * prepared_floats) : nullptr;
    const auto prepared_of = [&](int64_t block, int64_t head) {
      return prepare ? prepared + ((block - first) * heads + head) * prepared_floats : nullptr;
    };
    if (prepare)
      ParallelFor(pool, (last - first) * heads, [&](int64_t i) {
        const int64_t head = i % heads, block = first + i / heads;
        kernels->prepare(task_of(block, head), prepared_of(block, head));
      });

    ParallelFor(pool, tasks, [&](int64_t i) {
      const int64_t head = i % heads, chunk = i / heads % chunks, block = first + i / heads / chunks;
      if (chunk >= chunks_seen[block]) return;
      ChunkTask task = task_of(block, head);
      task.begin = chunk * kChunk;
      task.end = std::min(slots, task.begin + kChunk);
      task.next_asked = ask_next && chunk + 1 < chunks_seen[block];
      task.prepared = prepared_of(block, head);
      task.memory = ThreadMemory<Purpose::kChunk>(kernels->floats(group, k_width, v_width));
      task.highest = highest + i * group;
      task.total = total + i * group;
      task.sums = sums + i * group * v_width;
      kernels->chunk(task);
    });

    ParallelFor(pool, (last - first) * heads, [&](int64_t i) {
      const int64_t head = i % heads, block = first + i / heads;
      const int64_t b = block / blocks, token = block % blocks * tokens;
      for (int64_t m = 0; m < std::min(tokens, rows - token) * per_head; ++m) {
        const int64_t at = (i / heads * chunks * heads + head) * group + m;
        float* const to = out->typed_data() + ((b * rows + token + m / per_head) * query_heads + head * per_head +
                                               m % per_head) * v_width;
        kernels->merge({highest + at, total + at, sums + at * v_width, chunks_seen[block], heads * group, v_width}, to);
      }
    });
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace specjax

#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(specjax_attend, specjax::Attend,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Attr<std::string_view>("k_type")
                                  .Attr<std::string_view>("v_type")
                                  .Attr<std::string_view>("isa")
                                  .Attr<float>("scale")
                                  .Attr<int64_t>("window"));

#pragma GCC visibility pop
