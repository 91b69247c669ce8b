/* Embedding look-up, and its gradient. */
#include "op/op.h"

/* Returns, as a tensor without data, the extents and layout of the looked-up rows: the dims of `ids`, then
 * the width of `table`. If the rows of `table` are split, the result is a partial sum along the axes that
 * split these rows. */
static ax_tensor result_of(const ax_frame *frame, const ax_tensor *ids, const ax_tensor *table)
{
    ax_layout layout = ids->layout;
    layout.dim[ids->ndim] = table->layout.dim[1];
    for (int i = 0; i < table->layout.dim[0].n; i++)
        layout.partial |= (ax_axisset)(1u << table->layout.dim[0].a[i]);
    int64_t dim[AX_MAX_DIMS] = {0}, unit[AX_MAX_DIMS] = {0};
    for (int d = 0; d < ids->ndim; d++) {
        dim[d] = ids->dim[d];
        unit[d] = ids->unit[d];
    }
    dim[ids->ndim] = table->dim[1];
    unit[ids->ndim] = table->unit[1];
    return ax_tensor_make(ax_frame_ctx(frame)->compute, ids->ndim + 1, dim, unit, &layout);
}

ax_status ax_op_embedding(ax_frame *frame, const ax_tensor *ids, ax_param *table, bool accumulate,
                          ax_tensor *y)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    ax_tensor w;
    bool changed = false;
    AX_TRY(ax_param_acquire(frame, table, &w));
    if (accumulate) {
        AX_TRY(ax_frame_change(frame, y, &changed));
    } else {
        ax_tensor like = result_of(frame, ids, &w);
        AX_TRY(ax_frame_alloc(frame, &like, y));
    }
    if (changed)
        return AX_OK;
    int64_t rows, cols, first, count;
    ax_rows_cols(frame, y, &rows, &cols);
    ax_tensor_range(ctx->grid, &w, 0, ax_grid_rank(ctx->grid), &first, &count);
    return ax_run_embedding(ctx->stream, &(ax_embedding_args){.rows = rows,
                                                              .cols = cols,
                                                              .first = first,
                                                              .count = count,
                                                              .table = w.data,
                                                              .ids = ids->data,
                                                              .y = y->data,
                                                              .dtype = y->dtype,
                                                              .accumulate = accumulate});
}

ax_status ax_op_embedding_grad(ax_frame *frame, const ax_tensor *ids, const ax_tensor *dy, ax_param *table)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    int64_t rows, cols, first, count;
    ax_tensor grad;
    if (table->frozen)
        return AX_OK;
    ax_layout produced = {.dim = {table->use.dim[0], dy->layout.dim[dy->ndim - 1]},
                          .partial = dy->layout.partial | ax_layout_split_axes(&dy->layout, dy->ndim - 1)};
    AX_TRY(ax_param_grad_target(frame, table, &produced, &grad, NULL));
    ax_rows_cols(frame, dy, &rows, &cols);
    ax_tensor_range(ctx->grid, &grad, 0, ax_grid_rank(ctx->grid), &first, &count);
    AX_TRY(ax_run_embedding_grad(ctx->stream, &(ax_embedding_grad_args){.rows = rows,
                                                                        .cols = cols,
                                                                        .first = first,
                                                                        .count = count,
                                                                        .dy = dy->data,
                                                                        .ids = ids->data,
                                                                        .dtable = grad.data,
                                                                        .dtype = dy->dtype,
                                                                        .table_dtype = grad.dtype}));
    return ax_param_add_grad(frame, table, &grad);
}
