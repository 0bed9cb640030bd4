// Loops whose index is a constant.
// Included by translation units of one instruction set each, hence the anonymous namespace.
#ifndef SPECJAX_FOR_EACH_H_
#define SPECJAX_FOR_EACH_H_

#include <type_traits>

namespace specjax {
namespace {

// Calls each(j) for j = begin .. end - 1, as constants: compilers keep arrays in registers only where every index is one
// early on.
template <int begin, int end, typename Each>
inline __attribute__((always_inline)) void ForEach(const Each& each) {
  if constexpr (begin < end) {
    each(std::integral_constant<int, begin>{});
    ForEach<begin + 1, end>(each);
  }
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_FOR_EACH_H_
