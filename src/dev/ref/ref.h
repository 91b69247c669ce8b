/* The reference backend: plain loops in double precision. Almost all kernels read blocks of their operands
 * into doubles on the stack, compute, and round the results when they write them. The code is simple on
 * purpose, because the other backends are tested against it. */
#ifndef AXONN_DEV_REF_H
#define AXONN_DEV_REF_H

#include "axonn/dev.h"

enum { REF_BLOCK = 256 };

/* Read and write elements at … at + n - 1 of an array of `dtype` (F64, F32, BF16 or F16) as doubles. */
void ref_read(ax_dtype dtype, const void *data, int64_t at, int64_t n, double *out);
void ref_write(ax_dtype dtype, void *data, int64_t at, int64_t n, const double *in);

/* Returns x as an element of `dtype` holds it. */
double ref_rounded(ax_dtype dtype, double x);

/* for (ref_blocks(n, at, count)) loops over elements 0 … n-1 in blocks: `at` is the first element of the
 * block (0, REF_BLOCK, …), `count` the number of its elements. */
#define ref_blocks(total, at, count)                                                                         \
    int64_t at = 0, count = ax_min(REF_BLOCK, (total));                                                      \
    at < (total);                                                                                            \
    at += REF_BLOCK, count = ax_min(REF_BLOCK, (total)-at)

#define REF_KERNEL_DECLARE(name) ax_kernel_fn ref_##name;
AX_KERNELS(REF_KERNEL_DECLARE)
#undef REF_KERNEL_DECLARE

#endif
