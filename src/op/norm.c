/* LayerNorm whose width may be split: statistics are of the whole row, never of a shard (design: "reduce
 * along axes"). */
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

/* stats = [sum over the row; centred sum of squares], of the whole width. */
static ax_status row_stats(ax_frame *frame, const ax_tensor *x, int64_t rows, int64_t cols, ax_tensor *stats)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    AX_TRY(ax_op_local(frame, 2, (int64_t[]){2, rows}, stats));
    void *sum = ax_op_part(stats, 0), *m2 = ax_op_part(stats, 1);
    AX_TRY(ax_run_norm_stats(
        ctx->stream, &(ax_norm_stats_args){
                         .rows = rows, .cols = cols, .x = x->data, .sum = sum, .m2 = m2, .dtype = x->dtype}));
    ax_axisset axes = ax_grid_effective(ctx->grid, width_axes(x));
    if (!axes)
        return AX_OK;
    void *local_sum;
    AX_TRY(ax_frame_scratch(frame, ctx->accum, rows, &local_sum));
    AX_TRY(ax_run_copy_box(ctx->stream, &(ax_copy_box_args){.n = {1, 1, 1, rows},
                                                            .x_stride = {0, 0, 0, 1},
                                                            .y_stride = {0, 0, 0, 1},
                                                            .x = sum,
                                                            .y = local_sum,
                                                            .dtype = ctx->accum}));
    AX_TRY(ax_reduce_axes(ctx, axes, sum, rows, ctx->accum, AX_SUM));
    AX_TRY(ax_run_norm_recentre(ctx->stream, &(ax_norm_recentre_args){.rows = rows,
                                                                      .cols = cols,
                                                                      .global_cols = x->dim[x->ndim - 1],
                                                                      .local_sum = local_sum,
                                                                      .global_sum = sum,
                                                                      .m2 = m2,
                                                                      .dtype = ctx->accum}));
    return ax_reduce_axes(ctx, axes, m2, rows, ctx->accum, AX_SUM);
}

ax_status ax_op_layernorm(ax_frame *frame, const ax_tensor *x, ax_param *weight, ax_param *bias, double eps,
                          ax_tensor *y, ax_tensor *stats)
{
    int64_t rows, cols;
    ax_tensor w, b = {.data = NULL};
    AX_TRY(ax_param_acquire(frame, weight, &w));
    if (bias)
        AX_TRY(ax_param_acquire(frame, bias, &b));
    AX_TRY(ax_op_no_partial(frame, x, "LayerNorm"));
    ax_rows_cols(frame, x, &rows, &cols);
    AX_TRY(row_stats(frame, x, rows, cols, stats));
    AX_TRY(ax_op_like(frame, x, y));
    return ax_run_norm_apply(ax_frame_ctx(frame)->stream,
                             &(ax_norm_apply_args){.rows = rows,
                                                   .cols = cols,
                                                   .global_cols = x->dim[x->ndim - 1],
                                                   .eps = eps,
                                                   .x = x->data,
                                                   .sum = ax_op_part(stats, 0),
                                                   .m2 = ax_op_part(stats, 1),
                                                   .weight = w.data,
                                                   .bias = b.data,
                                                   .y = y->data,
                                                   .dtype = x->dtype});
}

ax_status ax_op_layernorm_grad(ax_frame *frame, const ax_tensor *x, const ax_tensor *stats,
                               const ax_tensor *dy, ax_param *weight, ax_param *bias, double eps,
                               ax_tensor *dx)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    int64_t rows, cols, global_cols = x->dim[x->ndim - 1];
    ax_rows_cols(frame, x, &rows, &cols);
    const void *sum = ax_op_part(stats, 0), *m2 = ax_op_part(stats, 1);
    ax_tensor sums, w, dw, db = {.data = NULL};
    AX_TRY(ax_param_acquire(frame, weight, &w));
    AX_TRY(ax_op_vector_grad(frame, dy, weight, &dw));
    if (bias)
        AX_TRY(ax_op_vector_grad(frame, dy, bias, &db));
    AX_TRY(ax_op_local(frame, 2, (int64_t[]){2, rows}, &sums));
    void *s1 = ax_op_part(&sums, 0), *s2 = ax_op_part(&sums, 1);
    AX_TRY(ax_run_norm_grad_stats(ctx->stream, &(ax_norm_grad_stats_args){.rows = rows,
                                                                          .cols = cols,
                                                                          .global_cols = global_cols,
                                                                          .eps = eps,
                                                                          .x = x->data,
                                                                          .dy = dy->data,
                                                                          .sum = sum,
                                                                          .m2 = m2,
                                                                          .weight = w.data,
                                                                          .s1 = s1,
                                                                          .s2 = s2,
                                                                          .dtype = x->dtype}));
    AX_TRY(ax_reduce_axes(ctx, width_axes(x), s1, 2 * rows, ctx->accum, AX_SUM));
    AX_TRY(ax_op_like(frame, x, dx));
    AX_TRY(ax_run_norm_grad(ctx->stream, &(ax_norm_grad_args){.rows = rows,
                                                              .cols = cols,
                                                              .global_cols = global_cols,
                                                              .eps = eps,
                                                              .x = x->data,
                                                              .dy = dy->data,
                                                              .sum = sum,
                                                              .m2 = m2,
                                                              .weight = w.data,
                                                              .s1 = s1,
                                                              .s2 = s2,
                                                              .dx = dx->data,
                                                              .dweight = dw.data,
                                                              .dbias = db.data,
                                                              .dtype = x->dtype}));
    AX_TRY(ax_param_add_grad(frame, weight, &dw));
    return bias ? ax_param_add_grad(frame, bias, &db) : AX_OK;
}
