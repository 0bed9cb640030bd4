// Memory of a thread, kept from call to call.
#ifndef SPECJAX_THREAD_MEMORY_H_
#define SPECJAX_THREAD_MEMORY_H_

#include <cstdint>
#include <memory>
#include <new>

namespace specjax {

// What a handler needs until it returns, also for queries, and what each of its chunks needs.
enum class Purpose { kCall, kQueries, kChunk };

// Room for so many floats, aligned to 64 bytes. The next call on the same thread for the same purpose gives the same
// memory: asking the system for some hundred kilobytes again and again costs more than using them.
template <Purpose purpose>
float* ThreadMemory(int64_t floats) {
  struct Delete {
    void operator()(float* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
  };
  thread_local std::unique_ptr<float[], Delete> memory;
  thread_local int64_t size = 0;
  if (size < floats) {
    memory.reset(new (std::align_val_t{64}) float[floats]);
    size = floats;
  }
  return memory.get();
}

}  // namespace specjax

#endif  // SPECJAX_THREAD_MEMORY_H_
