#include "cpu.h"

#include "xla/ffi/api/c_api.h"

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

// The version of XLA's interface for such libraries that this was built for.
SPECJAX_EXPORT int specjax_ffi_major() { return XLA_FFI_API_MAJOR; }
SPECJAX_EXPORT int specjax_ffi_minor() { return XLA_FFI_API_MINOR; }
