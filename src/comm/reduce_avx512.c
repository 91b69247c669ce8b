/* The reduction functions (reduce.h), compiled for AVX-512. */
#include "comm/reduce.h"

#include <string.h>

#ifdef __x86_64__
#define AX_REDUCE_TABLE ax_reduce_avx512
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2"))),             \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2")
#endif
#include "comm/reduce_kernels.h"
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
