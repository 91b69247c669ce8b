/* The reduction functions (reduce.h), compiled for AVX2. */
#include "comm/reduce.h"

#include <string.h>

#ifdef __x86_64__
#define AX_REDUCE_TABLE ax_reduce_avx2
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif
#include "comm/reduce_kernels.h"
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
