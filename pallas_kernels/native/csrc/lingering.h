// Threads that have done their share of a call, and stay awake for the next one.
#ifndef SPECJAX_LINGERING_H_
#define SPECJAX_LINGERING_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "cpu.h"

namespace specjax {

// What several threads do together. A thread that comes too late finds nothing to do.
class SharedWork {
 public:
  virtual ~SharedWork() = default;
  virtual void DoShare() = 0;
};

// A step of a model is more than a hundred calls, some ten microseconds apart, and waking a thread takes the caller ten
// to thirty. So XLA's threads wait for a moment before they go back to XLA, which may want them for something else.
class Lingering {
 public:
  static Lingering& Threads() {
    static auto* const threads = new Lingering;  // never destroyed: threads may wait while the process ends
    return *threads;
  }

  // Gives work to as many as `count` threads that wait. Returns how many they are.
  int64_t Give(const std::shared_ptr<SharedWork>& work, int64_t count) {
    int64_t given = 0;
    for (Seat& seat : seats_) {
      if (given == count) break;
      if (seat.state.load(std::memory_order_relaxed) != kWaits || !seat.Move(kWaits, kBusy)) continue;
      seat.work = work;
      seat.state.store(kGiven, std::memory_order_release);
      ++given;
    }
    return given;
  }

  // Does work, and what is given to this thread in the moment after it.
  void Help(std::shared_ptr<SharedWork> work) {
    const auto seat = std::find_if(seats_.begin(), seats_.end(), [](Seat& seat) { return seat.Move(kEmpty, kBusy); });
    if (seat == seats_.end()) return work->DoShare();
    for (;;) {
      const auto begin = Clock::now();
      work->DoShare();
      work = nullptr;
      if (Clock::now() - begin > kLong || !seat->Receive()) break;
      work = std::move(seat->work);
    }
    seat->state.store(kEmpty, std::memory_order_release);
  }

 private:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::microseconds kPatience{50};
  static constexpr std::chrono::microseconds kLong{500};  // beside that, being woken again is nothing
  static constexpr int kSeats = 64;                       // more threads than that are woken for every call

  enum State { kEmpty, kBusy, kWaits, kGiven };

  struct alignas(64) Seat {
    std::atomic<State> state{kEmpty};
    std::shared_ptr<SharedWork> work;

    bool Move(State from, State to) { return state.compare_exchange_strong(from, to, std::memory_order_acquire); }

    bool Receive() {
      const auto end = Clock::now() + kPatience;
      state.store(kWaits, std::memory_order_release);
      bool late = false;
      while (state.load(std::memory_order_acquire) != kGiven) {
        for (int i = 0; i < 16; ++i) Pause();
        std::this_thread::yield();  // XLA may have woken another thread, and this core may be the only one for it
        // Who cannot leave has just been chosen, and is given its work at once.
        late = late || Clock::now() > end;
        if (late && Move(kWaits, kBusy)) return false;
      }
      state.store(kBusy, std::memory_order_relaxed);
      return true;
    }
  };

  std::array<Seat, kSeats> seats_;
};

}  // namespace specjax

#endif  // SPECJAX_LINGERING_H_
