// The exponential function of floats of any instruction set.
// Included by translation units of one instruction set each, hence the anonymous namespace.
#ifndef SPECJAX_FLOATS_EXP_H_
#define SPECJAX_FLOATS_EXP_H_

namespace specjax {
namespace {

// exp of x <= 0 to about two units in the last place; below -87, where it is less than 1.7e-38, as of -87. Of NaN, NaN.
// Reduction and polynomial: S. Moshier, Cephes, single/expf.c.
template <typename Isa>
inline typename Isa::Floats Exp(typename Isa::Floats x) {
  x = Isa::Max(Isa::Set(-87.0f), x);
  const auto n = Isa::Round(Isa::Multiply(x, Isa::Set(1.44269504088896341f)));
  auto r = Isa::Fma(n, Isa::Set(-0.693359375f), x);
  r = Isa::Fma(n, Isa::Set(2.12194440e-4f), r);
  auto p = Isa::Set(1.9875691500e-4f);
  for (const float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    p = Isa::Fma(p, r, Isa::Set(c));
  p = Isa::Add(Isa::Fma(p, Isa::Multiply(r, r), r), Isa::Set(1.0f));
  return Isa::Multiply(p, Isa::PowerOfTwo(n));
}

}  // namespace
}  // namespace specjax

#endif  // SPECJAX_FLOATS_EXP_H_
