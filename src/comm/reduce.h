/* Reduction of arrays in host memory, for backends whose ranks see each other's memory. */
#ifndef AXONN_COMM_REDUCE_H
#define AXONN_COMM_REDUCE_H

#include "axonn/comm.h"

/* Elements that ax_reduce_block takes at most. */
enum { AX_REDUCE_BLOCK = 512 };

/* out[i] = src[0][first + i] op … op src[n-1][first + i], in this order, for i < count <= AX_REDUCE_BLOCK.
 * BF16 is accumulated in float and rounded once; MAX of a NaN is NaN. `out` is apart from the sources. */
void ax_reduce_block(ax_dtype dtype, ax_reduce_op op, int n, const void *const *src, int64_t first,
                     int64_t count, void *out);

#endif
