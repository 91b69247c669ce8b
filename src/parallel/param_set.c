/* The memory of a model's parameters, and their initial values. */
#include "parallel/param.h"

#include "axonn/philox.h"

#include <stdlib.h>
#include <string.h>

enum { MASTER, USE, GRAD, STATE, BLOCKS };

/* ---- memory -------------------------------------------------------------------------------------- */

/* A bump allocator: places tensors one after the other in one block of memory. */
typedef struct cursor {
    const ax_ctx *ctx;
    char *base; /* NULL: only count bytes */
    size_t at;
} cursor;

/* Gives memory for `count` elements to t. An empty box gets an address too, because data NULL means that t
 * has no memory. The compute threads touch the memory first (NUMA first touch), because another thread may
 * fill it from a file. */
static void allocate(cursor *c, int64_t count, ax_tensor *t)
{
    size_t bytes = (size_t)(count * (int64_t)ax_dtype_size(t->dtype));
    if (c->base) {
        t->data = c->base + c->at;
        ax_device_touch(c->ctx->dev, t->data, bytes);
    }
    c->at += (size_t)ax_round_up(ax_max((int64_t)bytes, 1), AX_PARAM_ALIGN);
}

/* Allocates memory for t, weights or a gradient, which contractions may use. */
static void allocate_used(cursor *c, const ax_param *p, ax_tensor *t)
{
    allocate(c, ax_param_room(c->ctx, p, t), t);
}

/* Allocates memory for t, master weights or optimizer state. */
static void allocate_state(cursor *c, const ax_param *p, ax_tensor *t)
{
    allocate(c, ax_param_wire_room(c->ctx, p, t), t);
}

static bool rounds(const ax_param *p) { return p->rest.dtype != p->master.dtype; }

/* Allocates those weights of a parameter that lie in `block`. `rest` is the weights as stored between uses.
 * If `rest` has the dtype of the master weights, it lies in block MASTER, and the master weights are a part
 * of it. If the dtypes differ, the master weights lie in block MASTER, on ranks that update them, and `rest`
 * lies in block USE. */
static void allocate_weights(cursor *c, ax_param *p, int block)
{
    const ax_ctx *ctx = c->ctx;
    if (block == MASTER && rounds(p) && ax_param_is_owned(p))
        allocate_state(c, p, &p->master);
    if ((block == MASTER) == rounds(p))
        return;
    allocate_used(c, p, &p->rest);
    if (!c->base)
        return;
    int64_t offset = ax_param_offset(ctx, p, &p->rounded.layout, &p->rest.layout);
    p->rounded.data = (char *)p->rest.data + offset * (int64_t)ax_dtype_size(p->rest.dtype);
    if (!rounds(p))
        p->master.data = p->rounded.data;
}

/* Allocates p's place in the weight cache if *budget, the bytes that the cache has left, is enough for p and
 * all of its group (weights that kernels read as one matrix). */
static void allocate_cached(cursor *c, const ax_param_set *set, ax_param *p, size_t *budget)
{
    size_t bytes = 0;
    if (p->live->whole)
        return;
    if (!p->first || p->first == p) {
        for (const ax_param *q = p; q; q = q->next)
            bytes += (size_t)ax_tensor_bytes(set->ctx->grid, &q->live->cached);
        p->live->in_cache = bytes <= *budget;
        *budget -= p->live->in_cache ? bytes : 0;
    } else {
        p->live->in_cache = p->first->live->in_cache;
    }
    if (p->live->in_cache)
        allocate_used(c, p, &p->live->cached);
}

static bool same_split(const ax_grid *grid, const ax_param *p)
{
    return ax_axes_equal(grid, &p->sum.layout.dim[0], &p->grad.layout.dim[0]);
}

/* Allocates the gradient: p->sum, or, if `scattered` is true, p->grad, into which p->sum is reduce-scattered
 * at the end of a step. p->sum and p->grad are the same memory if they are split alike. allocate_all first
 * allocates p->sum of all parameters, so that these gradients are adjacent in memory and one bucket can
 * reduce several of them. */
static void allocate_grad(cursor *c, ax_param *p, bool scattered)
{
    if (!scattered)
        allocate_used(c, p, &p->sum);
    else if (!same_split(c->ctx->grid, p))
        allocate_used(c, p, &p->grad);
    else if (c->base)
        p->grad.data = p->sum.data;
}

/* The kinds of parameters, in the order in which they lie in memory. Matrices that are not trained come
 * first. Otherwise low-rank factors (trained matrices whose product is added to a weight) would lie between
 * weights that kernels read as one matrix, such as q, k and v, and those weights would not be adjacent
 * (ax_param_join). Vectors come last: their gradients are reduced along other axes and so belong to other
 * buckets. */
enum { FROZEN_MATRIX, MATRIX, VECTOR, KINDS };

static int kind_of(const ax_param *p)
{
    return p->master.ndim < 2 ? VECTOR : p->frozen ? FROZEN_MATRIX : MATRIX;
}

/* Places the tensors of one block of memory (MASTER, USE, GRAD or STATE) from `base` on (NULL: only computes
 * the size), and returns the size of the block in bytes. */
static size_t allocate_all(ax_param_set *set, int block, void *base)
{
    cursor c = {.ctx = set->ctx, .base = base};
    size_t budget = set->ctx->parallel.weight_cache;
    for (int pass = 0; pass < 2 * KINDS; pass++)
        for (int i = 0; i < set->n; i++) {
            ax_param *p = set->param[i];
            if (kind_of(p) != pass % KINDS || p->place == AX_PARAM_AWAY)
                continue;
            if (block == GRAD && ax_param_trains(p))
                allocate_grad(&c, p, pass >= KINDS);
            if (block == STATE && pass < KINDS && ax_param_trains(p))
                for (int s = 0; s < set->slots && ax_param_is_owned(p); s++)
                    allocate_state(&c, p, &p->slot[s]);
            if ((block == MASTER || block == USE) && pass < KINDS)
                allocate_weights(&c, p, block);
            if (block == USE && pass >= KINDS)
                allocate_cached(&c, set, p, &budget);
        }
    return c.at;
}

static size_t *block_bytes(ax_param_set *set, int block)
{
    size_t *const bytes[BLOCKS] = {&set->bytes_master, &set->bytes_use, &set->bytes_grad, &set->bytes_state};
    return bytes[block];
}

static int by_name(const void *x, const void *y)
{
    const ax_param *a = *(ax_param *const *)x, *b = *(ax_param *const *)y;
    int order = strcmp(a->name, b->name);
    return order ? order : (a > b) - (a < b);
}

/* Checks that no two different parameters have the same name. A parameter may be listed several times. */
static ax_status check_names(ax_param *const *params, int n)
{
    ax_param **sorted;
    AX_TRY(ax_calloc((size_t)n, sizeof *sorted, &sorted));
    memcpy(sorted, params, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_name);
    ax_status status = AX_OK;
    for (int i = 1; i < n && status == AX_OK; i++)
        if (sorted[i] != sorted[i - 1] && !strcmp(sorted[i]->name, sorted[i - 1]->name))
            status =
                ax_fail(AX_ERR_INTERNAL, "two parameters have the name %s: give the layers different names",
                        sorted[i]->name);
    free(sorted);
    return status;
}

/* Copies the list of parameters to set->param. A parameter that is listed several times, such as tied
 * weights, is copied once. */
static ax_status take_params(ax_param_set *set, ax_param *const *params, int n)
{
    AX_TRY(check_names(params, n));
    AX_TRY(ax_calloc((size_t)n, sizeof(ax_param *), &set->param));
    for (int i = 0; i < n; i++) {
        if (params[i]->set == set)
            continue;
        params[i]->set = set;
        set->param[set->n++] = params[i];
    }
    return AX_OK;
}

static ax_status allocate_blocks(ax_param_set *set)
{
    for (int block = 0; block < BLOCKS; block++) {
        size_t bytes = *block_bytes(set, block) = allocate_all(set, block, NULL);
        if (bytes)
            AX_TRY(ax_ctx_alloc(set->ctx, bytes, &set->block[block]));
        allocate_all(set, block, set->block[block]);
    }
    return AX_OK;
}

static ax_status fill(ax_ctx *ctx, ax_dtype dtype, int64_t n, double value, void *y)
{
    ax_fill_args args = {.n = n, .value = value, .y = y, .dtype = dtype};
    return n ? ax_run_fill(ctx->stream, &args) : AX_OK;
}

/* Zeroes optimizer state, gradients, and the rows of zeros of weights that are not gathered before use. Also
 * zeroes the padding between gradients: buckets reduce the padding too, so it must not hold NaN. */
static ax_status clear(ax_param_set *set)
{
    ax_dtype dtype = set->ctx->accum;
    int64_t size = (int64_t)ax_dtype_size(dtype);
    AX_TRY(fill(set->ctx, dtype, (int64_t)set->bytes_state / size, 0, set->block[STATE]));
    for (int i = 0; i < set->n; i++)
        if (set->param[i]->live->whole && set->param[i]->place != AX_PARAM_AWAY)
            AX_TRY(ax_param_clear_spare(set->ctx, set->param[i], &set->param[i]->rest));
    return fill(set->ctx, dtype, (int64_t)set->bytes_grad / size, 0, set->block[GRAD]);
}

static ax_status make_flow(ax_param_set *set)
{
    AX_TRY(ax_calloc(1, sizeof *set->flow, &set->flow));
    set->flow->running = -1;
    AX_TRY(ax_calloc((size_t)set->n, sizeof *set->flow->live, &set->flow->live));
    for (int i = 0; i < set->n; i++) {
        ax_param *p = set->param[i];
        p->live = &set->flow->live[i];
        *p->live = (ax_param_live){.index = i, .bucket = -1, .cached = p->rest};
        p->live->cached.layout = p->use;
        p->live->whole = ax_layout_equal(set->ctx->grid, &p->use, &p->rest.layout, p->rest.ndim);
        /* Weights that are not updated are stored only in the dtype that kernels read. */
        p->master.dtype = ax_param_trains(p) ? set->ctx->accum : p->rest.dtype;
    }
    return AX_OK;
}

ax_status ax_param_set_create(ax_ctx *ctx, ax_param *const *params, int n, int slots, ax_param_set **out)
{
    *out = NULL;
    AX_CHECK(slots <= (int)AX_COUNT(params[0]->slot), AX_ERR_INTERNAL,
             "ax_param_set_create: slots is %d; a parameter can have at most %d state arrays", slots,
             (int)AX_COUNT(params[0]->slot));
    ax_param_set *set;
    AX_TRY(ax_calloc(1, sizeof *set, &set));
    set->ctx = ctx;
    set->slots = slots;
    ax_status status = take_params(set, params, n);
    if (status == AX_OK)
        status = make_flow(set);
    if (status == AX_OK)
        status = allocate_blocks(set);
    if (status == AX_OK)
        status = clear(set);
    if (status == AX_OK)
        status = ax_param_tied_make(set);
    if (status == AX_OK && slots >= 0)
        status = ax_param_buckets_make(set);
    if (status == AX_OK)
        status = ax_param_sums_make(set);
    if (status != AX_OK)
        ax_param_set_destroy(&set);
    *out = set;
    return status;
}

/* Clears the parameter's pointers into the set. First waits for the all-gather of the last update, which may
 * still be in flight. A failure of that all-gather is ignored, because ax_param_set_destroy returns no
 * status. */
static void detach(ax_param *p)
{
    ax_status ignored = p->live ? ax_param_all_gather_wait(p) : AX_OK;
    (void)ignored;
    ax_tensor *const all[] = {&p->rest, &p->rounded, &p->master, &p->sum, &p->grad, &p->slot[0], &p->slot[1]};
    for (size_t i = 0; i < AX_COUNT(all); i++)
        all[i]->data = NULL;
    p->set = NULL;
    p->live = NULL;
}

void ax_param_set_destroy(ax_param_set **set)
{
    ax_param_set *s = *set;
    if (!s)
        return;
    for (int i = 0; i < s->n; i++)
        if (s->param[i]->set == s)
            detach(s->param[i]);
    for (int block = 0; block < BLOCKS; block++)
        ax_ctx_free(s->ctx, s->block[block], *block_bytes(s, block));
    if (s->flow) {
        ax_param_tied_free(s);
        ax_param_sums_free(s);
        ax_param_orders_fini(&s->flow->orders);
        free(s->flow->live);
        free(s->flow->bucket);
    }
    free(s->flow);
    free(s->param);
    free(s);
    *set = NULL;
}

ax_param *ax_param_set_find(const ax_param_set *set, const char *name)
{
    for (int i = 0; i < set->n; i++)
        if (!strcmp(set->param[i]->name, name))
            return set->param[i];
    return NULL;
}

/* ---- values -------------------------------------------------------------------------------------- */

/* Draws random initial values for this rank's part (box) of the master weights into t->data, in the
 * accumulation dtype. */
static ax_status draw_box(ax_ctx *ctx, const ax_param *p, const ax_tensor *t)
{
    ax_box box = ax_tensor_box(ctx->grid, t, ax_grid_rank(ctx->grid));
    ax_init_normal_args args = {.extent = {1, 1, 1, 1},
                                .n = {1, 1, 1, 1},
                                .key = ax_rng_key(ctx->seed, p->name, 0),
                                .std = p->init_std,
                                .y = t->data,
                                .dtype = t->dtype};
    for (int d = 0, at = AX_MAX_DIMS - t->ndim; d < t->ndim; d++, at++) {
        args.extent[at] = t->dim[d];
        args.lo[at] = box.lo[d];
        args.n[at] = box.n[d];
    }
    return ax_tensor_count(ctx->grid, t) ? ax_run_init_normal(ctx->stream, &args) : AX_OK;
}

static ax_status convert(ax_ctx *ctx, const ax_tensor *from, const ax_tensor *to)
{
    ax_convert_args args = {.n = ax_tensor_count(ctx->grid, from),
                            .x = from->data,
                            .y = to->data,
                            .x_dtype = from->dtype,
                            .y_dtype = to->dtype};
    return args.n ? ax_run_convert(ctx->stream, &args) : AX_OK;
}

/* Sets this rank's box of a matrix, in host memory, to uniform random numbers. Only low-rank factors
 * (matrices whose product is added to a weight) have such initial values. They are small, so the host draws
 * them. */
static void uniform_box(const ax_ctx *ctx, const ax_param *p, const ax_box *box, void *out)
{
    enum { UNIFORM = 2 }; /* number of the Philox stream; normal numbers use stream 1 */
    uint64_t key = ax_rng_key(ctx->seed, p->name, 0);
    for (int64_t r = 0; r < box->n[0]; r++)
        for (int64_t c = 0; c < box->n[1]; c++) {
            int64_t index = (box->lo[0] + r) * p->master.dim[1] + box->lo[1] + c;
            double u = ax_philox_uniform(key, UNIFORM, (uint64_t)index);
            ax_store(p->master.dtype, out, r * box->n[1] + c, p->init_std * (2 * u - 1));
        }
}

static ax_status draw_uniform(ax_ctx *ctx, const ax_param *p)
{
    void *host;
    size_t bytes = (size_t)ax_tensor_bytes(ctx->grid, &p->master);
    ax_box box = ax_tensor_box(ctx->grid, &p->master, ax_grid_rank(ctx->grid));
    AX_ASSERT(p->master.ndim == 2);
    AX_TRY(ax_calloc(1, bytes + 1, &host));
    uniform_box(ctx, p, &box, host);
    ax_status status = bytes ? ax_copy_in(ctx->stream, p->master.data, host, bytes) : AX_OK;
    free(host);
    return status;
}

/* Draws the initial weights of a parameter. Weights that are not trained may be stored in 16 bits; they are
 * drawn in the accumulation dtype first, and then rounded. */
static ax_status draw(ax_ctx *ctx, const ax_param *p)
{
    ax_tensor wide = p->master;
    wide.dtype = ctx->accum;
    if (p->master.dtype == ctx->accum)
        return draw_box(ctx, p, &p->master);
    size_t bytes = (size_t)ax_tensor_bytes(ctx->grid, &wide) + 1;
    AX_TRY(ax_ctx_alloc(ctx, bytes, &wide.data));
    ax_status status = draw_box(ctx, p, &wide);
    if (status == AX_OK)
        status = convert(ctx, &wide, &p->master);
    if (status == AX_OK)
        status = ax_stream_wait(ctx->stream);
    ax_ctx_free(ctx, wide.data, bytes);
    return status;
}

static ax_status init(ax_ctx *ctx, const ax_param *p)
{
    if (p->init == AX_INIT_NORMAL)
        return draw(ctx, p);
    if (p->init == AX_INIT_UNIFORM)
        return draw_uniform(ctx, p);
    return fill(ctx, p->master.dtype, ax_tensor_count(ctx->grid, &p->master), p->init == AX_INIT_ONE,
                p->master.data);
}

static ax_status init_params(ax_param_set *set, bool frozen)
{
    for (int i = 0; i < set->n; i++) {
        const ax_param *p = set->param[i];
        if (ax_param_is_owned(p) && (frozen || !p->frozen))
            AX_TRY(init(set->ctx, p));
    }
    return ax_param_set_refresh(set);
}

ax_status ax_param_set_init(ax_param_set *set) { return init_params(set, true); }
ax_status ax_param_set_init_trained(ax_param_set *set) { return init_params(set, false); }

ax_status ax_param_set_refresh(ax_param_set *set)
{
    for (int i = 0; i < set->n; i++) {
        ax_param *p = set->param[i];
        if (rounds(p) && ax_param_is_owned(p))
            AX_TRY(convert(set->ctx, &p->master, &p->rounded));
        AX_TRY(ax_param_all_gather(p));
    }
    for (int i = 0; i < set->n; i++)
        AX_TRY(ax_param_all_gather_wait(set->param[i]));
    return AX_OK;
}
