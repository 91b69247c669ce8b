/* A stand-in for CUDA's bf16 type. */
#ifndef AXONN_EMULATED_CUDA_BF16_H
#define AXONN_EMULATED_CUDA_BF16_H

#include "axonn/dev.h"

struct __nv_bfloat16 {
    uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 x) { return ax_bf16_to_float(x.bits); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return {ax_bf16_from_float(x)}; }

#endif
