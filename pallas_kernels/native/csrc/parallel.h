// Loops over chunks of work on XLA's own threads.
#ifndef SPECJAX_PARALLEL_H_
#define SPECJAX_PARALLEL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "cpu.h"
#include "xla/ffi/api/ffi.h"

namespace specjax {

// Calls body(chunk) for every chunk in [0, chunks).
//
// The caller works on chunks until none is left, and then waits only for those that other threads have begun. It never
// waits for a task that has not started: XLA runs independent custom calls at the same time, and when each of its
// threads sits in such a call there is nobody left to start one. Tasks that come too late find no chunk and return;
// what they look at is shared, so that it outlives the call.
template <typename Body>
void ParallelFor(xla::ffi::ThreadPool& pool, int64_t chunks, const Body& body) {
  struct Shared {
    const Body* body;  // lives until every chunk is done; not touched afterwards
    int64_t chunks;
    std::atomic<int64_t> next{0};
    std::atomic<int64_t> done{0};

    void Drain() {
      FlushDenormals flush;
      for (int64_t chunk; (chunk = next.fetch_add(1, std::memory_order_relaxed)) < chunks;) {
        (*body)(chunk);
        done.fetch_add(1, std::memory_order_release);
      }
    }
  };
  auto shared = std::make_shared<Shared>();
  shared->body = &body;
  shared->chunks = chunks;
  const int64_t helpers = std::min(chunks, pool.num_threads()) - 1;
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule([shared] { shared->Drain(); });
  shared->Drain();
  for (int spins = 0; shared->done.load(std::memory_order_acquire) < chunks; ++spins) {
    if (spins > 1000) std::this_thread::yield();
  }
}

}  // namespace specjax

#endif  // SPECJAX_PARALLEL_H_
