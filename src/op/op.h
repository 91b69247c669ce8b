/* Helpers that all operations use: shapes of this rank's part, allocations and argument checks. */
#ifndef AXONN_OP_OP_H
#define AXONN_OP_OP_H

#include "axonn/op.h"

/* Sets *rows, *cols and *ld (leading dimension, in elements) to those of this rank's part of x, whose rows
 * may be padded. */
void ax_op_rows(const ax_frame *frame, const ax_tensor *x, int64_t *rows, int64_t *cols, int64_t *ld);

/* Returns AX_ERR_INTERNAL if x is a partial sum. `what` names the operation in the message. */
ax_status ax_op_no_partial(const ax_frame *frame, const ax_tensor *x, const char *what);

/* Returns AX_ERR_INTERNAL unless a and b, which an operation combines element by element, have the same
 * layout and padding. */
ax_status ax_op_alike(const ax_frame *frame, const ax_tensor *a, const ax_tensor *b);

/* Gets memory for the gradient of a vector parameter [d] (bias, scale) that acts on the last dim of dy [..,
 * d]. Kernels add to this memory. So ax_op_vector_grad sets the memory to zero, unless it already holds
 * gradients of earlier micro-batches of the step (ax_param_grad_target with `fresh` NULL). */
ax_status ax_op_vector_grad(ax_frame *frame, const ax_tensor *dy, ax_param *param, ax_tensor *out);

/* Allocates a tensor of this rank only, for statistics: with the accumulation dtype, the extents `dim`, and
 * no layout. */
ax_status ax_op_local(ax_frame *frame, int ndim, const int64_t *dim, ax_tensor *out);

/* Returns AX_ERR_USAGE if the rows of x are padded, because few kernels support padding. `what` names the
 * operation in the message. */
ax_status ax_op_dense(const ax_tensor *x, const char *what);

/* Allocates a tensor with the dtype, extents and layout of x. AX_ERR_USAGE if x has padded rows, which few
 * kernels support. */
ax_status ax_op_like(ax_frame *frame, const ax_tensor *x, ax_tensor *out);

/* Returns the random key of the running task's dropout mask. If the frame's batch has `now`, the key is
 * drop->key: the mask then also depends on the step and the first row, which `now` holds. Otherwise the key
 * is derived from drop->key and the number of training tasks so far (ax_frame_train_tasks). */
uint64_t ax_op_drop_key(const ax_frame *frame, const ax_drop *drop);

/* Sets the memory of x to zero. */
ax_status ax_op_zero(ax_frame *frame, const ax_tensor *x);

/* Returns the address of the part stats[index, …] of a tensor of statistics that ax_op_local allocated. */
void *ax_op_part(const ax_tensor *stats, int64_t index);

#endif
