// Instruction sets that kernels are compiled for, and whether this processor has them.
#ifndef SPECJAX_CPU_H_
#define SPECJAX_CPU_H_

#include <cstdint>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace specjax {

// Best last. The names are those of SPECJAX_CPU_ISA.
#if defined(__x86_64__)
inline constexpr std::string_view kIsaNames[] = {"portable", "avx2", "avx512vnni", "amx"};
#elif defined(__aarch64__)
inline constexpr std::string_view kIsaNames[] = {"portable", "neon"};
#else
inline constexpr std::string_view kIsaNames[] = {"portable"};
#endif

#if defined(__x86_64__)
bool HasAmx();

// Not every compiler's __builtin_cpu_supports knows it. The processor is asked once: in a virtual machine CPUID leaves
// the machine, which takes microseconds.
inline bool HasF16c() {
  static const bool has = [] {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
  }();
  return has;
}
#endif

inline bool IsaSupported(std::string_view name) {
  if (name == "portable") return true;
#if defined(__x86_64__)
  if (name == "avx2")
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c();
  if (name == "amx") return IsaSupported("avx512vnni") && HasAmx();
  if (name == "avx512vnni")
    return IsaSupported("avx2") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
#elif defined(__aarch64__)
  if (name == "neon") {
#if defined(__APPLE__)
    return true;
#elif defined(__linux__)
    return (getauxval(AT_HWCAP) & (1u << 20)) != 0;  // ASIMDDP
#endif
  }
#endif
  return false;
}

// Of a table of kernels with an instance for each instruction set, the one called `isa`; null where it cannot run.
template <typename Kernels>
const Kernels* FindKernels(std::string_view isa) {
  if (!IsaSupported(isa)) return nullptr;
#if defined(__x86_64__)
  if (isa == "amx") return &Kernels::ForAmx();
  if (isa == "avx512vnni") return &Kernels::ForAvx512Vnni();
  if (isa == "avx2") return &Kernels::ForAvx2();
#elif defined(__aarch64__)
  if (isa == "neon") return &Kernels::ForNeon();
#endif
  return &Kernels::ForPortable();
}

// For loops that wait: on x86 the other hardware thread of the core runs meanwhile.
inline void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Flushes denormal floats to zero while it lives, as XLA does on its own threads: a result must not depend on which
// thread computed it.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" ::"r"(saved_ | (uint64_t{1} << 24)));
  }
  ~FlushDenormals() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }

 private:
  uint64_t saved_;
#endif
};

}  // namespace specjax

#endif  // SPECJAX_CPU_H_
