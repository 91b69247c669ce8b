/* A stand-in for CUDA's fp16 type. */
#ifndef AXONN_EMULATED_CUDA_FP16_H
#define AXONN_EMULATED_CUDA_FP16_H

#include "axonn/dev.h"

struct __half {
    uint16_t bits;
};
inline float __half2float(__half x) { return ax_f16_to_float(x.bits); }
inline __half __float2half_rn(float x) { return {ax_f16_from_float(x)}; }

#endif
