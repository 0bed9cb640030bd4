#include "cpu.h"


#define SPECJAX_EXPORT extern "C" __attribute__((visibility("default")))

// Names of the instruction sets compiled in that this processor has, best last; null after the last one.
SPECJAX_EXPORT const char* specjax_cpu_isa(int index) {
  for (const std::string_view name : specjax::kIsaNames) {
    if (specjax::IsaSupported(name) && index-- == 0) return name.data();
  }
  return nullptr;
}

// The digest of the sources that this was built from.
SPECJAX_EXPORT const char* specjax_sources() { return SPECJAX_SOURCES; }
