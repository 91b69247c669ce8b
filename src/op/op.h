/* Shared by the operations: local shapes and guards. */
#ifndef AXONN_OP_OP_H
#define AXONN_OP_OP_H

#include "axonn/op.h"

/* Local rows and columns, and elements from one row to the next, of a tensor whose rows may be padded. */
void ax_op_rows(const ax_frame *frame, const ax_tensor *x, int64_t *rows, int64_t *cols, int64_t *ld);

/* Refuses partial sums: `what` names the operation. */
ax_status ax_op_no_partial(const ax_frame *frame, const ax_tensor *x, const char *what);

/* Refuses to add tensors of different layouts. */
ax_status ax_op_alike(const ax_frame *frame, const ax_tensor *a, const ax_tensor *b);

/* Where the gradient of a parameter [d] that acts on the last dim of dy [.., d] goes: zeroed if it is fresh.
 */
ax_status ax_op_vector_grad(ax_frame *frame, const ax_tensor *dy, ax_param *param, ax_tensor *out);

/* A tensor that is local by construction (statistics): accumulation dtype, extents as given, no layout. */
ax_status ax_op_local(ax_frame *frame, int ndim, const int64_t *dim, ax_tensor *out);

/* Refuses padded rows, which few kernels take. */
ax_status ax_op_dense(const ax_tensor *x, const char *what);

/* Memory for a tensor like `x`. Refuses padded rows, which few kernels take. */
ax_status ax_op_like(ax_frame *frame, const ax_tensor *x, ax_tensor *out);

/* The i-th of the equal parts along the first dim of a local statistics tensor. */
void *ax_op_part(const ax_tensor *stats, int64_t index);

#endif
