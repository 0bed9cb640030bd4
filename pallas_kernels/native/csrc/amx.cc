// Whether the tiles of AMX can be used: asked of the processor, of the operating system, and tried.
#include "cpu.h"

#if defined(__x86_64__) && defined(__linux__) && defined(__AMX_INT8__)
#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace specjax {
namespace {

bool Announced() {
  constexpr unsigned kAmxTile = 1u << 24, kAmxInt8 = 1u << 25, kXsave = 1u << 27;
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kXsave)) return false;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  return (d & kAmxTile) && (d & kAmxInt8);
}

// Linux saves the tiles of a process, of all its threads, once it has asked for that.
bool Permitted() {
  constexpr int kArchReqXcompPerm = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0;
}

// Some virtual machines announce tiles and then refuse them. A child finds out, which shares this process's memory and
// is ended by its own handler: the system's way to end it would write out all of that memory.
bool Works() {
  constexpr int kFaults[] = {SIGILL, SIGSEGV, SIGBUS};
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);  // no handler of this process may run in the child
  volatile bool works = false;
  const pid_t child = vfork();
  if (child == 0) {
    sigset_t faults;
    sigemptyset(&faults);
    for (const int fault : kFaults) {
      signal(fault, [](int) { _exit(1); });
      sigaddset(&faults, fault);
    }
    sigprocmask(SIG_UNBLOCK, &faults, nullptr);
    uint8_t config[64] = {1}, row[4] = {};
    for (int tile = 0; tile < 3; ++tile) config[16 + 2 * tile] = 4, config[48 + tile] = 1;  // a row of four bytes
    asm volatile(
        "ldtilecfg %0\n\t"
        "tilezero %%tmm0\n\ttileloadd (%1,%2,1), %%tmm1\n\ttileloadd (%1,%2,1), %%tmm2\n\t"
        "tdpbssd %%tmm2, %%tmm1, %%tmm0\n\ttilestored %%tmm0, (%1,%2,1)\n\ttilerelease" ::"m"(config),
        "r"(row), "r"(int64_t{4})
        : "memory");
    works = true;
    _exit(0);
  }
  while (child > 0 && waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return works;
}

}  // namespace

bool HasAmx() {
  static const bool has = Announced() && Permitted() && Works();
  return has;
}

}  // namespace specjax
#else
namespace specjax {
bool HasAmx() { return false; }
}  // namespace specjax
#endif
