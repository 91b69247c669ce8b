/* LayerNorm and RMSNorm over a width that may be split: statistics are computed over the whole row, never
 * over one rank's part of it. If the width is not split, there is nothing to reduce, and one kernel computes
 * statistics and result. Otherwise one kernel computes the statistics of this rank's part, reductions turn
 * them into those of the whole row, and another kernel computes the result. */
#include "op/op.h"

#include <string.h>

static ax_axisset width_axes(const ax_tensor *x)
{
    ax_axisset axes = 0;
    const ax_axes *last = &x->layout.dim[x->ndim - 1];
    for (int i = 0; i < last->n; i++)
        axes |= (ax_axisset)(1u << last->a[i]);
    return axes;
}

/* Replaces each row's sum and centred sum of squares (m2) over the local width by those over the whole
 * width. */
static ax_status reduce_stats(ax_frame *frame, ax_axisset axes, const ax_norm_args *local, int64_t width)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    const int64_t rows = local->rows;
    void *local_sum;
    if (local->kind == AX_NORM_RMS) /* without a mean the ranks' sums of squares (m2) are just added */
        return ax_reduce_axes(ctx, axes, local->m2, rows, ctx->accum, AX_SUM);
    AX_TRY(ax_frame_scratch(frame, ctx->accum, rows, &local_sum));
    AX_TRY(ax_run_copy_box(ctx->stream, &(ax_copy_box_args){.n = {1, 1, 1, rows},
                                                            .x_stride = {0, 0, 0, 1},
                                                            .y_stride = {0, 0, 0, 1},
                                                            .x = local->sum,
                                                            .y = local_sum,
                                                            .dtype = ctx->accum}));
    AX_TRY(ax_reduce_axes(ctx, axes, local->sum, rows, ctx->accum, AX_SUM));
    AX_TRY(ax_run_norm_recentre(ctx->stream, &(ax_norm_recentre_args){.rows = rows,
                                                                      .cols = local->cols,
                                                                      .global_cols = width,
                                                                      .local_sum = local_sum,
                                                                      .global_sum = local->sum,
                                                                      .m2 = local->m2,
                                                                      .dtype = ctx->accum}));
    return ax_reduce_axes(ctx, axes, local->m2, rows, ctx->accum, AX_SUM);
}

/* Sets pointers to the parts of `stats`, which hold one number for each row. LayerNorm has two parts: *sum
 * (the sums; in backward s1 of ax_norm_grad_stats_args) and *m2 (the sums of squares about the mean; in
 * backward s2). RMSNorm has only *m2 (the sums of squares; in backward s2), and *sum is NULL. */
static void parts_of(const ax_tensor *stats, ax_norm_kind kind, void **sum, void **m2)
{
    *sum = kind == AX_NORM_LAYER ? ax_op_part(stats, 0) : NULL;
    *m2 = ax_op_part(stats, kind == AX_NORM_LAYER ? 1 : 0);
}

static int64_t parts(ax_norm_kind kind) { return kind == AX_NORM_LAYER ? 2 : 1; }

/* Computes a norm by two kernels, with reductions of the statistics along `axes` between them. `stats` has
 * the statistics of `local`. */
static ax_status split_norm(ax_frame *frame, ax_axisset axes, const ax_norm_args *local, int64_t width,
                            ax_tensor *stats)
{
    ax_stream *stream = ax_frame_ctx(frame)->stream;
    const ax_norm_stats_args of_part = ax_norm_stats_of(local);
    ax_norm_apply_args apply = ax_norm_apply_of(local);
    void *sum, *m2;
    bool taken;
    apply.global_cols = width;
    AX_TRY(ax_run_norm_stats(stream, &of_part));
    AX_TRY(ax_frame_take(frame, stats, stats, &taken));
    if (!taken) {
        AX_TRY(reduce_stats(frame, axes, local, width));
        AX_TRY(ax_frame_keep(frame, stats));
    }
    parts_of(stats, local->kind, &sum, &m2);
    apply.sum = sum;
    apply.m2 = m2;
    return ax_run_norm_apply(stream, &apply);
}

ax_status ax_op_norm(ax_frame *frame, const ax_norm_of *norm, const ax_tensor *a, const ax_tensor *b,
                     ax_tensor *x, ax_tensor *y, ax_tensor *stats)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    ax_axisset axes = ax_grid_effective(ctx->grid, width_axes(a));
    ax_tensor weight, bias = {.data = NULL};
    ax_norm_args args = {.eps = norm->eps, .a = a->data, .dtype = a->dtype, .kind = norm->kind};
    AX_TRY(ax_op_dense(a, "a norm"));
    AX_TRY(ax_param_acquire(frame, norm->weight, &weight));
    if (norm->bias)
        AX_TRY(ax_param_acquire(frame, norm->bias, &bias));
    AX_TRY(ax_op_no_partial(frame, a, "a norm"));
    ax_rows_cols(frame, a, &args.rows, &args.cols);
    *x = *a;
    if (b) {
        AX_TRY(ax_op_alike(frame, a, b));
        AX_TRY(ax_op_like(frame, a, x));
        args.b = b->data;
        args.x = x->data;
    }
    AX_TRY(ax_op_local(frame, 2, (int64_t[]){parts(norm->kind), args.rows}, stats));
    AX_TRY(ax_op_like(frame, x, y));
    args.weight = weight.data;
    args.bias = bias.data;
    parts_of(stats, norm->kind, &args.sum, &args.m2);
    args.y = y->data;
    return axes ? split_norm(frame, axes, &args, x->dim[x->ndim - 1], stats)
                : ax_run_norm(ctx->stream, &args);
}

/* Computes the gradient of a norm by two kernels, with one reduction along `axes` between them. */
static ax_status split_norm_grad(ax_frame *frame, ax_axisset axes, const ax_norm_grad_args *local,
                                 int64_t width)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    ax_norm_grad_stats_args stats = ax_norm_grad_stats_of(local);
    ax_norm_grad_apply_args apply = ax_norm_grad_apply_of(local);
    ax_tensor sums;
    int64_t n = parts(local->kind);
    AX_TRY(ax_op_local(frame, 2, (int64_t[]){n, local->rows}, &sums));
    parts_of(&sums, local->kind, &stats.s1, &stats.s2);
    apply.s1 = stats.s1;
    apply.s2 = stats.s2;
    apply.global_cols = stats.global_cols = width;
    AX_TRY(ax_run_norm_grad_stats(ctx->stream, &stats));
    AX_TRY(ax_reduce_axes(ctx, axes, sums.data, n * local->rows, ctx->accum, AX_SUM));
    return ax_run_norm_grad_apply(ctx->stream, &apply);
}

ax_status ax_op_norm_grad(ax_frame *frame, const ax_norm_of *norm, const ax_tensor *x, const ax_tensor *stats,
                          const ax_tensor *dy, const ax_tensor *add, ax_tensor *dx)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    ax_axisset axes = ax_grid_effective(ctx->grid, width_axes(x));
    ax_tensor weight, dweight = {.data = NULL}, dbias = {.data = NULL};
    bool weighs = !norm->weight->frozen, shifts = norm->bias && !norm->bias->frozen;
    AX_TRY(ax_param_acquire(frame, norm->weight, &weight));
    if (weighs)
        AX_TRY(ax_op_vector_grad(frame, dy, norm->weight, &dweight));
    if (shifts)
        AX_TRY(ax_op_vector_grad(frame, dy, norm->bias, &dbias));
    AX_CHECK(!add || !ax_grid_effective(ctx->grid, dy->layout.partial), AX_ERR_INTERNAL,
             "ax_op_norm_grad: dy must not be a partial sum if `add` is given, because each rank would add "
             "`add`: redistribute dy first");
    if (add)
        AX_TRY(ax_op_alike(frame, x, add));
    AX_TRY(ax_op_like(frame, x, dx));
    dx->layout.partial = dy->layout.partial;
    void *sum, *m2;
    parts_of(stats, norm->kind, &sum, &m2);
    ax_norm_grad_args grad = {.eps = norm->eps,
                              .x = x->data,
                              .dy = dy->data,
                              .add = add ? add->data : NULL,
                              .sum = sum,
                              .m2 = m2,
                              .weight = weight.data,
                              .dx = dx->data,
                              .dweight = dweight.data,
                              .dbias = dbias.data,
                              .dtype = x->dtype,
                              .kind = norm->kind};
    ax_rows_cols(frame, x, &grad.rows, &grad.cols);
    AX_TRY(axes ? split_norm_grad(frame, axes, &grad, x->dim[x->ndim - 1])
                : ax_run_norm_grad(ctx->stream, &grad));
    if (weighs)
        AX_TRY(ax_param_add_grad(frame, norm->weight, &dweight));
    return shifts ? ax_param_add_grad(frame, norm->bias, &dbias) : AX_OK;
}
