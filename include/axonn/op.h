/* op: operations on tensors, forward and backward, each the kernel for the local box plus the reductions that
 * its layout asks for. Contractions are in dist.h (ax_contract); this header has the rest.
 *
 * Unless said otherwise, tensors are [b, t, d]: samples, positions, width, each split as its layout says;
 * results come from the frame; non-linear operations refuse partial sums, and all but the loss and the bias
 * gradient rows that are padded (AX_ERR_INTERNAL); operations with a
 * statistic over a split dim are collective along the axes that split it, the others are not collective. T is
 * the compute dtype, A the accumulation dtype of the context. Parameters are acquired, and
 * their gradients contributed (dist.h), by the operation. */
#ifndef AXONN_OP_H
#define AXONN_OP_H

#include "axonn/dist.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Local rows (product of all extents but the last) and columns of a tensor without padding. */
void ax_rows_cols(const ax_frame *frame, const ax_tensor *x, int64_t *rows, int64_t *cols);

/* x += bias in place. bias: [d] A, split as x's last dim. */
AX_MUST_CHECK ax_status ax_op_bias(ax_frame *frame, ax_tensor *x, ax_param *bias);
/* Gradient of bias += sum of dy over all but the last dim. */
AX_MUST_CHECK ax_status ax_op_bias_grad(ax_frame *frame, const ax_tensor *dy, ax_param *bias);

/* x = a + b, or a where b is NULL, and y = LayerNorm of x over its last dim (Ba et al. 2016) with statistics
 * over the whole, possibly split, width. `stats` (A, local [2, rows]: sum and centred sum of squares) is for
 * backward, where dx = add + the norm's gradient; `add`, the gradient that reaches x on other ways, may be
 * NULL. a, b and x, or x and `add`, have equal layouts. Collective along the axes that split d. */
AX_MUST_CHECK ax_status ax_op_layernorm(ax_frame *frame, const ax_tensor *a, const ax_tensor *b,
                                        ax_param *weight, ax_param *bias, double eps, ax_tensor *x,
                                        ax_tensor *y, ax_tensor *stats);
AX_MUST_CHECK ax_status ax_op_layernorm_grad(ax_frame *frame, const ax_tensor *x, const ax_tensor *stats,
                                             const ax_tensor *dy, const ax_tensor *add, ax_param *weight,
                                             ax_param *bias, double eps, ax_tensor *dx);

/* What dropout drops: each element with probability p, in [0, 1), by random numbers of `key`, which differs
 * from layer to layer, of the step (ax_batch_numbers) and of the element's global index: the same elements
 * whatever the grid and the size of micro-batches. What is left is multiplied by 1/(1-p). */
typedef struct ax_drop {
    double p;
    uint64_t key;
} ax_drop;

/* Causal attention of this rank's heads. q: [b, t, h·e], k and v: [b, s, g·e] with e the width of a head,
 * whole heads on each rank, which holds the key heads of its queries (dk and dv are partial along axes that
 * split q's heads only); doc_start: int32 [b, t] or without data. kv_len <= s keys are valid; query i stands
 * at position q_offset + i. lse (A, local [b, h, t]) is for backward and may be NULL. `drop` is the dropout
 * of the probabilities, by sample, position, head and key; NULL: none. Backward is given the same. */
AX_MUST_CHECK ax_status ax_op_attention(ax_frame *frame, const ax_tensor *q, const ax_tensor *k,
                                        const ax_tensor *v, const ax_tensor *doc_start, int64_t head_dim,
                                        int64_t q_offset, int64_t kv_len, const ax_drop *drop, ax_tensor *o,
                                        ax_tensor *lse);
AX_MUST_CHECK ax_status ax_op_attention_grad(ax_frame *frame, const ax_tensor *q, const ax_tensor *k,
                                             const ax_tensor *v, const ax_tensor *o, const ax_tensor *lse,
                                             const ax_tensor *doc_start, int64_t head_dim,
                                             const ax_drop *drop, const ax_tensor *dout, ax_tensor *dq,
                                             ax_tensor *dk, ax_tensor *dv);

/* y[b,t,:] (+)= table[ids[b,t],:]. ids: int32 [b, t]. A split first dim of the table leaves y partial. */
AX_MUST_CHECK ax_status ax_op_embedding(ax_frame *frame, const ax_tensor *ids, ax_param *table,
                                        bool accumulate, ax_tensor *y);
AX_MUST_CHECK ax_status ax_op_embedding_grad(ax_frame *frame, const ax_tensor *ids, const ax_tensor *dy,
                                             ax_param *table);

/* y = f(x), f of `kind`; and dx = dy·f'(x). Layouts stay. */
AX_MUST_CHECK ax_status ax_op_activation(ax_frame *frame, const ax_tensor *x, ax_activation kind,
                                         ax_tensor *y);
AX_MUST_CHECK ax_status ax_op_activation_grad(ax_frame *frame, const ax_tensor *x, const ax_tensor *dy,
                                              ax_activation kind, ax_tensor *dx);

/* y = a + b; equal layouts, partial sums allowed. */
AX_MUST_CHECK ax_status ax_op_add(ax_frame *frame, const ax_tensor *a, const ax_tensor *b, ax_tensor *y);

/* Dropout of x [b, t, d], by sample, position and column. Its own gradient. */
AX_MUST_CHECK ax_status ax_op_dropout(ax_frame *frame, const ax_tensor *x, const ax_drop *drop, ax_tensor *y);

/* y [b, 1, d] = x[:, last position, :]; x's rows may be padded, y's are not. */
AX_MUST_CHECK ax_status ax_op_last_position(ax_frame *frame, const ax_tensor *x, ax_tensor *y);

/* Sum over this rank's unmasked targets of the cross-entropy, added to *total (F64, device memory). logits:
 * [b, t, v], T; targets: int32 [b, t]. `stats` (A, local [3, rows]: maxima, sums, target logits) is for
 * backward. Collective along the axes that split v. */
AX_MUST_CHECK ax_status ax_op_cross_entropy(ax_frame *frame, const ax_tensor *logits,
                                            const ax_tensor *targets, double *total, ax_tensor *stats);
/* logits <- scale · d(sum of losses)/d logits, and times the batch's loss_scale, in place: no second copy of
 * the logits exists. */
AX_MUST_CHECK ax_status ax_op_cross_entropy_grad(ax_frame *frame, ax_tensor *logits, const ax_tensor *targets,
                                                 const ax_tensor *stats, double scale);

/* *targets (int32, the layout of ids) is what ax_op_cross_entropy takes: ids that are classes, and -1,
 * masked, for others. counts[0] (F64, device memory) += this rank's ids that are not `ignore`; counts[1] +=
 * those of them that are no class, below 0 or not below `classes`. ids: int32 or int64. */
AX_MUST_CHECK ax_status ax_op_class_targets(ax_frame *frame, const ax_tensor *ids, int64_t classes,
                                            int64_t ignore, double *counts, ax_tensor *targets);

/* Sum over this rank's elements of (x - target)², added to *total (F64, device memory); *dx = scale·(x -
 * target), times the batch's loss_scale, unless dx is NULL. x and target: equal shapes, dtypes and layouts.
 */
AX_MUST_CHECK ax_status ax_op_squared_error(ax_frame *frame, const ax_tensor *x, const ax_tensor *target,
                                            double scale, double *total, ax_tensor *dx);

/* ---- sampling (host) ----------------------------------------------------------------------------- */

typedef struct ax_sampling {
    double temperature; /* 0: greedy */
    int top_k;          /* 0: off */
    double top_p;       /* 1: off */
} ax_sampling;

/* Draws a token from host `logits` (n values; `work` has room for 2n, or is NULL where temperature is 0) with
 * the uniform number u in [0, 1): temperature, then top-k, then top-p (smallest set of likeliest tokens whose
 * probability reaches p). Ties go to the lower id; what is left is drawn from in the order of ids. Takes time
 * in proportion to n. AX_ERR_NUMERIC if a logit is NaN or +inf, or none is finite. */
AX_MUST_CHECK ax_status ax_sample(const float *logits, int n, const ax_sampling *how, double u, float *work,
                                  int32_t *out);

#ifdef __cplusplus
}
#endif
#endif
