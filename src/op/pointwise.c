/* Bias, activations, gated units, addition, dropout, the last position; and helpers that all operations
 * share. */
#include "op/op.h"

#include <string.h>

static ax_stream *stream_of(const ax_frame *frame) { return ax_frame_ctx(frame)->stream; }

void ax_op_rows(const ax_frame *frame, const ax_tensor *x, int64_t *rows, int64_t *cols, int64_t *ld)
{
    const ax_grid *grid = ax_frame_ctx(frame)->grid;
    *rows = 1;
    for (int d = 0; d + 1 < x->ndim; d++)
        *rows *= ax_tensor_extent(grid, x, d);
    *cols = ax_tensor_extent(grid, x, x->ndim - 1);
    *ld = ax_tensor_pitch(grid, x);
}

void ax_rows_cols(const ax_frame *frame, const ax_tensor *x, int64_t *rows, int64_t *cols)
{
    int64_t ld;
    AX_ASSERT(!x->align);
    ax_op_rows(frame, x, rows, cols, &ld);
}

ax_status ax_op_no_partial(const ax_frame *frame, const ax_tensor *x, const char *what)
{
    const ax_grid *grid = ax_frame_ctx(frame)->grid;
    char text[128];
    AX_CHECK(!ax_grid_effective(grid, x->layout.partial), AX_ERR_INTERNAL,
             "%s: the input has partial sums [%s]: redistribute it first", what,
             ax_layout_print(grid, &x->layout, x->ndim, NULL, text));
    return AX_OK;
}

ax_status ax_op_alike(const ax_frame *frame, const ax_tensor *a, const ax_tensor *b)
{
    AX_CHECK(ax_layout_equal(ax_frame_ctx(frame)->grid, &a->layout, &b->layout, a->ndim) &&
                 a->align == b->align,
             AX_ERR_INTERNAL,
             "two tensors that are added must have the same layout and the same padding of rows: "
             "redistribute one first");
    return AX_OK;
}

ax_status ax_op_dense(const ax_tensor *x, const char *what)
{
    AX_CHECK(
        !x->align, AX_ERR_USAGE,
        "%s: the rows of the input are padded, because a linear layer with out_role AX_ROLE_VOCAB computed "
        "the input; this operation does not support padded rows (cross-entropy does): give the layer another "
        "out_role",
        what);
    return AX_OK;
}

ax_status ax_op_like(ax_frame *frame, const ax_tensor *x, ax_tensor *out)
{
    AX_TRY(ax_op_dense(x, "an operation"));
    return ax_frame_alloc(frame, x, out);
}

ax_status ax_op_local(ax_frame *frame, int ndim, const int64_t *dim, ax_tensor *out)
{
    ax_layout none = {0};
    ax_tensor like = ax_tensor_make(ax_frame_ctx(frame)->accum, ndim, dim, NULL, &none);
    return ax_frame_alloc(frame, &like, out);
}

void *ax_op_part(const ax_tensor *stats, int64_t index)
{
    int64_t count = 1;
    for (int d = 1; d < stats->ndim; d++)
        count *= stats->dim[d];
    return (char *)stats->data + (size_t)(index * count) * ax_dtype_size(stats->dtype);
}

ax_status ax_op_vector_grad(ax_frame *frame, const ax_tensor *dy, ax_param *param, ax_tensor *out)
{
    ax_layout produced = ax_layout_of_sums(&dy->layout, dy->ndim);
    return ax_param_grad_target(frame, param, &produced, out, NULL);
}

ax_status ax_op_bias(ax_frame *frame, ax_tensor *x, ax_param *bias)
{
    int64_t rows, cols, ld;
    ax_tensor b;
    bool changed;
    AX_TRY(ax_op_no_partial(frame, x, "bias"));
    AX_TRY(ax_param_acquire(frame, bias, &b));
    AX_TRY(ax_frame_change(frame, x, &changed));
    if (changed)
        return AX_OK;
    ax_op_rows(frame, x, &rows, &cols, &ld);
    return ax_run_bias_add(stream_of(frame), &(ax_bias_add_args){.rows = rows,
                                                                 .cols = cols,
                                                                 .ld = ld,
                                                                 .x = x->data,
                                                                 .bias = b.data,
                                                                 .y = x->data,
                                                                 .dtype = x->dtype});
}

ax_status ax_op_bias_grad(ax_frame *frame, const ax_tensor *dy, ax_param *bias)
{
    int64_t rows, cols, ld;
    ax_tensor db;
    if (bias->frozen)
        return AX_OK;
    ax_op_rows(frame, dy, &rows, &cols, &ld);
    AX_TRY(ax_op_vector_grad(frame, dy, bias, &db));
    AX_TRY(ax_run_col_sum(
        stream_of(frame),
        &(ax_col_sum_args){
            .rows = rows, .cols = cols, .ld = ld, .x = dy->data, .out = db.data, .dtype = dy->dtype}));
    return ax_param_add_grad(frame, bias, &db);
}

ax_status ax_op_activation(ax_frame *frame, const ax_tensor *x, ax_activation kind, ax_tensor *y)
{
    AX_TRY(ax_op_no_partial(frame, x, "an activation"));
    AX_TRY(ax_op_like(frame, x, y));
    return ax_run_activation(stream_of(frame),
                             &(ax_activation_args){.n = ax_tensor_count(ax_frame_ctx(frame)->grid, x),
                                                   .x = x->data,
                                                   .y = y->data,
                                                   .dtype = x->dtype,
                                                   .kind = kind});
}

ax_status ax_op_activation_grad(ax_frame *frame, const ax_tensor *x, const ax_tensor *dy, ax_activation kind,
                                ax_tensor *dx)
{
    AX_TRY(ax_op_like(frame, x, dx));
    return ax_run_activation_grad(
        stream_of(frame), &(ax_activation_grad_args){.n = ax_tensor_count(ax_frame_ctx(frame)->grid, x),
                                                     .x = x->data,
                                                     .dy = dy->data,
                                                     .dx = dx->data,
                                                     .dtype = x->dtype,
                                                     .kind = kind});
}

ax_status ax_op_glu(ax_frame *frame, const ax_tensor *gate, const ax_tensor *up, ax_activation kind,
                    ax_tensor *y)
{
    AX_TRY(ax_op_no_partial(frame, gate, "a gated unit"));
    AX_TRY(ax_op_alike(frame, gate, up));
    int64_t rows, cols, ld;
    ax_tensor like = *gate;
    like.align = 0;
    AX_TRY(ax_frame_alloc(frame, &like, y));
    ax_op_rows(frame, gate, &rows, &cols, &ld);
    return ax_run_glu(stream_of(frame), &(ax_glu_args){.rows = rows,
                                                       .cols = cols,
                                                       .ld = ld,
                                                       .gate = gate->data,
                                                       .up = up->data,
                                                       .y = y->data,
                                                       .dtype = gate->dtype,
                                                       .kind = kind});
}

ax_status ax_op_glu_grad(ax_frame *frame, ax_tensor *gate, ax_tensor *up, const ax_tensor *dy,
                         ax_activation kind)
{
    int64_t rows, cols, ld;
    ax_op_rows(frame, gate, &rows, &cols, &ld);
    return ax_run_glu_grad(stream_of(frame), &(ax_glu_grad_args){.rows = rows,
                                                                 .cols = cols,
                                                                 .ld = ld,
                                                                 .gate = gate->data,
                                                                 .up = up->data,
                                                                 .dy = dy->data,
                                                                 .dgate = gate->data,
                                                                 .dup = up->data,
                                                                 .dtype = gate->dtype,
                                                                 .kind = kind});
}

ax_status ax_op_add(ax_frame *frame, const ax_tensor *a, const ax_tensor *b, ax_tensor *y)
{
    const ax_grid *grid = ax_frame_ctx(frame)->grid;
    AX_TRY(ax_op_alike(frame, a, b));
    AX_TRY(ax_op_like(frame, a, y));
    return ax_run_add(
        stream_of(frame),
        &(ax_add_args){
            .n = ax_tensor_count(grid, a), .a = a->data, .b = b->data, .y = y->data, .dtype = a->dtype});
}

uint64_t ax_op_drop_key(const ax_frame *frame, const ax_drop *drop)
{
    const ax_batch *batch = ax_frame_batch(frame);
    return batch && batch->now ? drop->key : ax_rng_key(drop->key, "task", ax_frame_train_tasks(frame));
}

ax_status ax_op_zero(ax_frame *frame, const ax_tensor *x)
{
    ax_fill_args fill = {.n = ax_tensor_count(ax_frame_ctx(frame)->grid, x), .y = x->data, .dtype = x->dtype};
    return fill.n ? ax_run_fill(stream_of(frame), &fill) : AX_OK;
}

/* Writes the dropout of x to the memory of y, which may be that of x. */
static ax_status run_dropout(ax_frame *frame, const ax_tensor *x, const ax_drop *drop, const ax_tensor *y)
{
    const ax_grid *grid = ax_frame_ctx(frame)->grid;
    const ax_batch *batch = ax_frame_batch(frame);
    if (drop->p == 1) /* 1/(1-p) is infinite */
        return ax_op_zero(frame, y);
    ax_box box = ax_tensor_box(grid, x, ax_grid_rank(grid));
    int64_t rows, cols;
    ax_rows_cols(frame, x, &rows, &cols);
    return ax_run_dropout(stream_of(frame), &(ax_dropout_args){.rows = rows,
                                                               .cols = cols,
                                                               .row0 = box.lo[0] * x->dim[1],
                                                               .col0 = box.lo[2],
                                                               .global_cols = x->dim[2],
                                                               .key = ax_op_drop_key(frame, drop),
                                                               .p = drop->p,
                                                               .now = batch ? batch->now : NULL,
                                                               .x = x->data,
                                                               .y = y->data,
                                                               .dtype = x->dtype});
}

ax_status ax_op_dropout(ax_frame *frame, const ax_tensor *x, const ax_drop *drop, ax_tensor *y)
{
    AX_TRY(ax_op_like(frame, x, y));
    return run_dropout(frame, x, drop, y);
}

ax_status ax_op_add_dropout(ax_frame *frame, const ax_tensor *x, const ax_drop *drop, const ax_tensor *sums)
{
    AX_TRY(ax_op_alike(frame, x, sums));
    AX_TRY(ax_op_dense(x, "dropout"));
    AX_TRY(run_dropout(frame, x, drop, x));
    return ax_run_add(stream_of(frame), &(ax_add_args){.n = ax_tensor_count(ax_frame_ctx(frame)->grid, x),
                                                       .a = sums->data,
                                                       .b = x->data,
                                                       .y = sums->data,
                                                       .dtype = x->dtype});
}

ax_status ax_op_last_position(ax_frame *frame, const ax_tensor *x, ax_tensor *y)
{
    const ax_grid *grid = ax_frame_ctx(frame)->grid;
    ax_tensor like = *x;
    like.dim[1] = 1;
    like.align = 0;
    AX_TRY(ax_frame_alloc(frame, &like, y));
    int64_t b = ax_tensor_extent(grid, x, 0), t = ax_tensor_extent(grid, x, 1),
            d = ax_tensor_extent(grid, x, 2), ld = ax_tensor_pitch(grid, x);
    const char *last = (const char *)x->data + (size_t)((t - 1) * ld) * ax_dtype_size(x->dtype);
    return ax_run_copy_box(stream_of(frame), &(ax_copy_box_args){.n = {1, 1, b, d},
                                                                 .x_stride = {0, 0, t * ld, 1},
                                                                 .y_stride = {0, 0, d, 1},
                                                                 .x = last,
                                                                 .y = y->data,
                                                                 .dtype = x->dtype});
}
