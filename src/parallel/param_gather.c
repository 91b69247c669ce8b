/* All-gathers of weights: before kernels use them, and after an update. Read param.h first.
 *
 * A weight that is stored split further (layout of `rest`) than kernels read it (layout U, see ax_param) is
 * all-gathered anew for each use: in forward, in recomputation, and in backward. Between these uses the frame
 * (ax_frame, the activation memory) uses the memory of the gathered weight for other tensors. The first run
 * of a task (such as "train") records the order in which it acquires weights. In later runs each acquire
 * starts the gathers of the next weights (overlap.oag; arXiv 2502.08145, section on overlap), so that
 * communication overlaps with the kernels that use the weight just acquired. The order is recorded because no
 * layer knows which weights the layers after it use. A weight in the weight cache is gathered only once after
 * each update. */
#include "parallel/param.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the order of a task ------------------------------------------------------------------------- */

static ax_status find_order(ax_param_uses *uses, const char *task, int *out)
{
    for (*out = 0; *out < uses->n; ++*out)
        if (!strcmp(uses->order[*out].task, task))
            return AX_OK;
    ax_param_order *order = realloc(uses->order, (size_t)(uses->n + 1) * sizeof *order);
    AX_CHECK(order, AX_ERR_MEMORY,
             "not enough host memory to record the order in which task \"%s\" uses the weights", task);
    uses->order = order;
    order[uses->n] = (ax_param_order){.n = 0};
    snprintf(order[uses->n].task, sizeof order->task, "%s", task);
    uses->n++;
    return AX_OK;
}

static ax_status append(ax_param_order *order, int index)
{
    if (order->n == order->capacity) {
        int capacity = order->capacity ? 2 * order->capacity : 64;
        int *at = realloc(order->at, (size_t)capacity * sizeof *at);
        AX_CHECK(at, AX_ERR_MEMORY,
                 "not enough host memory to record the order in which task \"%s\" uses the weights",
                 order->task);
        order->at = at;
        order->capacity = capacity;
    }
    order->at[order->n++] = index;
    return AX_OK;
}

/* Advances by one position in the order of the running task, which now acquires parameter `index`. If the
 * recorded order has another parameter or none at this position, the order is recorded anew from here on. */
static ax_status advance_order(ax_param_set *set, ax_frame *frame, int index)
{
    ax_param_flow *f = set->flow;
    if (f->running < 0) {
        AX_TRY(ax_frame_at_end(frame, ax_param_set_end, set));
        AX_TRY(find_order(&f->uses, ax_frame_task_name(frame), &f->running));
        f->position = f->ahead = 0;
        ax_param_order *order = &f->uses.order[f->running];
        order->n = order->known ? order->n : 0;
    }
    ax_param_order *order = &f->uses.order[f->running];
    if (order->known && (f->position == order->n || order->at[f->position] != index)) {
        order->known = false;
        order->n = f->position;
    }
    if (!order->known)
        AX_TRY(append(order, index));
    f->position++;
    f->ahead = (int)ax_max(f->ahead, f->position);
    return AX_OK;
}

/* ---- gathers ------------------------------------------------------------------------------------- */

/* Returns how many bytes p's gathered weight takes of the memory that place_group allocates. */
static int64_t place_bytes(const ax_ctx *ctx, const ax_param *p)
{
    int64_t bytes = ax_param_room(ctx, p, &p->live->cached) * (int64_t)ax_dtype_size(p->rest.dtype);
    return ax_round_up(bytes, AX_PARAM_ALIGN);
}

/* Allocates adjacent memory for the next gathers of p's group (weights that kernels read as one matrix),
 * whose first parameter is p. If p has no group, allocates memory for p's next gather. */
static ax_status place_group(ax_frame *frame, ax_param *p)
{
    const ax_ctx *ctx = ax_frame_ctx(frame);
    int64_t bytes = 0;
    char *memory;
    for (const ax_param *q = p; q; q = q->next)
        bytes += place_bytes(ctx, q);
    AX_TRY(ax_frame_scratch(frame, AX_U8, bytes, (void **)&memory));
    for (ax_param *q = p; q; q = q->next) {
        q->live->place = memory;
        memory += place_bytes(ctx, q);
    }
    return AX_OK;
}

static ax_status start_gather(ax_frame *frame, ax_param *p)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    ax_param_live *live = p->live;
    ax_redistribution steps;
    AX_TRY(ax_param_all_gather_wait(p));
    /* places: this call allocates the result's memory, unless the weight is in the cache. Otherwise the call
     * for the group's first parameter has set live->place, or live->place is NULL and the transfer
     * allocates. */
    bool places = p->first == p || (!p->first && ax_param_spare(ctx, p));
    if (places && !live->in_cache)
        AX_TRY(place_group(frame, p));
    void *place = live->in_cache ? live->cached.data : live->place;
    live->place = NULL;
    AX_TRY(ax_redistribution_make(ctx->grid, &p->rest, &p->use, &steps));
    AX_TRY(ax_frame_host(frame, sizeof *live->gather, (void **)&live->gather));
    live->gather_began = ax_activity_begin(ctx->dev);
    return ax_transfer_start(live->gather, ctx, frame, &steps, &p->rest, &p->use, true, place);
}

static ax_status end_gather(ax_param *p, ax_tensor *out)
{
    ax_param_live *live = p->live;
    AX_TRY(ax_transfer_finish(live->gather));
    *out = live->gather->now;
    ax_ctx *ctx = p->set->ctx;
    AX_TRY(ax_param_clear_spare(ctx, p, out));
    ax_activity_end(ctx->dev, "gather", p->name, live->gather_began, ax_tensor_bytes(ctx->grid, out));
    live->cache_valid = live->in_cache;
    live->gather = NULL;
    return AX_OK;
}

/* Returns true if the next weight to prefetch was already prefetched for an earlier use, which has not begun
 * yet. */
static bool is_started(const ax_param_flow *f, const ax_param_order *order)
{
    for (int i = f->position; i < f->ahead; i++)
        if (order->at[i] == order->at[f->ahead])
            return true;
    return false;
}

/* Starts the gathers of the next weights in the order. A weight that is used twice is prefetched for its
 * second use only after it was acquired for the first. This holds even if the weight is in the cache, because
 * the order of allocations in the frame must be the same in every micro-batch. */
static ax_status prefetch(ax_param_set *set, ax_frame *frame)
{
    ax_param_flow *f = set->flow;
    const ax_param_order *order = &f->uses.order[f->running];
    if (!order->known || !set->ctx->parallel.overlap.oag)
        return AX_OK;
    for (; f->ahead < order->n && f->ahead < f->position + AX_PARAM_AHEAD; f->ahead++) {
        ax_param *next = set->param[order->at[f->ahead]];
        if (is_started(f, order))
            break;
        if (!next->live->cache_valid)
            AX_TRY(start_gather(frame, next));
    }
    return AX_OK;
}

ax_status ax_param_clear_spare(ax_ctx *ctx, const ax_param *p, const ax_tensor *t)
{
    ax_fill_args fill = {.n = ax_param_spare_count(ctx, p), .dtype = t->dtype};
    fill.y = (char *)t->data + ax_tensor_bytes(ctx->grid, t);
    return fill.n ? ax_run_fill(ctx->stream, &fill) : AX_OK;
}

/* Does what ax_param_acquire does, but does not set out->spare. */
static ax_status acquire(ax_frame *frame, ax_param *p, ax_tensor *out)
{
    AX_CHECK(p->set, AX_ERR_INTERNAL, "parameter %s has no memory: create its ax_param_set first", p->name);
    AX_CHECK(p->place != AX_PARAM_AWAY, AX_ERR_INTERNAL,
             "parameter %s has no memory on this rank: it belongs to another pipeline stage", p->name);
    ax_param_live *live = p->live;
    if (live->whole) {
        *out = p->rest;
        out->layout = p->use;
        return ax_param_all_gather_wait(p);
    }
    AX_TRY(advance_order(p->set, frame, live->index));
    if (!live->cache_valid && !live->gather)
        AX_TRY(start_gather(frame, p));
    *out = live->cached;
    if (live->gather)
        AX_TRY(end_gather(p, out));
    return prefetch(p->set, frame);
}

ax_status ax_param_acquire(ax_frame *frame, ax_param *p, ax_tensor *out)
{
    AX_TRY(acquire(frame, p, out));
    out->spare = (uint32_t)ax_param_spare(ax_frame_ctx(frame), p);
    return AX_OK;
}

/* Ends the running task's order of weights, which is complete from now on. First waits for all-gathers that
 * were prefetched but whose weights were not used, because the task left its recorded order. */
ax_status ax_param_gathers_end(ax_param_set *set)
{
    ax_param_flow *f = set->flow;
    ax_tensor dropped;
    for (int i = 0; i < set->n && f->running >= 0; i++) {
        if (f->live[i].gather)
            AX_TRY(end_gather(set->param[i], &dropped));
        f->live[i].place = NULL;
    }
    if (f->running >= 0)
        f->uses.order[f->running].known = true;
    f->running = -1;
    return AX_OK;
}

/* ---- after an update ----------------------------------------------------------------------------- */

ax_status ax_param_all_gather_wait(ax_param *p) { return ax_wait(&p->live->all_gather); }

/* All-gathers the updated weights, in the dtype that kernels read, from `rounded` (this rank's part) to
 * `rest`. Runs in place: `rounded` lies in the memory of `rest`, where each rank's part begins at a multiple
 * of the size of the largest part. */
ax_status ax_param_all_gather(ax_param *p)
{
    ax_ctx *ctx = p->set->ctx;
    ax_layout coarse = p->rest.layout, fine = p->rounded.layout;
    p->live->cache_valid = false;
    if (p->place == AX_PARAM_AWAY)
        return AX_OK;
    AX_TRY(ax_param_all_gather_wait(p)); /* the previous update's all-gather may still read `rounded`, into
                                            which ax_param_tied_weights may receive */
    AX_TRY(ax_param_tied_weights(p));
    if (ax_layout_equal(ctx->grid, &coarse, &fine, p->rest.ndim))
        return AX_OK;
    ax_axis axis = fine.dim[0].a[fine.dim[0].n - 1];
    AX_ASSERT(fine.dim[0].fine == coarse.dim[0].fine + 1);
    ax_wire wire = ax_wire_make(ctx->grid, &p->rounded, 0, axis);
    ax_comm *comm;
    AX_TRY(ax_grid_comm(ctx->grid, (ax_axisset)(1u << axis), &comm));
    return ax_all_gather(comm, ctx->stream, p->rounded.data, p->rest.data, wire.count, p->rest.dtype,
                         &p->live->all_gather);
}

/* ---- uses from run to run ------------------------------------------------------------------------ */

void ax_param_uses_fini(ax_param_uses *uses)
{
    for (int i = 0; i < uses->n; i++)
        free(uses->order[i].at);
    free(uses->order);
    free(uses->contributions);
    *uses = (ax_param_uses){0};
}

void ax_param_uses_destroy(ax_param_uses **uses)
{
    if (*uses)
        ax_param_uses_fini(*uses);
    free(*uses);
    *uses = NULL;
}

/* Copies what `from` has recorded to `to`, which is of as many parameters. */
static ax_status copy_uses(const ax_param_uses *from, ax_param_uses *to)
{
    memcpy(to->contributions, from->contributions, (size_t)from->params * sizeof *to->contributions);
    for (int i = 0; i < from->n; i++) {
        int to_index;
        const ax_param_order *order = &from->order[i];
        AX_TRY(find_order(to, order->task, &to_index));
        to->order[to_index].n = 0;
        for (int k = 0; k < order->n; k++)
            AX_TRY(append(&to->order[to_index], order->at[k]));
        to->order[to_index].known = order->known;
    }
    return AX_OK;
}

ax_status ax_param_set_take_uses(const ax_param_set *set, ax_param_uses **out)
{
    const ax_param_uses *from = &set->flow->uses;
    AX_TRY(ax_calloc(1, sizeof **out, out));
    (*out)->params = from->params;
    ax_status status = ax_calloc((size_t)from->params, sizeof *from->contributions, &(*out)->contributions);
    if (status == AX_OK)
        status = copy_uses(from, *out);
    if (status != AX_OK)
        ax_param_uses_destroy(out);
    return status;
}

ax_status ax_param_set_learn_uses(ax_param_set *set, const ax_param_uses *uses)
{
    AX_CHECK(
        uses->params == set->n, AX_ERR_INTERNAL,
        "ax_param_set_learn_uses: the uses of %d parameters were recorded, but the set has %d: pass those "
        "of a dry run of the same model",
        uses->params, set->n);
    return copy_uses(uses, &set->flow->uses);
}
