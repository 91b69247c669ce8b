/* Executes redistributions, one step in flight at a time. Each step but a slice is one collective
 * on contiguous buffers. An all-reduce works in place. The buffers of gathers and scatters are the tensors
 * themselves if three things hold: the step's dim is the outermost one (or all dims before it have extent
 * 1), the ranks' parts begin at multiples of the chunk (the extent of the largest part, ax_wire), and the
 * memory has room for padding the parts to the chunk. (Parts begin at such multiples if they are equal, or
 * if the step's axis is a fine axis, see ax_axes.) Otherwise parts are packed into frame memory (ax_frame,
 * the activation memory), padded with zeros to the size of the largest part, or unpacked after the
 * collective, or both. A move sends from the source in place if these things hold for the dim that it splits,
 * and receives in place if they hold for the dim whose split it ends; the other of the two dims must have the
 * extent of its largest part. */
#include "parallel/transfer.h"

#include <string.h>

/* A step with its communicator, message size and number of parts, one for each rank of the communicator. The
 * parts are those of dim `dim`. */
typedef struct step_run {
    ax_ctx *ctx;
    ax_comm *comm;
    const ax_redistribution_step *step;
    ax_wire wire; /* of other steps than moves */
    int dim, parts;
} step_run;

/* Copies `lead` rows of `cols` elements from x to y; x_stride and y_stride are the distances between rows,
 * x_offset and y_offset the offsets of the first rows, in elements. */
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

/* Computes the range of dim r->dim that the rank with coordinate i along the step's axis holds of t: *n
 * elements from *lo on, counted from element `base` of the dim. */
static void part_range(const step_run *r, const ax_tensor *t, int i, int64_t base, int64_t *lo, int64_t *n)
{
    int rank = ax_grid_peer(r->ctx->grid, r->step->axis, i);
    ax_tensor_range(r->ctx->grid, t, r->dim, rank, lo, n);
    *lo -= base;
}

static void own_range(const step_run *r, const ax_tensor *t, int64_t *lo, int64_t *n)
{
    ax_tensor_range(r->ctx->grid, t, r->dim, ax_grid_rank(r->ctx->grid), lo, n);
}

/* Allocates frame memory for `count` packed elements. If `padded` is true, the packed parts leave gaps, so
 * the memory is zeroed. */
static ax_status staging(ax_transfer *t, int64_t count, bool padded, void **out)
{
    AX_TRY(ax_frame_scratch(t->frame, t->now.dtype, count, out));
    ax_fill_args fill = {.n = count, .value = 0, .y = *out, .dtype = t->now.dtype};
    return padded && count ? ax_run_fill(t->ctx->stream, &fill) : AX_OK;
}

static step_run run_of(ax_ctx *ctx, const ax_redistribution *steps, int k, const ax_tensor *src)
{
    const ax_redistribution_step *step = &steps->step[k];
    step_run r = {
        .ctx = ctx, .step = step, .dim = step->dim, .parts = ax_grid_group_size(ctx->grid, step->axes)};
    ax_tensor after = *src;
    after.layout = step->after;
    if (step->kind != AX_STEP_REDUCE && step->kind != AX_STEP_MOVE)
        r.wire = ax_wire_make(ctx->grid, step->kind == AX_STEP_GATHER ? src : &after, step->dim, step->axis);
    return r;
}

/* Returns true if each part i of `whole` begins at i · chunk (an empty part: at the end). `fine` is the
 * tensor with dim r->dim already split along the step's axis, `whole` the tensor without this split. If that
 * is the last axis of the dim, `whole` is cut once, into parts of which the first ones have one unit more
 * than the others. Then the last part decides: it begins at its multiple only if no part but itself is
 * smaller than the first, or if these are empty. */
static bool at_chunks(const step_run *r, const ax_tensor *fine, const ax_tensor *whole, int64_t chunk)
{
    const ax_axes *axes = &fine->layout.dim[r->dim];
    const bool cut_once = axes->n && axes->a[axes->n - 1] == r->step->axis;
    int64_t lo, n, base, all;
    bool placed = true;
    own_range(r, whole, &base, &all);
    for (int i = cut_once ? r->parts - 1 : 0; i < r->parts && placed; i++) {
        part_range(r, fine, i, base, &lo, &n);
        placed = lo == ax_min(i * chunk, all);
    }
    return placed;
}

/* Returns true if all dims before the step's dim have extent 1 and the parts are at_chunks, so that parts
 * need no packing, except to pad them. */
static bool in_place(const step_run *r, const ax_tensor *fine, const ax_tensor *whole)
{
    return r->wire.lead == 1 && at_chunks(r, fine, whole, r->wire.chunk);
}

/* ---- memory -------------------------------------------------------------------------------------- */

/* Returns the tensor that step k reads, if the redistribution's source is `src`. */
static ax_tensor source_of(const ax_redistribution *steps, int k, const ax_tensor *src)
{
    ax_tensor t = *src;
    if (k > 0)
        t.layout = steps->step[k - 1].after;
    return t;
}

/* Returns the number of elements, padding included, that step k sends (if `sent` is true) or receives; 0 if
 * step k is a slice or an all-reduce. `src` is the redistribution's source. */
static int64_t room(ax_ctx *ctx, const ax_redistribution *steps, int k, const ax_tensor *src, bool sent)
{
    ax_tensor from = source_of(steps, k, src);
    step_run r = run_of(ctx, steps, k, &from);
    if (r.step->kind == AX_STEP_MOVE)
        return r.parts * ax_move_wire_make(ctx->grid, &from, r.step).count;
    if (r.step->kind != AX_STEP_GATHER && r.step->kind != AX_STEP_SCATTER)
        return 0;
    return (r.step->kind == AX_STEP_GATHER) == sent ? r.wire.count : r.wire.count * r.parts;
}

/* Returns true if step k is a gather that can run in place: its source can be this rank's part of its
 * result. */
static bool gathers_in_place(ax_ctx *ctx, const ax_redistribution *steps, int k, const ax_tensor *src)
{
    if (k >= steps->n || steps->step[k].kind != AX_STEP_GATHER)
        return false;
    ax_tensor from = source_of(steps, k, src), made = from;
    made.layout = steps->step[k].after;
    step_run r = run_of(ctx, steps, k, &from);
    return in_place(&r, &from, &made);
}

/* Returns the number of elements that the first step from step k on that is no all-reduce sends: from the
 * same memory as step k, because all-reduces work in place. 0 if there is no such step. */
static int64_t room_to_send(ax_ctx *ctx, const ax_redistribution *steps, int k, const ax_tensor *src)
{
    while (k < steps->n && steps->step[k].kind == AX_STEP_REDUCE)
        k++;
    return k < steps->n ? room(ctx, steps, k, src, true) : 0;
}

/* Returns the number of elements of memory for the result of step k: enough for all that step k receives and
 * for all that later steps send from it, padding included. If steps k - 1 and k are gathers and step k runs
 * in place, the result of step k - 1 lies in this memory too. */
static int64_t room_made(ax_ctx *ctx, const ax_redistribution *steps, int k, const ax_tensor *src)
{
    ax_tensor made = *src;
    made.layout = steps->step[k].after;
    int64_t count = ax_max(ax_tensor_count(ctx->grid, &made), room(ctx, steps, k, src, false));
    if (k > 0 && steps->step[k - 1].kind == AX_STEP_GATHER && gathers_in_place(ctx, steps, k, src))
        count = ax_max(count, room(ctx, steps, k, src, false) - room(ctx, steps, k, src, true) +
                                  room_made(ctx, steps, k - 1, src));
    return ax_max(count, room_to_send(ctx, steps, k + 1, src));
}

/* Returns the index of the last step that is not an all-reduce, or -1. All-reduces work in place, so this
 * step writes to the memory of the result. */
static int last_producer(const ax_redistribution *steps)
{
    int k = steps->n - 1;
    while (k >= 0 && steps->step[k].kind == AX_STEP_REDUCE)
        k--;
    return k;
}

int64_t ax_redistribution_room_sent(ax_ctx *ctx, const ax_tensor *src, const ax_redistribution *steps)
{
    return ax_max(ax_tensor_count(ctx->grid, src), room_to_send(ctx, steps, 0, src));
}

int64_t ax_redistribution_room_received(ax_ctx *ctx, const ax_tensor *src, const ax_redistribution *steps)
{
    int k = last_producer(steps);
    return k < 0 ? ax_tensor_count(ctx->grid, src) : room_made(ctx, steps, k, src);
}

/* Finds memory for the result of step k, which is not an all-reduce. (All-reduces work in place; they are
 * ignored below.) The last step gets the memory of the redistribution's result. If step k is a gather and all
 * later steps are gathers in place, step k gets this rank's part of that memory. Any other step gets frame
 * memory. */
static ax_status memory_for(ax_transfer *t, int k, void **out)
{
    int last = last_producer(&t->steps), m = k + 1;
    int64_t offset = 0;
    for (; m <= last && gathers_in_place(t->ctx, &t->steps, m, &t->src); m++) {
        ax_axis axis = t->steps.step[m].axis;
        offset += ax_grid_coord(t->ctx->grid, ax_grid_rank(t->ctx->grid), axis) *
                  room(t->ctx, &t->steps, m, &t->src, true);
    }
    if (m <= last || (k < last && t->steps.step[k].kind != AX_STEP_GATHER))
        return ax_frame_scratch(t->frame, t->src.dtype, room_made(t->ctx, &t->steps, k, &t->src), out);
    *out = (char *)t->result + offset * (int64_t)ax_dtype_size(t->src.dtype);
    return AX_OK;
}

/* ---- steps --------------------------------------------------------------------------------------- */

static ax_status run_gather(const step_run *r, ax_transfer *t, const ax_tensor *src)
{
    const ax_wire *w = &r->wire;
    ax_dtype dtype = src->dtype;
    int64_t lo, n;
    own_range(r, src, &lo, &n);
    void *send = src->data, *recv = t->now.data;
    if (n < w->chunk && !(w->lead == 1 && t->roomy)) {
        AX_TRY(staging(t, w->count, true, &send));
        AX_TRY(copy_rows(r->ctx, dtype, w->lead, n * w->inner, src->data, 0, n * w->inner, send, 0,
                         w->chunk * w->inner));
    }
    if (!in_place(r, src, &t->now)) {
        AX_TRY(staging(t, r->parts * w->count, false, &recv));
        t->staged = recv;
    }
    return ax_all_gather(r->comm, r->ctx->stream, send, recv, w->count, dtype, &t->work);
}

static ax_status run_scatter(const step_run *r, ax_transfer *t, const ax_tensor *src)
{
    const ax_wire *w = &r->wire;
    ax_dtype dtype = src->dtype;
    int64_t lo, n, base, whole;
    own_range(r, src, &base, &whole);
    void *send = src->data, *recv = t->now.data;
    bool even = whole == r->parts * w->chunk;
    if (!in_place(r, &t->now, src) || !(even || t->roomy)) {
        AX_TRY(staging(t, r->parts * w->count, !even, &send));
        for (int i = 0; i < r->parts; i++) {
            part_range(r, &t->now, i, base, &lo, &n);
            AX_TRY(copy_rows(r->ctx, dtype, w->lead, n * w->inner, src->data, lo * w->inner, whole * w->inner,
                             send, i * w->count, w->chunk * w->inner));
        }
    }
    own_range(r, &t->now, &lo, &n);
    if (n < w->chunk && w->lead > 1) {
        AX_TRY(staging(t, w->count, false, &recv));
        t->staged = recv;
    }
    return ax_reduce_scatter(r->comm, r->ctx->stream, send, recv, w->count, dtype, AX_SUM, &t->work);
}

/* What a move sends (if `sends`) or receives: parts of `whole` along dim run.dim, the dim that the move
 * splits or whose split it ends. `fine` is the other of the move's two tensors, in which dim run.dim is
 * split. */
typedef struct move_side {
    step_run run;
    bool sends;
    const ax_tensor *whole, *fine;
    ax_move_wire wire;
    int64_t n[AX_MAX_DIMS]; /* local extents of `whole`; dims that it lacks have extent 1 */
} move_side;

static move_side side_of(const step_run *r, const ax_tensor *from, const ax_tensor *made, bool sends)
{
    move_side m = {.run = *r,
                   .sends = sends,
                   .whole = sends ? from : made,
                   .fine = sends ? made : from,
                   .wire = ax_move_wire_make(r->ctx->grid, from, r->step)};
    m.run.dim = sends ? r->step->to : r->step->dim;
    for (int d = 0; d < AX_MAX_DIMS; d++)
        m.n[d] = d < from->ndim ? ax_tensor_extent(r->ctx->grid, m.whole, d) : 1;
    return m;
}

/* Returns true if the parts have gaps where they are padded. */
static bool is_padded(const move_side *m)
{
    bool padded = false;
    for (int d = 0; d < AX_MAX_DIMS; d++)
        padded |= m->n[d] != (d == m->run.dim ? m->run.parts : 1) * m->wire.n[d];
    return padded;
}

/* Returns true if the parts need no packing, except to pad the last ones at their end. */
static bool moves_in_place(const move_side *m)
{
    const int split = m->run.dim;
    bool placed = at_chunks(&m->run, m->fine, m->whole, m->wire.n[split]);
    for (int d = 0; d < AX_MAX_DIMS; d++)
        placed &= d == split || (m->n[d] == m->wire.n[d] && (d > split || m->n[d] == 1));
    return placed;
}

/* Returns the array's strides. */
static void strides_of(const int64_t n[AX_MAX_DIMS], int64_t out[AX_MAX_DIMS])
{
    out[AX_MAX_DIMS - 1] = 1;
    for (int d = AX_MAX_DIMS - 2; d >= 0; d--)
        out[d] = out[d + 1] * n[d + 1];
}

/* Copies all parts between the tensor m->whole and their packed form. */
static ax_status copy_parts(const move_side *m, void *packed)
{
    const int split = m->run.dim;
    const int64_t size = (int64_t)ax_dtype_size(m->whole->dtype);
    int64_t lo, base, all, stride[AX_MAX_DIMS], packed_stride[AX_MAX_DIMS];
    strides_of(m->n, stride);
    strides_of(m->wire.n, packed_stride);
    own_range(&m->run, m->whole, &base, &all);
    for (int i = 0; i < m->run.parts; i++) {
        ax_copy_box_args args = {.dtype = m->whole->dtype};
        memcpy(args.n, m->n, sizeof m->n);
        part_range(&m->run, m->fine, i, base, &lo, &args.n[split]);
        if (args.n[0] * args.n[1] * args.n[2] * args.n[3] == 0)
            continue;
        char *part = (char *)m->whole->data + lo * stride[split] * size,
             *at = (char *)packed + i * m->wire.count * size;
        memcpy(args.x_stride, m->sends ? stride : packed_stride, sizeof stride);
        memcpy(args.y_stride, m->sends ? packed_stride : stride, sizeof stride);
        args.x = m->sends ? part : at;
        args.y = m->sends ? at : part;
        AX_TRY(ax_run_copy_box(m->run.ctx->stream, &args));
    }
    return AX_OK;
}

static ax_status run_move(const step_run *r, ax_transfer *t, const ax_tensor *src)
{
    const move_side out = side_of(r, src, &t->now, true), in = side_of(r, src, &t->now, false);
    const int64_t count = out.wire.count;
    void *send = src->data, *recv = t->now.data;
    bool padded = is_padded(&out);
    if (!moves_in_place(&out) || (padded && !t->roomy)) {
        AX_TRY(staging(t, r->parts * count, padded, &send));
        AX_TRY(copy_parts(&out, send));
    }
    if (!moves_in_place(&in)) {
        AX_TRY(staging(t, r->parts * count, false, &recv));
        t->staged = recv;
    }
    return ax_all_to_all(r->comm, r->ctx->stream, send, recv, count, src->dtype, &t->work);
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

/* Starts step t->step with the source t->now. Sets t->now to the result of the step, which is valid after
 * end_step. */
static ax_status start_step(ax_transfer *t)
{
    ax_tensor src = t->before = t->now;
    int k = t->step;
    step_run r = run_of(t->ctx, &t->steps, k, &src);
    t->now.layout = r.step->after;
    if (r.step->kind != AX_STEP_SLICE)
        AX_TRY(ax_grid_comm(r.ctx->grid, r.step->axes, &r.comm));
    if (r.step->kind == AX_STEP_REDUCE)
        return ax_all_reduce(r.comm, r.ctx->stream, src.data, ax_tensor_count(r.ctx->grid, &src), src.dtype,
                             AX_SUM, &t->work);
    AX_TRY(memory_for(t, k, &t->now.data));
    if (r.step->kind == AX_STEP_SLICE)
        return run_slice(&r, &src, &t->now);
    AX_TRY(r.step->kind == AX_STEP_GATHER ? run_gather(&r, t, &src)
           : r.step->kind == AX_STEP_MOVE ? run_move(&r, t, &src)
                                          : run_scatter(&r, t, &src));
    t->roomy = true; /* memory_for has included room for all that the next step sends */
    return AX_OK;
}

/* Waits for the step in flight and unpacks t->staged, if the step did not receive in place. */
static ax_status end_step(ax_transfer *t)
{
    AX_TRY(ax_wait(&t->work));
    if (!t->staged)
        return AX_OK;
    step_run r = run_of(t->ctx, &t->steps, t->step, &t->before);
    const ax_wire *w = &r.wire;
    ax_dtype dtype = t->now.dtype;
    int64_t lo, n, base, whole;
    own_range(&r, &t->now, &base, &whole);
    if (r.step->kind == AX_STEP_SCATTER)
        AX_TRY(copy_rows(r.ctx, dtype, w->lead, whole * w->inner, t->staged, 0, w->chunk * w->inner,
                         t->now.data, 0, whole * w->inner));
    if (r.step->kind == AX_STEP_MOVE) {
        const move_side in = side_of(&r, &t->before, &t->now, false);
        AX_TRY(copy_parts(&in, t->staged));
    }
    for (int i = 0; i < r.parts && r.step->kind == AX_STEP_GATHER; i++) {
        part_range(&r, &t->before, i, base, &lo, &n);
        AX_TRY(copy_rows(r.ctx, dtype, w->lead, n * w->inner, t->staged, i * w->count, w->chunk * w->inner,
                         t->now.data, lo * w->inner, whole * w->inner));
    }
    t->staged = NULL;
    return AX_OK;
}

/* ---- transfers ----------------------------------------------------------------------------------- */

/* Starts steps until one of them is in flight or all steps are done. */
static ax_status start_steps(ax_transfer *t)
{
    for (; t->step < t->steps.n; t->step++) {
        AX_TRY(start_step(t));
        if (t->work || t->staged)
            return AX_OK;
    }
    t->now.layout = t->target;
    return AX_OK;
}

bool ax_transfer_done(const ax_transfer *t) { return t->step >= t->steps.n; }

ax_status ax_transfer_next(ax_transfer *t)
{
    if (ax_transfer_done(t))
        return AX_OK;
    AX_TRY(end_step(t));
    t->step++;
    return start_steps(t);
}

ax_status ax_transfer_finish(ax_transfer *t)
{
    while (!ax_transfer_done(t))
        AX_TRY(ax_transfer_next(t));
    return AX_OK;
}

static ax_status transfer_wait(ax_work *work) { return ax_transfer_finish((ax_transfer *)work); }

ax_status ax_transfer_start(ax_transfer *t, ax_ctx *ctx, ax_frame *frame, const ax_redistribution *steps,
                            const ax_tensor *src, const ax_layout *target, bool roomy, void *result)
{
    *t = (ax_transfer){.base = {.wait = transfer_wait},
                       .ctx = ctx,
                       .frame = frame,
                       .steps = *steps,
                       .roomy = roomy,
                       .src = *src,
                       .now = *src,
                       .target = *target,
                       .result = result};
    int last = last_producer(steps);
    if (last >= 0 && !result)
        AX_TRY(ax_frame_scratch(frame, src->dtype, room_made(ctx, steps, last, src), &t->result));
    return start_steps(t);
}

/* Copies a tensor with padded rows to frame memory with dense rows. */
static ax_status dense(ax_frame *frame, const ax_tensor *src, ax_tensor *out)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    int64_t cols = ax_tensor_extent(ctx->grid, src, src->ndim - 1);
    ax_tensor like = *src;
    like.align = 0;
    AX_TRY(ax_frame_alloc(frame, &like, out));
    return copy_rows(ctx, src->dtype, cols ? ax_tensor_count(ctx->grid, src) / cols : 0, cols, src->data, 0,
                     ax_tensor_pitch(ctx->grid, src), out->data, 0, cols);
}

static bool communicates(const ax_redistribution *steps)
{
    int k = 0;
    while (k < steps->n && steps->step[k].kind == AX_STEP_SLICE)
        k++;
    return k < steps->n;
}

static ax_status start(ax_frame *frame, const ax_redistribution *steps, const ax_tensor *src,
                       const ax_layout *target, ax_tensor *dst, ax_work **work)
{
    ax_layout final = *target;
    ax_tensor from = *src;
    if (steps->n && src->align)
        AX_TRY(dense(frame, src, &from));
    void *data = from.data;
    if (steps->n) {
        ax_transfer *t;
        AX_TRY(ax_frame_host(frame, sizeof *t, (void **)&t));
        AX_TRY(ax_transfer_start(t, ax_frame_ctx(frame), frame, steps, &from, target, false, NULL));
        data = t->result ? t->result : from.data;
        if (!ax_transfer_done(t))
            *work = &t->base;
    }
    *dst = from;
    dst->layout = final;
    dst->data = data;
    return AX_OK;
}

ax_status ax_redistribute(ax_frame *frame, const ax_tensor *src, const ax_layout *target, ax_tensor *dst,
                          ax_work **work)
{
    ax_redistribution steps;
    bool taken = false;
    *work = NULL;
    AX_TRY(ax_redistribution_make(ax_frame_ctx(frame)->grid, src, target, &steps));
    const bool collective = communicates(&steps);
    if (collective)
        AX_TRY(ax_frame_take(frame, src, dst, &taken));
    if (taken)
        return AX_OK;
    AX_TRY(start(frame, &steps, src, target, dst, work));
    return collective ? ax_frame_keep(frame, dst) : AX_OK;
}

ax_status ax_settle(ax_frame *frame, const ax_tensor *src, const ax_layout *target, ax_tensor *dst)
{
    ax_work *work;
    AX_TRY(ax_redistribute(frame, src, target, dst, &work));
    return ax_wait(&work);
}
