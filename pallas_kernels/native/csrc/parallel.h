// Loops over chunks of work on XLA's own threads.
#ifndef SPECJAX_PARALLEL_H_
#define SPECJAX_PARALLEL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "cpu.h"
#include "lingering.h"
#include "xla/ffi/api/ffi.h"

namespace specjax {

// Calls body(chunk) for every chunk in [0, chunks).
//
// Each thread works along a stretch of neighbouring chunks, which memory is read fastest by, and then helps with what is
// left of the others'. The caller works until no chunk is left, and then waits only for those that other threads have
// begun. It never waits for a task that has not started: XLA runs independent custom calls at the same time, and when
// each of its threads sits in such a call there is nobody left to start one. Tasks that come too late find no chunk and
// return; what they look at is shared, so that it outlives the call.
template <typename Body>
void ParallelFor(xla::ffi::ThreadPool& pool, int64_t chunks, const Body& body) {
  struct alignas(64) Stretch {
    std::atomic<int64_t> next;
    int64_t end;
  };
  struct Shared : SharedWork {
    const Body* body;  // lives until every chunk is done; not touched afterwards
    std::vector<Stretch> stretches;
    std::atomic<int64_t> threads{0};
    std::atomic<int64_t> done{0};

    bool DoShare() override {
      FlushDenormals flush;
      const int64_t count = stretches.size(), own = threads.fetch_add(1, std::memory_order_relaxed);
      bool helped = false;
      for (int64_t i = 0; i < count; ++i) {
        Stretch& stretch = stretches[(own + i) % count];
        int64_t finished = 0;
        for (int64_t chunk; (chunk = stretch.next.fetch_add(1, std::memory_order_relaxed)) < stretch.end; ++finished) {
          (*body)(chunk);
        }
        if (finished == 0) continue;
        helped = true;
        done.fetch_add(finished, std::memory_order_release);
      }
      return helped;
    }
  };
  const int64_t threads = std::min(chunks, pool.num_threads());
  if (threads <= 1) {
    FlushDenormals flush;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) body(chunk);
    return;
  }
  auto shared = std::make_shared<Shared>();
  shared->body = &body;
  shared->stretches = std::vector<Stretch>(threads);
  for (int64_t i = 0; i < threads; ++i) {
    shared->stretches[i].next = chunks * i / threads;
    shared->stretches[i].end = chunks * (i + 1) / threads;
  }
  for (int64_t i = 1 + Lingering::Threads().Give(shared, threads - 1); i < threads; ++i) {
    pool.Schedule([shared] { Lingering::Threads().Help(*shared); });
  }
  shared->DoShare();
  for (int spins = 0; shared->done.load(std::memory_order_acquire) < chunks; ++spins) {
    if (spins > 1000) std::this_thread::yield();
  }
}

}  // namespace specjax

#endif  // SPECJAX_PARALLEL_H_
