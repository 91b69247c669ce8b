/* Accumulation and reduction of gradients. Read param.h first.
 *
 * A contribution is the gradient of a weight from one use in one micro-batch. Usually it has layout U
 * (ax_param) and is partial along the axes that split the batch. It is reduce-scattered along z into the
 * gradient's layout (arXiv 2502.08145, Alg. 1, line 12) and added to the gradient. With ZeRO stages 2 and 3
 * it is reduce-scattered along data too. Up to AX_PARAM_RING contributions are in flight, in memory of the
 * frame (ax_frame, the activation memory). They are added first in, first out, so the order of additions, and
 * with it the result, does not depend on overlap.ors. If a contribution has the gradient's layout, kernels
 * add to the gradient themselves. The first contribution of a step to the gradient of a matrix overwrites the
 * gradient, so that the gradient need not be cleared. Gradients of vectors are cleared at the beginning of a
 * step, because most kernels that compute them only add. These gradients are adjacent in memory, so one
 * launch clears all of them.
 *
 * Between micro-batches, a gradient stays partial along the axes of the batch along which it is not
 * reduce-scattered: for matrices that is data with ZeRO stages 0 and 1, for biases and norms all axes that
 * split the batch. In the last micro-batch the reduction of a bucket (gradients that are reduced together)
 * starts as soon as the bucket's last contribution has been added. */
#include "parallel/mask.h"
#include "parallel/offload.h"

#include <stdlib.h>

static ax_status zero(ax_ctx *ctx, const ax_tensor *t)
{
    ax_fill_args fill = {.n = ax_tensor_count(ctx->grid, t), .y = t->data, .dtype = t->dtype};
    return fill.n ? ax_run_fill(ctx->stream, &fill) : AX_OK;
}

static bool is_vector(const ax_param *p) { return p->rest.ndim < 2; }

/* Sets the gradients of all vectors, and the padding between them, to zero. */
static ax_status zero_vectors(ax_param_set *set)
{
    ax_ctx *ctx = set->ctx;
    char *begin = NULL, *end = NULL;
    for (int i = 0; i < set->n; i++) {
        const ax_tensor *sum = &set->param[i]->sum;
        char *at = sum->data;
        if (!at || !is_vector(set->param[i]))
            continue;
        begin = begin && begin < at ? begin : at;
        at += ax_tensor_bytes(ctx->grid, sum);
        end = end > at ? end : at;
    }
    if (!begin)
        return AX_OK;
    ax_fill_args fill = {
        .n = (end - begin) / (int64_t)ax_dtype_size(ctx->accum), .y = begin, .dtype = ctx->accum};
    return fill.n ? ax_run_fill(ctx->stream, &fill) : AX_OK;
}

static ax_status needs_memory(const ax_param *p)
{
    AX_CHECK(p->set && p->sum.data, AX_ERR_INTERNAL,
             "parameter %s has no memory for gradients: create its ax_param_set for training (moments >= 0)",
             p->name);
    return AX_OK;
}

/* ---- reductions ---------------------------------------------------------------------------------- */

static ax_status start_bucket(ax_param_set *set, ax_param_bucket *b)
{
    ax_ctx *ctx = set->ctx;
    b->started = true;
    if (b->count) {
        ax_comm *comm;
        AX_TRY(ax_grid_comm(ctx->grid, b->axes, &comm));
        return ax_all_reduce(comm, ctx->stream, b->data, b->count, b->first->sum.dtype, AX_SUM, &b->work);
    }
    const ax_param *p = b->first;
    ax_redistribution steps;
    AX_TRY(ax_redistribution_make(ctx->grid, &p->sum, &p->grad.layout, &steps));
    return ax_transfer_start(&b->transfer, ctx, NULL, &steps, &p->sum, &p->grad.layout, true,
                             p->grad.data == p->sum.data ? NULL : p->grad.data);
}

static ax_status wait_bucket(ax_param_bucket *b)
{
    return b->count ? ax_wait(&b->work) : ax_transfer_finish(&b->transfer);
}

/* Returns the bucket's number of elements after p's gradient has joined it, or 0 if the gradient cannot join.
 * To join, the gradient must follow the bucket in memory, have its dtype and be reduced along the same axes,
 * and the result must have at most `most` elements. */
static int64_t joined_count(const ax_param_bucket *b, const ax_param *p, ax_axisset axes, int64_t room,
                            int64_t most)
{
    int64_t size = (int64_t)ax_dtype_size(p->sum.dtype),
            before = ax_round_up(b->count * size, AX_PARAM_ALIGN);
    bool next =
        b->count && b->first->sum.dtype == p->sum.dtype && (char *)b->data + before == (char *)p->sum.data;
    int64_t count = before / size + room;
    return next && axes && b->axes == axes && count <= most ? count : 0;
}

/* Gives p's gradient, of `room` elements, buckets of its own: one, or, if a single all-reduce reduces it, one
 * for each `chunk` elements. axes: those of that all-reduce; 0: the reduction takes more. */
static void begin_buckets(ax_param_flow *f, ax_param *p, ax_axisset axes, int64_t room, int64_t chunk)
{
    int64_t part = axes && chunk ? chunk : room;
    AX_ASSERT(f->bucket); /* for the static analyzer */
    p->live->bucket = f->buckets;
    for (int64_t at = 0; at < room; at += part)
        f->bucket[f->buckets++] = (ax_param_bucket){.n = 1,
                                                    .first = p,
                                                    .axes = axes,
                                                    .data = ax_param_at(&p->sum, at),
                                                    .count = axes ? ax_min(part, room - at) : 0};
    p->live->last = f->buckets - 1;
}

/* Adds p's gradient to a bucket (gradients reduced together). A gradient whose reduction is a single
 * all-reduce joins the last bucket or begins a new one. Any other gradient gets a bucket of its own. */
static void add_to_buckets(ax_param_set *set, ax_param *p, const ax_redistribution *steps)
{
    ax_param_flow *f = set->flow;
    bool flat = steps->n == 1 && steps->step[0].kind == AX_STEP_REDUCE;
    ax_axisset axes = flat ? steps->step[0].axes : 0;
    int64_t room = ax_max(ax_param_wire_room(set->ctx, p, &p->sum), 1), chunk = ax_offload_chunk(set),
            most = chunk ? ax_min(chunk, AX_PARAM_BUCKET) : AX_PARAM_BUCKET;
    ax_param_bucket *last = f->buckets ? &f->bucket[f->buckets - 1] : NULL;
    int64_t count = last ? joined_count(last, p, axes, room, most) : 0;
    if (!count) {
        begin_buckets(f, p, axes, room, chunk);
        return;
    }
    last->n++;
    last->count = count;
    p->live->bucket = p->live->last = f->buckets - 1;
}

/* Returns the largest number of buckets that a set can have. */
static int64_t most_buckets(const ax_param_set *set)
{
    int64_t n = set->n, chunk = ax_offload_chunk(set);
    for (int i = 0; i < set->n && chunk; i++)
        n += ax_param_wire_room(set->ctx, set->param[i], &set->param[i]->sum) / chunk;
    return n;
}

ax_status ax_param_buckets_make(ax_param_set *set)
{
    AX_TRY(ax_calloc((size_t)most_buckets(set), sizeof *set->flow->bucket, &set->flow->bucket));
    for (int vectors = 0; vectors < 2; vectors++)
        for (int i = 0; i < set->n; i++) {
            ax_param *p = set->param[i];
            ax_redistribution steps;
            if (vectors != is_vector(p) || p->place == AX_PARAM_AWAY || !ax_param_trains(p))
                continue;
            AX_TRY(ax_redistribution_make(set->ctx->grid, &p->sum, &p->grad.layout, &steps));
            if (steps.n)
                add_to_buckets(set, p, &steps);
        }
    return AX_OK;
}

/* ---- contributions ------------------------------------------------------------------------------- */

/* Counts a contribution (the gradient of one use of p) that has been added to p's gradient. After the last
 * contribution of the last micro-batch to p's bucket, starts the reduction of the bucket. */
static ax_status count_contribution(ax_param *p)
{
    ax_param_set *set = p->set;
    ax_param_live *live = p->live;
    live->done++;
    if (++live->now != set->flow->uses.contributions[live->index] || !set->flow->last || live->bucket < 0)
        return AX_OK;
    for (ax_param_bucket *b = &set->flow->bucket[live->bucket]; b <= &set->flow->bucket[live->last]; b++)
        if (!--b->missing)
            AX_TRY(start_bucket(set, b));
    return AX_OK;
}

/* Waits for the reduction of the oldest contribution in flight. Adds the result to the gradient, unless the
 * result was received in the gradient itself or another rank adds it. */
static ax_status end_oldest(ax_param_set *set)
{
    ax_param_flow *f = set->flow;
    ax_param_contribution c = f->ring[f->oldest];
    f->oldest = (f->oldest + 1) % AX_PARAM_RING;
    f->pending--;
    AX_TRY(ax_transfer_finish(c.transfer));
    ax_tensor *sum = &c.param->sum;
    ax_add_args add = {.n = ax_tensor_count(set->ctx->grid, sum),
                       .a = sum->data,
                       .b = c.transfer->now.data,
                       .y = sum->data,
                       .dtype = sum->dtype};
    if (c.add && add.n)
        AX_TRY(ax_run_add(set->ctx->stream, &add));
    return count_contribution(c.param);
}

ax_status ax_param_contributions_end(ax_param_set *set)
{
    while (set->flow->pending)
        AX_TRY(end_oldest(set));
    return AX_OK;
}

/* Appends a contribution to the ring of those whose reduction is in flight. Before that, starts the next
 * collective of each reduction in the ring that has one left, and finishes the oldest contribution if the
 * ring is full. Without overlap.ors, finishes all contributions at once. */
static ax_status push(ax_param_set *set, const ax_param_contribution *c)
{
    ax_param_flow *f = set->flow;
    for (int i = 0; i < f->pending; i++) {
        ax_transfer *t = f->ring[(f->oldest + i) % AX_PARAM_RING].transfer;
        if (t->step + 1 < t->steps.n)
            AX_TRY(ax_transfer_next(t));
    }
    if (f->pending == AX_PARAM_RING)
        AX_TRY(end_oldest(set));
    f->ring[(f->oldest + f->pending++) % AX_PARAM_RING] = *c;
    return set->ctx->parallel.overlap.ors ? AX_OK : ax_param_contributions_end(set);
}

/* Returns true if kernels add contributions in layout `produced` to the gradient themselves. */
static bool is_direct(const ax_param *p, const ax_layout *produced)
{
    return !p->mask && ax_layout_equal(p->set->ctx->grid, produced, &p->sum.layout, p->sum.ndim);
}

/* Returns a contribution to p's gradient as kernels produce it: dense, without memory. That to the gradient
 * of a pruned matrix is rounded to the gradient's dtype only after it is added. */
static ax_tensor contribution_of(const ax_param *p, const ax_layout *produced)
{
    ax_tensor t = p->mask ? p->rest : p->sum;
    t.dtype = p->mask ? p->set->ctx->accum : p->sum.dtype;
    t.layout = *produced;
    t.data = NULL;
    return t;
}

/* Computes the number of elements of frame memory for a contribution to p's gradient in layout `produced`,
 * rows of zeros and padding of the reduction included. */
static ax_status target_room(const ax_param *p, const ax_layout *produced, int64_t *out)
{
    ax_redistribution steps;
    ax_ctx *ctx = p->set->ctx;
    const ax_tensor target = contribution_of(p, produced);
    ax_layout split = p->sum.layout;
    if (p->mask) {
        *out = ax_tensor_count(ctx->grid, &target) + ax_param_spare_count(ctx, p);
        return AX_OK;
    }
    split.partial &= produced->partial;
    AX_TRY(ax_redistribution_make(ctx->grid, &target, &split, &steps));
    *out = ax_max(ax_redistribution_room_sent(ctx, &target, &steps),
                  ax_tensor_count(ctx->grid, &target) + ax_param_spare_count(ctx, p));
    return AX_OK;
}

/* Sets *out to the memory for a contribution to p's gradient, in layout `produced`, as ax_param_grad_target
 * does. `place` is frame memory for a contribution that is not computed in the gradient's own memory; NULL:
 * this function allocates it. */
static ax_status find_target(ax_frame *frame, ax_param *p, const ax_layout *produced, void *place,
                             ax_tensor *out, bool *fresh)
{
    AX_TRY(needs_memory(p));
    ax_param_live *live = p->live;
    AX_CHECK(
        !p->set->flow->synced, AX_ERR_INTERNAL,
        "the gradient of %s is final: call ax_param_set_zero_grad before the next step's first micro-batch",
        p->name);
    AX_CHECK(
        live->bucket < 0 || !p->set->flow->bucket[live->bucket].started, AX_ERR_INTERNAL,
        "the gradient of %s gets more contributions than in the previous micro-batch: all micro-batches of a "
        "step must run the same layers",
        p->name);
    ax_tensor target = p->sum;
    bool overwrite = !live->started;
    if (is_direct(p, produced)) {
        if (live->started != live->done)
            AX_TRY(ax_param_contributions_end(p->set));
    } else {
        int64_t room;
        AX_TRY(target_room(p, produced, &room));
        target = contribution_of(p, produced);
        if (!place)
            AX_TRY(ax_frame_scratch(frame, target.dtype, room, &place));
        target.data = place;
        live->target = place;
        overwrite = true;
    }
    if (fresh)
        *fresh = overwrite;
    else if (overwrite && !(is_vector(p) && target.data == p->sum.data))
        AX_TRY(zero(p->set->ctx, &target));
    *out = target;
    out->spare = (uint32_t)ax_param_spare(p->set->ctx, p);
    return AX_OK;
}

ax_status ax_param_grad_target(ax_frame *frame, ax_param *p, const ax_layout *produced, ax_tensor *out,
                               bool *fresh)
{
    return find_target(frame, p, produced, NULL, out, fresh);
}

void ax_param_grad_target_again(const ax_param *p, const ax_layout *produced, ax_tensor *out, bool *fresh)
{
    *out = is_direct(p, produced) ? p->sum : contribution_of(p, produced);
    if (!out->data)
        out->data = p->live->target;
    out->spare = (uint32_t)ax_param_spare(p->set->ctx, p);
    *fresh = false;
}

/* Returns true if the coordinates of this rank along `axes` are all 0. */
static bool at_origin(const ax_grid *grid, ax_axisset axes)
{
    for (int a = 0; a < ax_grid_axes(grid); a++)
        if ((axes >> a & 1) && ax_grid_coord(grid, ax_grid_rank(grid), (ax_axis)a))
            return false;
    return true;
}

/* Starts the reduction of `part`, the gradient of one use of p, to the gradient's layout. A reduction that
 * needs more than an all-reduce always gets frame memory for its result, because every micro-batch must make
 * the allocations of the frame's plan. The first contribution of a step may be received in the gradient
 * itself; then this frame memory is unused. */
static ax_status start_contribution(ax_frame *frame, ax_param *p, const ax_tensor *part, bool first)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    ax_layout target = p->sum.layout;
    target.partial &= part->layout.partial;
    ax_axisset whole = ax_grid_effective(ctx->grid, p->sum.layout.partial) &
                       (ax_axisset)~ax_grid_effective(ctx->grid, target.partial);
    ax_redistribution steps;
    AX_TRY(ax_redistribution_make(ctx->grid, part, &target, &steps));
    ax_param_contribution c = {.param = p, .add = at_origin(ctx->grid, whole)};
    void *result = NULL;
    int64_t room = ax_redistribution_room_received(ctx, part, &steps);
    bool moves = steps.n > 1 || (steps.n && steps.step[0].kind != AX_STEP_REDUCE);
    if (moves)
        AX_TRY(ax_frame_scratch(frame, part->dtype, room, &result));
    if (first && moves && !whole && room <= ax_param_room(ctx, p, &p->sum)) {
        result = p->sum.data;
        c.add = false;
    } else if (first && !is_vector(p)) {
        AX_TRY(zero(ctx, &p->sum));
    }
    AX_TRY(ax_frame_host(frame, sizeof *c.transfer, (void **)&c.transfer));
    AX_TRY(ax_transfer_start(c.transfer, ctx, frame, &steps, part, &target, part->data == p->live->target,
                             result));
    return push(p->set, &c);
}

/* Returns the vector of the kept elements of a contribution in layout U, without memory. */
static ax_tensor vector_of(const ax_param *p, const ax_tensor *part)
{
    ax_tensor t = p->sum;
    t.layout = (ax_layout){.partial = part->layout.partial};
    t.data = NULL;
    return t;
}

/* Compresses a contribution to the gradient of a pruned matrix: into the gradient, or into frame memory, from
 * which it is reduced. */
static ax_status compress_contribution(ax_frame *frame, ax_param *p, const ax_tensor *part, bool first)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    ax_tensor vector = vector_of(p, part);
    ax_layout dense = part->layout, target = p->sum.layout;
    ax_redistribution steps;
    dense.partial = p->use.partial;
    AX_CHECK(ax_layout_equal(ctx->grid, &dense, &p->use, p->rest.ndim), AX_ERR_INTERNAL,
             "a contribution to the gradient of %s, a pruned matrix, is not divided as the matrix is",
             p->name);
    if (ax_layout_equal(ctx->grid, &vector.layout, &p->sum.layout, 1)) {
        if (p->live->started - 1 != p->live->done)
            AX_TRY(ax_param_contributions_end(p->set));
        AX_TRY(ax_mask_compress(ctx->stream, p->mask, part, &p->sum, !first));
        return count_contribution(p);
    }
    target.partial &= part->layout.partial;
    AX_TRY(ax_redistribution_make(ctx->grid, &vector, &target, &steps));
    int64_t room =
        ax_max(ax_redistribution_room_sent(ctx, &vector, &steps), ax_tensor_count(ctx->grid, &vector));
    AX_TRY(ax_frame_scratch(frame, vector.dtype, room, &vector.data));
    AX_TRY(ax_mask_compress(ctx->stream, p->mask, part, &vector, false));
    p->live->target = vector.data;
    return start_contribution(frame, p, &vector, first);
}

ax_status ax_param_add_grad(ax_frame *frame, ax_param *p, const ax_tensor *part)
{
    AX_TRY(needs_memory(p));
    const ax_dtype dtype = contribution_of(p, &part->layout).dtype;
    AX_CHECK(part->dtype == dtype, AX_ERR_INTERNAL,
             "a contribution to the gradient of %s is %s, but the gradient accumulates in %s", p->name,
             ax_dtype_name(part->dtype), ax_dtype_name(dtype));
    bool first = !p->live->started++;
    AX_TRY(ax_frame_at_end(frame, ax_param_set_end, p->set));
    if (p->mask)
        return compress_contribution(frame, p, part, first);
    return part->data == p->sum.data ? count_contribution(p) : start_contribution(frame, p, part, first);
}

/* Allocates adjacent frame memory for n contributions in the layouts produced[i] (param[i] NULL: there is no
 * such contribution). If one of them is computed in the gradient's own memory, allocates nothing and sets
 * every place[i] to NULL. */
static ax_status place_targets(ax_frame *frame, int n, void *const *param, const ax_layout *produced,
                               void *place[AX_BESIDE])
{
    int64_t bytes[AX_BESIDE], all = 0;
    char *memory = NULL;
    bool direct = false;
    for (int i = 0; i < n; i++) {
        const ax_param *p = param[i];
        bytes[i] = 0;
        if (!p)
            continue;
        AX_TRY(needs_memory(p));
        AX_TRY(target_room(p, &produced[i], &bytes[i]));
        const ax_dtype dtype = contribution_of(p, &produced[i]).dtype;
        bytes[i] = ax_round_up(bytes[i] * (int64_t)ax_dtype_size(dtype), AX_PARAM_ALIGN);
        direct = direct || is_direct(p, &produced[i]);
        all += bytes[i];
    }
    if (!direct && all)
        AX_TRY(ax_frame_scratch(frame, AX_U8, all, (void **)&memory));
    for (int i = 0; i < n; i++) {
        place[i] = memory;
        if (memory)
            memory += bytes[i];
    }
    return AX_OK;
}

ax_status ax_param_grad_targets(ax_frame *frame, int n, void *const *param, const ax_layout *produced,
                                ax_tensor *out, bool *fresh)
{
    void *place[AX_BESIDE];
    AX_TRY(place_targets(frame, n, param, produced, place));
    for (int i = 0; i < n; i++)
        if (param[i])
            AX_TRY(find_target(frame, param[i], &produced[i], place[i], &out[i], &fresh[i]));
    return AX_OK;
}

/* ---- steps --------------------------------------------------------------------------------------- */

static ax_status needs_gradients(const ax_param_set *set)
{
    AX_CHECK(
        set->moments >= 0, AX_ERR_INTERNAL,
        "the parameter set has no gradients, because it was created for inference: create it with moments "
        "of 0 or more");
    return AX_OK;
}

ax_status ax_param_set_end(void *user)
{
    ax_param_set *set = user;
    AX_TRY(ax_param_contributions_end(set));
    AX_TRY(ax_param_gathers_end(set));
    for (int i = 0; i < set->n; i++) {
        ax_param_live *live = &set->flow->live[i];
        if (live->now)
            set->flow->uses.contributions[i] = live->now;
        live->now = 0;
    }
    return AX_OK;
}

ax_status ax_param_set_zero_grad(ax_param_set *set)
{
    AX_TRY(needs_gradients(set));
    AX_TRY(ax_param_set_end(set));
    for (int i = 0; i < set->n; i++) {
        ax_param_live *live = &set->flow->live[i];
        live->started = live->done = 0;
        live->exchanged = false;
    }
    for (int i = 0; i < set->flow->buckets; i++) {
        if (set->flow->bucket[i].started)
            AX_TRY(wait_bucket(&set->flow->bucket[i]));
        set->flow->bucket[i].started = false;
        set->flow->bucket[i].missing = set->flow->bucket[i].n;
    }
    set->flow->last = set->flow->synced = false;
    AX_TRY(ax_offload_begin(set));
    return zero_vectors(set);
}

ax_status ax_param_set_last_micro_batch(ax_param_set *set, bool last)
{
    AX_TRY(needs_gradients(set));
    AX_TRY(ax_param_set_end(set));
    set->flow->last = last;
    return AX_OK;
}

ax_status ax_param_set_sync_grad(ax_param_set *set)
{
    AX_TRY(needs_gradients(set));
    AX_TRY(ax_param_set_end_grad(set));
    return ax_param_set_reduce(set, AX_ALL_BUCKETS, AX_ALL_BUCKETS);
}

ax_status ax_param_set_end_grad(ax_param_set *set)
{
    AX_TRY(needs_gradients(set));
    ax_param_flow *f = set->flow;
    AX_TRY(ax_param_set_end(set));
    for (int i = 0; i < set->n; i++)
        if (!f->live[i].started && set->param[i]->place != AX_PARAM_AWAY && ax_param_trains(set->param[i]) &&
            !is_vector(set->param[i]))
            AX_TRY(zero(set->ctx, &set->param[i]->sum));
    for (int i = 0; i < set->n; i++)
        AX_TRY(ax_param_all_gather_wait(set->param[i]));
    return AX_OK;
}

/* Returns how many of the set's reductions, in their order, the gradients in the first `end` buckets of
 * offloaded state need. Those of vectors come last. */
static int reductions_of(const ax_param_set *set, int64_t end)
{
    int n = 0;
    int64_t begin = ax_offload_begin_of(set, end), chunk = ax_offload_chunk(set);
    if (begin < 0)
        return set->flow->buckets;
    for (int i = 0; i < set->n; i++) {
        const ax_param *p = set->param[i];
        const ax_param_live *live = p->live;
        if (is_vector(p) || live->bucket < 0 || live->offloaded >= begin)
            continue;
        int64_t parts = ax_ceil_div(begin - live->offloaded, chunk);
        bool whole = p->place != AX_PARAM_HERE; /* stages exchange a tied gradient as a whole */
        n = (int)ax_max(n, whole ? live->last + 1 : ax_min(live->bucket + parts, live->last + 1));
    }
    return n;
}

ax_status ax_param_set_reduce(ax_param_set *set, int64_t start, int64_t wait)
{
    ax_param_flow *f = set->flow;
    int started = reductions_of(set, start), waited = reductions_of(set, wait);
    for (int i = 0; i < started; i++)
        if (!f->bucket[i].started)
            AX_TRY(start_bucket(set, &f->bucket[i]));
    for (int i = 0; i < waited; i++)
        AX_TRY(wait_bucket(&f->bucket[i]));
    for (int i = 0; i < set->n; i++) {
        ax_param_live *live = &f->live[i];
        if (live->last >= waited || live->exchanged)
            continue;
        live->exchanged = true;
        AX_TRY(ax_param_tied_grad(set->param[i]));
    }
    f->synced = wait == AX_ALL_BUCKETS;
    return AX_OK;
}
