// Block formats. Written by `python -m pallas_kernels.matmul.native_tables`; do not edit.
#ifndef SPECJAX_QUANT_MATMUL_FORMATS_H_
#define SPECJAX_QUANT_MATMUL_FORMATS_H_

#include "quant_matmul/format.h"

namespace specjax {

inline constexpr Format kFormats[] = {
    {"Q8_0", 32, 34, 8, 0, 128, Scales::kOne},
    {"Q4_0", 32, 18, 4, 0, 8, Scales::kOne},
    {"Q4_1", 32, 20, 4, 0, 0, Scales::kAffine},
    {"Q5_0", 32, 22, 4, 1, 16, Scales::kOne},
    {"Q5_1", 32, 24, 4, 1, 0, Scales::kAffine},
    {"Q4_K", 256, 144, 4, 0, 0, Scales::kSuperAffine},
    {"Q5_K", 256, 176, 4, 1, 0, Scales::kSuperAffine},
    {"Q6_K", 256, 210, 4, 2, 32, Scales::kSuperSignedHalves},
    {"IQ4_NL", 32, 18, 4, 0, 128, Scales::kOne, Codebook::kIq4},
    {"IQ4_XS", 256, 136, 4, 0, 128, Scales::kSuperSigned, Codebook::kIq4},
    {"TQ3_1S", 32, 16, 2, 1, 128, Scales::kHalves, Codebook::kTq3},
    {"TQ4_1S", 32, 20, 4, 0, 128, Scales::kHalves, Codebook::kTq4},
};

inline constexpr int kIq4Codebook[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr float kTq3Centroids[] = {-1.996684f, -1.291398f, -0.740341f, -0.247508f, 0.230106f, 0.725222f, 1.277503f, 1.988943f};
inline constexpr float kTq4Centroids[] = {-2.73259f, -2.069017f, -1.618046f, -1.256231f, -0.94234f, -0.656759f, -0.388048f, -0.128395f, 0.128395f, 0.388048f, 0.656759f, 0.94234f, 1.256231f, 1.618046f, 2.069017f, 2.73259f};

}  // namespace specjax

#endif  // SPECJAX_QUANT_MATMUL_FORMATS_H_
