/* Cross-entropy over a vocabulary that may be split along grid axes. If it is split, the kernel finds the
 * maximum of this rank's part of each row, and sums exponentials relative to it; then the maxima are
 * all-reduced, the sums rescaled to the maximum of the whole row, and the sums all-reduced. The gradient
 * overwrites the logits, to save the memory of a second array. A rank without vocabulary entries has a
 * maximum of -inf and a sum of 0. The rank of a target is counted once its logit is known on all ranks. This
 * file also has the sum of squared errors. */
#include "op/op.h"

static ax_axisset vocab_axes(const ax_tensor *logits)
{
    ax_axisset axes = 0;
    const ax_axes *last = &logits->layout.dim[logits->ndim - 1];
    for (int i = 0; i < last->n; i++)
        axes |= (ax_axisset)(1u << last->a[i]);
    return axes;
}

/* Replaces `max` and `sum` of the local part of the vocabulary by those of the whole vocabulary, and
 * target_logit, which follows `sum` in memory, by that of the rank that has the target. */
static ax_status reduce_stats(ax_frame *frame, ax_axisset axes, int64_t rows, void *max, void *sum)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    void *local_max;
    AX_TRY(ax_frame_scratch(frame, ctx->accum, rows, &local_max));
    AX_TRY(ax_run_copy_box(ctx->stream, &(ax_copy_box_args){.n = {1, 1, 1, rows},
                                                            .x_stride = {0, 0, 0, 1},
                                                            .y_stride = {0, 0, 0, 1},
                                                            .x = max,
                                                            .y = local_max,
                                                            .dtype = ctx->accum}));
    AX_TRY(ax_reduce_axes(ctx, axes, max, rows, ctx->accum, AX_MAX));
    AX_TRY(ax_run_ce_rescale(
        ctx->stream, &(ax_ce_rescale_args){
                         .rows = rows, .local_max = local_max, .max = max, .sum = sum, .dtype = ctx->accum}));
    return ax_reduce_axes(ctx, axes, sum, 2 * rows, ctx->accum, AX_SUM);
}

/* Counts the tokens that beat each target, whose logit is in stats, along the whole vocabulary. */
static ax_status count_better(ax_ctx *ctx, ax_axisset axes, const ax_ce_stats_args *s, int32_t *rank)
{
    AX_TRY(ax_run_ce_rank(ctx->stream, &(ax_ce_rank_args){.rows = s->rows,
                                                          .vocab = s->vocab,
                                                          .ld = s->ld,
                                                          .first = s->first,
                                                          .logits = s->logits,
                                                          .target_logit = s->target_logit,
                                                          .targets = s->targets,
                                                          .rank = rank,
                                                          .dtype = s->dtype}));
    return ax_reduce_axes(ctx, axes, rank, s->rows, AX_I32, AX_SUM);
}

ax_status ax_op_cross_entropy(ax_frame *frame, const ax_tensor *logits, const ax_tensor *targets,
                              double *total, const ax_scores *scores, ax_tensor *stats)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    ax_axisset axes = ax_grid_effective(ctx->grid, vocab_axes(logits));
    int64_t rows, vocab, ld, first;
    AX_TRY(ax_op_no_partial(frame, logits, "cross-entropy"));
    ax_op_rows(frame, logits, &rows, &vocab, &ld);
    ax_tensor_range(ctx->grid, logits, logits->ndim - 1, ax_grid_rank(ctx->grid), &first, &vocab);
    AX_TRY(ax_op_local(frame, 2, (int64_t[]){3, rows}, stats));
    const ax_ce_stats_args s = {.rows = rows,
                                .vocab = vocab,
                                .ld = ld,
                                .first = first,
                                .logits = logits->data,
                                .targets = targets->data,
                                .max = ax_op_part(stats, 0),
                                .sum = ax_op_part(stats, 1),
                                .target_logit = ax_op_part(stats, 2),
                                .dtype = logits->dtype};
    ax_tensor losses = {.data = scores ? scores->loss : NULL};
    if (!scores)
        AX_TRY(ax_op_local(frame, 1, &rows, &losses));
    AX_TRY(ax_run_ce_stats(ctx->stream, &s));
    if (axes)
        AX_TRY(reduce_stats(frame, axes, rows, s.max, s.sum));
    if (scores)
        AX_TRY(count_better(ctx, axes, &s, scores->rank));
    return ax_run_ce_loss(ctx->stream, &(ax_ce_loss_args){.rows = rows,
                                                          .max = s.max,
                                                          .sum = s.sum,
                                                          .target_logit = s.target_logit,
                                                          .targets = targets->data,
                                                          .loss = losses.data,
                                                          .total = total,
                                                          .dtype = ctx->accum});
}

ax_status ax_op_cross_entropy_grad(ax_frame *frame, ax_tensor *logits, const ax_tensor *targets,
                                   const ax_tensor *stats, double scale)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    const ax_batch *batch = ax_frame_batch(frame);
    int64_t rows, vocab, ld, first;
    ax_op_rows(frame, logits, &rows, &vocab, &ld);
    ax_tensor_range(ctx->grid, logits, logits->ndim - 1, ax_grid_rank(ctx->grid), &first, &vocab);
    return ax_run_ce_grad(ctx->stream, &(ax_ce_grad_args){.rows = rows,
                                                          .vocab = vocab,
                                                          .ld = ld,
                                                          .first = first,
                                                          .scale = scale,
                                                          .now = batch ? batch->now : NULL,
                                                          .max = ax_op_part(stats, 0),
                                                          .sum = ax_op_part(stats, 1),
                                                          .targets = targets->data,
                                                          .logits = logits->data,
                                                          .dtype = logits->dtype});
}

ax_status ax_op_class_targets(ax_frame *frame, const ax_tensor *ids, int64_t classes, int64_t ignore,
                              double *counts, ax_tensor *targets)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    ax_tensor like = *ids;
    like.dtype = AX_I32;
    AX_TRY(ax_op_like(frame, &like, targets));
    return ax_run_class_targets(ctx->stream, &(ax_class_targets_args){.rows = ax_tensor_count(ctx->grid, ids),
                                                                      .classes = classes,
                                                                      .ignore = ignore,
                                                                      .x = ids->data,
                                                                      .y = targets->data,
                                                                      .counts = counts,
                                                                      .dtype = ids->dtype});
}

ax_status ax_op_squared_error(ax_frame *frame, const ax_tensor *x, const ax_tensor *target, double scale,
                              double *total, ax_tensor *dx)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    const ax_batch *batch = ax_frame_batch(frame);
    AX_TRY(ax_op_no_partial(frame, x, "squared error"));
    AX_TRY(ax_op_dense(x, "squared error"));
    if (dx)
        AX_TRY(ax_op_like(frame, x, dx));
    return ax_run_squared_error(ctx->stream, &(ax_squared_error_args){.n = ax_tensor_count(ctx->grid, x),
                                                                      .scale = scale,
                                                                      .now = batch ? batch->now : NULL,
                                                                      .x = x->data,
                                                                      .target = target->data,
                                                                      .dx = dx ? dx->data : NULL,
                                                                      .total = total,
                                                                      .dtype = x->dtype});
}
