// x86-64 with AVX2, FMA and F16C. Activations of 8 bits and codes of fewer than 7 bits are multiplied as bytes. All
// others become integers of 16 bits, even and odd columns apart, which takes twice as many instructions.
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "quant_matmul/multiply.h"

namespace specjax {
namespace {

struct Avx2 {
  struct Ints {
    __m256i half[2];
  };
  struct Floats {
    __m256 half[2];
  };
  struct Shorts {
    __m256i even[2], odd[2];  // of the columns of a quad
  };
  struct Wide {
    int16_t codes[kQuads][2][2];  // columns 0 and 2 of a quad, then 1 and 3
    Rounded rounded;
  };
  struct Narrow {
    int8_t codes[kQuads][4];
    Rounded rounded;
  };

  static constexpr int kRows = 4;
  static constexpr bool InBytes(const Format& format) { return format.value_bits() < 7; }
  static constexpr int32_t kOffset = 0;
  static constexpr int64_t RecordBytes(bool wide) { return wide ? sizeof(Wide) : sizeof(Narrow); }
  static const Rounded& RoundedOf(const uint8_t* record, bool wide) {
    return wide ? reinterpret_cast<const Wide*>(record)->rounded : reinterpret_cast<const Narrow*>(record)->rounded;
  }
  static __m256i Load32(const int32_t* in) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in)); }
  static void Store32(void* out, __m256i in) { _mm256_storeu_si256(static_cast<__m256i*>(out), in); }
  static Rounded* Arrange(const int32_t* codes, bool wide, uint8_t* out) {
    // Packing works in lanes of 128 bits: each gets its half of the first vector, and then that of the second.
    if (wide) {
      const auto eight = [=](int i) { return _mm256_shuffle_epi32(Load32(codes + i), _MM_SHUFFLE(3, 1, 2, 0)); };
      for (int i = 0; i < kGroup; i += 16) {
        const __m256i shorts = _mm256_packs_epi32(eight(i), eight(i + 8));
        Store32(out + 2 * i, _mm256_permute4x64_epi64(shorts, _MM_SHUFFLE(3, 1, 2, 0)));
      }
    } else {
      const auto sixteen = [=](int i) { return _mm256_packs_epi32(Load32(codes + i), Load32(codes + i + 8)); };
      const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
      Store32(out, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(sixteen(0), sixteen(16)), order));
    }
    return const_cast<Rounded*>(&RoundedOf(out, wide));
  }

  static Floats Load(const float* in) { return {{_mm256_loadu_ps(in), _mm256_loadu_ps(in + 8)}}; }
  static void Store(float* out, const Floats& in) {
    _mm256_storeu_ps(out, in.half[0]);
    _mm256_storeu_ps(out + 8, in.half[1]);
  }
  static Floats Set(float x) { return {{_mm256_set1_ps(x), _mm256_set1_ps(x)}}; }
  static Floats Multiply(const Floats& a, const Floats& b) {
    return {{_mm256_mul_ps(a.half[0], b.half[0]), _mm256_mul_ps(a.half[1], b.half[1])}};
  }
  static Floats Fma(const Floats& a, const Floats& b, const Floats& c) {
    return {{_mm256_fmadd_ps(a.half[0], b.half[0], c.half[0]), _mm256_fmadd_ps(a.half[1], b.half[1], c.half[1])}};
  }
  static Floats ToFloat(const Ints& in) {
    return {{_mm256_cvtepi32_ps(in.half[0]), _mm256_cvtepi32_ps(in.half[1])}};
  }
  static __m128i Load8(const uint8_t* in) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(in)); }
  static Floats Unsigned(const uint8_t* in) {
    return ToFloat({{_mm256_cvtepu8_epi32(Load8(in)), _mm256_cvtepu8_epi32(Load8(in + 8))}});
  }
  static Floats Signed(const uint8_t* in) {
    return ToFloat({{_mm256_cvtepi8_epi32(Load8(in)), _mm256_cvtepi8_epi32(Load8(in + 8))}});
  }
  static __m128i Load16(const uint8_t* in) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(in)); }
  static Floats Half(const uint8_t* in) {
    return {{_mm256_cvtph_ps(Load16(in)), _mm256_cvtph_ps(Load16(in + 16))}};
  }
  static Bytes Lookup(const uint8_t* table, Bytes index) {
    const __m256i entries = _mm256_broadcastsi128_si256(Load16(table));
    ForEach<0, kParts>([&](auto i) __attribute__((always_inline)) {
      index.part[i] = reinterpret_cast<Part>(_mm256_shuffle_epi8(entries, reinterpret_cast<__m256i>(index.part[i])));
    });
    return index;
  }
  static __m256i Four(const void* bytes) {
    int32_t bits;
    std::memcpy(&bits, bytes, 4);
    return _mm256_set1_epi32(bits);
  }
  // GCC adds in another order without it, for which it would need more registers than there are.
  static inline __attribute__((always_inline)) void Settle(__m256i& sum) { asm("" : "+x"(sum)); }

  template <int R, bool wide, int bits, int begin, int end, typename Values>
  static inline __attribute__((always_inline)) void Dot(const Values& values, const uint8_t* x, Ints* sums) {
    if constexpr (wide) DotOfShorts<R, begin, end>(values, reinterpret_cast<const Wide*>(x), sums);
    else DotOfBytes<R, bits, begin, end>(values, reinterpret_cast<const Narrow*>(x), sums);
  }

  static inline __attribute__((always_inline)) Shorts ToShorts(const Bytes& bytes) {
    Shorts shorts;
    ForEach<0, 2>([&](auto half) __attribute__((always_inline)) {
      const auto codes = reinterpret_cast<__m256i>(bytes.part[half]);
      shorts.even[half] = _mm256_and_si256(codes, _mm256_set1_epi16(0xff));
      shorts.odd[half] = _mm256_srli_epi16(codes, 8);
    });
    return shorts;
  }
  static inline __attribute__((always_inline)) const Shorts& ToShorts(const Shorts& shorts) { return shorts; }

  template <int R, int begin, int end, typename Values>
  static inline __attribute__((always_inline)) void DotOfShorts(const Values& values, const Wide* x, Ints* sums) {
    for (int r = 0; r < R; ++r) sums[r].half[0] = sums[r].half[1] = _mm256_set1_epi32(x[r].rounded.bias[begin > 0]);
    ForEach<begin, end>([&](auto quad) __attribute__((always_inline)) {
      const Shorts codes = ToShorts(values(quad));
      ForEach<0, R>([&](auto r) __attribute__((always_inline)) {
        const __m256i x_even = Four(x[r].codes[quad][0]), x_odd = Four(x[r].codes[quad][1]);
        ForEach<0, 2>([&](auto half) __attribute__((always_inline)) {
          const __m256i products =
              _mm256_add_epi32(_mm256_madd_epi16(codes.even[half], x_even), _mm256_madd_epi16(codes.odd[half], x_odd));
          sums[r].half[half] = _mm256_add_epi32(sums[r].half[half], products);
          Settle(sums[r].half[half]);
        });
      });
    });
  }

  // An instruction adds two products of bytes. That is less than 2^bits * 2 * 127, so the sum of 2^(7 - bits) results
  // fits 16 bits.
  template <int R, int bits, int begin, int end, typename Values>
  static inline __attribute__((always_inline)) void DotOfBytes(const Values& values, const Narrow* x, Ints* sums) {
    static_assert(bits < 7);
    constexpr int kTogether = std::min(end - begin, 1 << (7 - bits));
    for (int r = 0; r < R; ++r) sums[r].half[0] = sums[r].half[1] = _mm256_set1_epi32(x[r].rounded.bias[begin > 0]);
    ForEach<0, (end - begin) / kTogether>([&](auto run) __attribute__((always_inline)) {
      __m256i together[R][2];
      ForEach<0, kTogether>([&](auto i) __attribute__((always_inline)) {
        constexpr int quad = begin + run * kTogether + i;
        const Bytes codes = values(std::integral_constant<int, quad>{});
        ForEach<0, R>([&](auto r) __attribute__((always_inline)) {
          const __m256i four = Four(x[r].codes[quad]);
          ForEach<0, 2>([&](auto half) __attribute__((always_inline)) {
            const __m256i products = _mm256_maddubs_epi16(reinterpret_cast<__m256i>(codes.part[half]), four);
            together[r][half] = i == 0 ? products : _mm256_add_epi16(together[r][half], products);
            Settle(together[r][half]);
          });
        });
      });
      ForEach<0, R>([&](auto r) __attribute__((always_inline)) {
        ForEach<0, 2>([&](auto half) __attribute__((always_inline)) {
          const __m256i pairs = _mm256_madd_epi16(together[r][half], _mm256_set1_epi16(1));
          sums[r].half[half] = _mm256_add_epi32(sums[r].half[half], pairs);
        });
      });
    });
  }
};

// The codes of groups, or the bytes of their centroids, as integers of 16 bits.
template <bool centroids>
struct AsShorts {
  static constexpr int kBytes = sizeof(Avx2::Shorts) * kQuads * (centroids ? 2 : 1);
  static constexpr int kBits = 16;
  static constexpr bool kInMemory = false;

  template <typename Codes, int byte = 0>
  static void Decode(const uint8_t* group, uint8_t* out) {
    ForEach<0, kQuads>([=](auto quad) __attribute__((always_inline)) {
      reinterpret_cast<Avx2::Shorts*>(out)[kQuads * byte + quad] =
          Avx2::ToShorts(Codes::template Values<Avx2, quad, byte>(group));
    });
    if constexpr (centroids && byte == 0) Decode<Codes, 1>(group, out);
  }

  template <typename Isa, int quad, int byte>
  static inline __attribute__((always_inline)) Avx2::Shorts Values(const uint8_t* group) {
    return reinterpret_cast<const Avx2::Shorts*>(group)[kQuads * byte + quad];
  }
};

// Many rows: the codes of a step are decoded once for all of them, where decoding is work. As bytes it is little.
template <typename Isa, typename Codes, Kind kind, bool wide>
class ByManyRows : public ByRows<Isa, Codes, kind, wide> {
 public:
  using ByRows<Isa, Codes, kind, wide>::ByRows;

  void Add(const uint8_t* codes, const Step& step, int groups, const uint8_t* x, int64_t group_bytes,
           float* totals) const {
    if constexpr (wide && Codes::kBytes < kQuads * kVector) {
      using Ready = AsShorts<kind == Kind::kCentroids>;
      alignas(32) uint8_t ready[kStep * Ready::kBytes];
      for (int g = 0; g < groups; ++g, codes += Codes::kBytes) {
        AskAhead<Codes>(codes);
        Ready::template Decode<Codes>(codes, ready + g * Ready::kBytes);
      }
      Tiles<Isa, Ready, kind, wide>(ready, step, groups, x, group_bytes, this->rows_, totals);
    } else {
      ByRows<Isa, Codes, kind, wide>::Add(codes, step, groups, x, group_bytes, totals);
    }
  }
};

}  // namespace

const QuantKernels& QuantKernels::ForAvx2() {
  static constexpr QuantKernels kMany = KernelsOf<Avx2, ByManyRows>();
  static constexpr QuantKernels kKernels = [] {
    QuantKernels kernels = KernelsOf<Avx2>();
    kernels.many = &kMany;
    return kernels;
  }();
  return kKernels;
}

}  // namespace specjax
