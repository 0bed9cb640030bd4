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

// What several threads do together.
class SharedWork {
 public:
  virtual ~SharedWork() = default;
  // Whether there was something left to do.
  virtual bool DoShare() = 0;
};

// A step of a model is more than a hundred calls, some ten microseconds apart, and waking a thread takes the caller ten
// to thirty. So a thread of XLA's that has helped waits for the next call before it returns to XLA. Meanwhile XLA cannot
// use it: its stay is limited. And no thread waits where others want its core.
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
      if (seat.state.load(std::memory_order_relaxed) != kWaits || !seat.Take(kWaits)) continue;
      seat.work = work;
      seat.state.store(kGiven, std::memory_order_release);
      ++given;
    }
    return given;
  }

  // Does work, and what is given to this thread soon after it.
  void Help(SharedWork& work) {
    const auto arrival = Clock::now();
    if (!work.DoShare()) return;
    const auto seat = std::find_if(seats_.begin(), seats_.end(), [](Seat& seat) { return seat.Take(kEmpty); });
    if (seat == seats_.end()) return;
    for (auto begin = arrival;;) {
      const auto now = Clock::now();
      if (now - begin > kLong || now - arrival > kStay || now < crowded_.until() || !Receive(*seat)) break;
      begin = Clock::now();
      std::exchange(seat->work, nullptr)->DoShare();
    }
    seat->state.store(kEmpty, std::memory_order_release);
  }

 private:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::microseconds kPatience{50};
  static constexpr std::chrono::microseconds kLong{500};  // beside that, being woken again is nothing
  static constexpr std::chrono::milliseconds kStay{5};
  static constexpr std::chrono::microseconds kLost{500};  // a core that was yielded for so long is wanted by others
  static constexpr int kSeats = 64;                       // threads beyond these never wait

  // Until when cores are left to others. The time doubles where a core is found to be wanted as soon as threads wait
  // again: another program computes. A thread of this process that works now and then costs the shortest time only.
  class Crowded {
   public:
    Clock::time_point until() const { return until_.load(std::memory_order_relaxed); }
    void Found(Clock::time_point yielded, Clock::time_point back) {
      if (yielded < until()) return;  // another thread has found it
      const auto last = last_.load(std::memory_order_relaxed);
      const auto next = yielded - until() < kAtOnce ? std::min(2 * last, kLongest) : kShortest;
      last_.store(next, std::memory_order_relaxed);
      until_.store(back + next, std::memory_order_relaxed);
    }

   private:
    static constexpr std::chrono::milliseconds kShortest{1}, kLongest{64}, kAtOnce{2};
    std::atomic<Clock::time_point> until_{Clock::time_point()};
    std::atomic<std::chrono::milliseconds> last_{kShortest};
  };

  // Whoever takes a seat owns its work until the next change: the thread on it, or one that gives.
  enum State { kEmpty, kTaken, kWaits, kGiven };

  struct alignas(64) Seat {
    std::atomic<State> state{kEmpty};
    std::shared_ptr<SharedWork> work;

    bool Take(State from) { return state.compare_exchange_strong(from, kTaken, std::memory_order_acquire); }
  };

  bool Receive(Seat& seat) {
    seat.state.store(kWaits, std::memory_order_release);
    const auto begin = Clock::now();
    bool late = false;
    while (seat.state.load(std::memory_order_acquire) != kGiven) {
      for (int i = 0; i < 16; ++i) Pause();
      const auto before = Clock::now();
      std::this_thread::yield();  // XLA may have woken another thread, and this core may be the only one for it
      const auto now = Clock::now();
      if (now - before > kLost) crowded_.Found(before, now);
      late = late || now - begin > kPatience;
      if (late && seat.Take(kWaits)) return false;  // else somebody is about to give it work
    }
    seat.state.store(kTaken, std::memory_order_relaxed);
    return true;
  }

  std::array<Seat, kSeats> seats_;
  Crowded crowded_;
};

}  // namespace specjax

#endif  // SPECJAX_LINGERING_H_
