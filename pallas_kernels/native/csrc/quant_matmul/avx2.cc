// x86-64 with AVX2, FMA and F16C. Codes are split into even and odd columns as 16-bit integers, so that one instruction
// adds two products exactly; activations of 8 and of 16 bits cost the same.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

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
  struct Record {
    int16_t codes[kQuads][2][2];  // columns 0 and 2 of a quad, then 1 and 3
    Rounded rounded;
  };

  static constexpr int kRows = 4;
  static constexpr bool kNarrow = false;
  static constexpr int32_t kOffset = 0;
  static constexpr int64_t RecordBytes(bool) { return sizeof(Record); }
  static const Rounded& RoundedOf(const uint8_t* record, bool) {
    return reinterpret_cast<const Record*>(record)->rounded;
  }
  static Rounded* Arrange(const int32_t* codes, bool, uint8_t* out) {
    auto* record = reinterpret_cast<Record*>(out);
    const auto eight = [=](int i) {
      const __m256i in = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i));
      return _mm256_shuffle_epi32(in, _MM_SHUFFLE(3, 1, 2, 0));
    };
    for (int i = 0; i < kGroup; i += 16) {
      const __m256i lanes = _mm256_packs_epi32(eight(i), eight(i + 8));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(record->codes[i / 4]),
                          _mm256_permute4x64_epi64(lanes, _MM_SHUFFLE(3, 1, 2, 0)));
    }
    return &record->rounded;
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
  static __m256i Pair(const int16_t* two) {
    int32_t bits;
    std::memcpy(&bits, two, 4);
    return _mm256_set1_epi32(bits);
  }

  template <int R, bool wide, int begin, int end, typename Values>
  static inline __attribute__((always_inline)) void Dot(const Values& values, const uint8_t* x, Ints* sums) {
    const auto* records = reinterpret_cast<const Record*>(x);
    for (int r = 0; r < R; ++r) {
      sums[r].half[0] = sums[r].half[1] = _mm256_set1_epi32(records[r].rounded.bias[begin > 0]);
    }
    ForEach<begin, end>([&](auto quad) __attribute__((always_inline)) {
      const Bytes codes = values(quad);
      __m256i even[2], odd[2];
      ForEach<0, 2>([&](auto half) __attribute__((always_inline)) {
        const auto w = reinterpret_cast<__m256i>(codes.part[half]);
        even[half] = _mm256_and_si256(w, _mm256_set1_epi16(0xff));
        odd[half] = _mm256_srli_epi16(w, 8);
      });
      ForEach<0, R>([&](auto r) __attribute__((always_inline)) {
        const __m256i x_even = Pair(records[r].codes[quad][0]), x_odd = Pair(records[r].codes[quad][1]);
        ForEach<0, 2>([&](auto half) __attribute__((always_inline)) {
          const __m256i products =
              _mm256_add_epi32(_mm256_madd_epi16(even[half], x_even), _mm256_madd_epi16(odd[half], x_odd));
          sums[r].half[half] = _mm256_add_epi32(sums[r].half[half], products);
          // Without it GCC adds in another order, for which it would need more registers than there are.
          asm("" : "+x"(sums[r].half[half]));
        });
      });
    });
  }
};

}  // namespace

const QuantKernels& QuantKernels::ForAvx2() {
  static constexpr QuantKernels kKernels = KernelsOf<Avx2>();
  return kKernels;
}

}  // namespace specjax
