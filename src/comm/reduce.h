/* Elementwise reduction (sum or maximum) of several arrays in host memory. */
#ifndef AXONN_COMM_REDUCE_H
#define AXONN_COMM_REDUCE_H

#include "axonn/comm.h"

/* Computes dst[j][i] = src[0][i] op … op src[n-1][i], in this order, for all j < m and i < count. BF16 and
 * F16 are accumulated in float and rounded once; AX_MAX gives NaN if a source is NaN. A destination may be
 * the same array as a source, but must not overlap a source partly. */
typedef void ax_reduce_fn(int n, const void *const *src, int m, void *const *dst, int64_t count);

/* Returns the fastest reduction function for this processor. The results have the same bits on every
 * processor. `dtype` must be one that ax_all_reduce accepts. */
ax_reduce_fn *ax_reduce_for(ax_dtype dtype, ax_reduce_op op);

/* ---- private to reduce.c, reduce_<isa>.c and tests ---- */

/* Indices into the tables of reduction functions: first the element type, then the operation (0: sum, 1:
 * maximum). */
enum {
    AX_REDUCE_F64,
    AX_REDUCE_F32,
    AX_REDUCE_BF16,
    AX_REDUCE_F16,
    AX_REDUCE_I32,
    AX_REDUCE_I64,
    AX_REDUCE_TYPES
};
typedef ax_reduce_fn *ax_reduce_table[AX_REDUCE_TYPES][2];
extern const ax_reduce_table ax_reduce_generic;
#ifdef __x86_64__
extern const ax_reduce_table ax_reduce_avx2, ax_reduce_avx512;
#endif

#endif
