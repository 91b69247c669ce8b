/* Runs plans. Each step is one collective between contiguous buffers; where a dim is outermost and its parts
 * are even the tensors themselves are those buffers, else parts are packed into frame memory, padded with
 * zeros to the uniform chunk. */
#include "dist/plan.h"

typedef struct step_run {
    ax_frame *frame;
    ax_ctx *ctx;
    ax_comm *comm;
    const ax_plan_step *step;
    ax_wire wire;
    int parts;
} step_run;

/* Copies [lead][cols] elements between rows that are x_stride and y_stride apart. */
static ax_status copy_rows(ax_ctx *ctx, ax_dtype dtype, int64_t lead, int64_t cols, const void *x,
                           int64_t x_offset, int64_t x_stride, void *y, int64_t y_offset, int64_t y_stride)
{
    if (!lead || !cols)
        return AX_OK;
    int64_t size = (int64_t)ax_dtype_size(dtype);
    ax_copy_box_args args = {.n = {1, 1, lead, cols},
                             .x_stride = {0, 0, x_stride, 1},
                             .y_stride = {0, 0, y_stride, 1},
                             .x = (const char *)x + x_offset * size,
                             .y = (char *)y + y_offset * size,
                             .dtype = dtype};
    return ax_run_copy_box(ctx->stream, &args);
}

/* The range of dim `dim` of `t` that part `i` along the step's axis holds, counted from `base`. */
static void part_range(const step_run *r, const ax_tensor *t, int i, int64_t base, int64_t *lo, int64_t *n)
{
    int rank = ax_grid_peer(r->ctx->grid, r->step->axis, i);
    ax_tensor_range(r->ctx->grid, t, r->step->dim, rank, lo, n);
    *lo -= base;
}

static void own_range(const step_run *r, const ax_tensor *t, int64_t *lo, int64_t *n)
{
    ax_tensor_range(r->ctx->grid, t, r->step->dim, ax_grid_rank(r->ctx->grid), lo, n);
}

/* Frame memory for `count` elements, zeroed if padding will remain between what is packed into it. */
static ax_status staging(const step_run *r, ax_dtype dtype, int64_t count, bool padded, void **out)
{
    AX_TRY(ax_frame_scratch(r->frame, dtype, count, out));
    ax_fill_args fill = {.n = count, .value = 0, .y = *out, .dtype = dtype};
    return padded && count ? ax_run_fill(r->ctx->stream, &fill) : AX_OK;
}

static ax_status run_gather(const step_run *r, const ax_tensor *src, const ax_tensor *dst, ax_work **work)
{
    const ax_wire *w = &r->wire;
    ax_dtype dtype = src->dtype;
    int64_t lo, n, base, whole;
    own_range(r, src, &lo, &n);
    own_range(r, dst, &base, &whole);
    void *send = src->data, *recv = dst->data;
    if (n < w->chunk) {
        AX_TRY(staging(r, dtype, w->count, true, &send));
        AX_TRY(copy_rows(r->ctx, dtype, w->lead, n * w->inner, src->data, 0, n * w->inner, send, 0,
                         w->chunk * w->inner));
    }
    bool direct = w->lead == 1 && whole == r->parts * w->chunk;
    if (!direct)
        AX_TRY(staging(r, dtype, r->parts * w->count, false, &recv));
    AX_TRY(ax_all_gather(r->comm, r->ctx->stream, send, recv, w->count, dtype, work));
    if (direct)
        return AX_OK;
    AX_TRY(ax_wait(work));
    for (int i = 0; i < r->parts; i++) {
        part_range(r, src, i, base, &lo, &n);
        AX_TRY(copy_rows(r->ctx, dtype, w->lead, n * w->inner, recv, i * w->count, w->chunk * w->inner,
                         dst->data, lo * w->inner, whole * w->inner));
    }
    return AX_OK;
}

static ax_status run_scatter(const step_run *r, const ax_tensor *src, const ax_tensor *dst, ax_work **work)
{
    const ax_wire *w = &r->wire;
    ax_dtype dtype = src->dtype;
    int64_t lo, n, base, whole;
    own_range(r, src, &base, &whole);
    void *send = src->data, *recv = dst->data;
    bool even = whole == r->parts * w->chunk;
    if (w->lead != 1 || !even) {
        AX_TRY(staging(r, dtype, r->parts * w->count, !even, &send));
        for (int i = 0; i < r->parts; i++) {
            part_range(r, dst, i, base, &lo, &n);
            AX_TRY(copy_rows(r->ctx, dtype, w->lead, n * w->inner, src->data, lo * w->inner, whole * w->inner,
                             send, i * w->count, w->chunk * w->inner));
        }
    }
    own_range(r, dst, &lo, &n);
    if (n < w->chunk)
        AX_TRY(staging(r, dtype, w->count, false, &recv));
    AX_TRY(ax_reduce_scatter(r->comm, r->ctx->stream, send, recv, w->count, dtype, AX_SUM, work));
    if (n == w->chunk)
        return AX_OK;
    AX_TRY(ax_wait(work));
    return copy_rows(r->ctx, dtype, w->lead, n * w->inner, recv, 0, w->chunk * w->inner, dst->data, 0,
                     n * w->inner);
}

static ax_status run_slice(const step_run *r, const ax_tensor *src, const ax_tensor *dst)
{
    const ax_wire *w = &r->wire;
    int64_t lo, n, base, whole;
    own_range(r, src, &base, &whole);
    own_range(r, dst, &lo, &n);
    return copy_rows(r->ctx, src->dtype, w->lead, n * w->inner, src->data, (lo - base) * w->inner,
                     whole * w->inner, dst->data, 0, n * w->inner);
}

/* Runs one step on *t and makes *t its result; *work is what the result must wait for. */
static ax_status run_step(ax_frame *frame, const ax_plan_step *step, ax_tensor *t, ax_work **work)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    step_run r = {.frame = frame,
                  .ctx = ctx,
                  .comm = ax_grid_comm(ctx->grid, step->axes),
                  .step = step,
                  .parts = ax_grid_group_size(ctx->grid, step->axes)};
    ax_tensor src = *t;
    t->layout = step->after;
    if (step->kind == AX_STEP_REDUCE)
        return ax_all_reduce(r.comm, ctx->stream, t->data, ax_tensor_count(ctx->grid, t), t->dtype, AX_SUM,
                             work);
    r.wire = ax_wire_make(ctx->grid, step->kind == AX_STEP_GATHER ? &src : t, step->dim);
    AX_TRY(ax_frame_alloc(frame, t, t));
    if (step->kind == AX_STEP_SLICE)
        return run_slice(&r, &src, t);
    return step->kind == AX_STEP_GATHER ? run_gather(&r, &src, t, work) : run_scatter(&r, &src, t, work);
}

ax_status ax_redistribute(ax_frame *frame, const ax_tensor *src, const ax_layout *target, ax_tensor *dst,
                          ax_work **work)
{
    ax_plan plan;
    ax_tensor t = *src;
    ax_layout final = *target;
    *work = NULL;
    AX_TRY(ax_plan_make(ax_frame_ctx(frame)->grid, src, target, &plan));
    for (int i = 0; i < plan.n; i++) {
        AX_TRY(ax_wait(work));
        AX_TRY(run_step(frame, &plan.step[i], &t, work));
    }
    t.layout = final;
    *dst = t;
    return AX_OK;
}

ax_status ax_settle(ax_frame *frame, const ax_tensor *src, const ax_layout *target, ax_tensor *dst)
{
    ax_work *work;
    AX_TRY(ax_redistribute(frame, src, target, dst, &work));
    return ax_wait(&work);
}
