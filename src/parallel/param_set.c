/* The memory of a model's parameters. */
#include "base/memory.h"
#include "parallel/mask.h"
#include "parallel/offload.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory -------------------------------------------------------------------------------------- */

/* A bump allocator: places arrays one after the other in one block of memory. */
typedef struct cursor {
    const ax_ctx *ctx;
    ax_param_set *set;
    char *base; /* NULL: only count bytes */
    size_t at;
    ax_memory counted;
} cursor;

/* Takes memory for `count` elements from the block, counts its bytes as memory of class `of`, and sets *data
 * to its address. An empty box gets an address too, because data NULL means that there is no memory. The
 * compute threads touch the memory first (NUMA first touch), because another thread may fill it from a
 * file. */
static void allocate(cursor *c, ax_memory_class of, int64_t count, ax_dtype dtype, void **data)
{
    size_t bytes = (size_t)(count * (int64_t)ax_dtype_size(dtype)),
           room = (size_t)ax_round_up(ax_max((int64_t)bytes, 1), AX_PARAM_ALIGN);
    if (c->base) {
        *data = c->base + c->at;
        ax_device_touch(c->ctx->dev, *data, bytes);
    } else {
        c->counted.bytes[of] += room;
    }
    c->at += room;
}

/* Allocates memory for t, weights or a gradient, which contractions may use. */
static void allocate_used(cursor *c, ax_memory_class of, const ax_param *p, ax_tensor *t)
{
    allocate(c, of, ax_param_room(c->ctx, p, t), t->dtype, &t->data);
}

/* Allocates the weights as stored between uses, of which `rounded` is a part, and the master weights too if
 * kernels read these. */
static void allocate_weights(cursor *c, ax_param *p)
{
    allocate_used(c, ax_param_rounds(p) ? AX_MEMORY_COPIES : AX_MEMORY_WEIGHTS, p, &p->rest);
    if (!c->base)
        return;
    int64_t offset = ax_param_offset(c->ctx, p, &p->rounded.layout, &p->rest.layout);
    p->rounded.data = ax_param_at(&p->rest, offset);
    if (!ax_param_rounds(p))
        p->state[AX_STATE_MASTER].data = p->rounded.data;
}

/* Allocates what only the update reads: the optimizer's arrays, and the master weights unless kernels read
 * these. */
static void allocate_state(cursor *c, ax_param *p)
{
    int first = ax_param_rounds(p) ? AX_STATE_MASTER : AX_STATE_MOMENT;
    for (int i = first; i < AX_STATE_MOMENT + c->set->moments; i++)
        if (!ax_offload_has(p))
            allocate(c, i == AX_STATE_MASTER ? AX_MEMORY_WEIGHTS : AX_MEMORY_OPTIMIZER, p->state[i].n,
                     p->state[i].dtype, &p->state[i].data);
}

/* Allocates p's place in the weight cache if *budget, the bytes that the cache has left, is enough for p and
 * all of its group (weights that kernels read as one matrix). */
static void allocate_cached(cursor *c, ax_param *p, size_t *budget)
{
    size_t bytes = 0;
    if (p->live->whole)
        return;
    if (!p->first || p->first == p) {
        for (const ax_param *q = p; q; q = q->next)
            bytes += (size_t)ax_tensor_bytes(c->ctx->grid, &q->live->cached);
        p->live->in_cache = bytes <= *budget;
        *budget -= p->live->in_cache ? bytes : 0;
    } else {
        p->live->in_cache = p->first->live->in_cache;
    }
    if (p->live->in_cache)
        allocate_used(c, AX_MEMORY_COPIES, p, &p->live->cached);
}

/* Allocates the mask, if p is a pruned matrix. */
static void allocate_mask(cursor *c, ax_param *p)
{
    struct ax_mask *m = p->mask;
    void *bits = NULL, *begin = NULL;
    if (!m)
        return;
    allocate(c, AX_MEMORY_MASKS, m->rows * m->words, AX_I64, &bits);
    allocate(c, AX_MEMORY_MASKS, m->rows + 1, AX_I32, &begin);
    m->device_bits = bits;
    m->device_begin = begin;
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
        allocate_used(c, AX_MEMORY_GRADIENTS, p, &p->sum);
    else if (!same_split(c->ctx->grid, p))
        allocate_used(c, AX_MEMORY_GRADIENTS, p, &p->grad);
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
    return p->rest.ndim < 2 ? VECTOR : p->frozen ? FROZEN_MATRIX : MATRIX;
}

/* Places the arrays of one block of memory (AX_BLOCK_…) from `base` on (NULL: only counts the bytes), and
 * returns the bytes that it has counted. */
static ax_memory allocate_all(ax_param_set *set, int block, void *base)
{
    cursor c = {.ctx = set->ctx, .set = set, .base = base};
    size_t budget = set->ctx->parallel.weight_cache;
    for (int pass = 0; pass < 2 * KINDS; pass++)
        for (int i = 0; i < set->n; i++) {
            ax_param *p = set->param[i];
            if (kind_of(p) != pass % KINDS || p->place == AX_PARAM_AWAY)
                continue;
            if (block == AX_BLOCK_GRADIENTS && ax_param_trains(p))
                allocate_grad(&c, p, pass >= KINDS);
            if (block == AX_BLOCK_STATE && pass < KINDS && ax_param_trains(p) && ax_param_is_owned(p))
                allocate_state(&c, p);
            if (block == AX_BLOCK_WEIGHTS && pass < KINDS)
                allocate_weights(&c, p);
            if (block == AX_BLOCK_WEIGHTS && pass >= KINDS) {
                allocate_cached(&c, p, &budget);
                allocate_mask(&c, p);
            }
        }
    return c.counted;
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

/* Copies the masks to the device, before other blocks take memory. The host's copies, of which a plan made a
 * second one (ax_masks_apply), are in small pieces and not in the plan of memory: what was freed must not
 * stay with malloc. */
static ax_status upload_masks(ax_param_set *set)
{
    bool pruned = false;
    for (int i = 0; i < set->n; i++)
        if (set->param[i]->mask) {
            AX_TRY(ax_mask_upload(set->ctx, set->param[i]->mask));
            pruned = true;
        }
    if (pruned)
        base_memory_trim();
    return AX_OK;
}

static ax_status allocate_blocks(ax_param_set *set)
{
    for (int i = 0; i < AX_PARAM_BLOCKS; i++) {
        ax_param_block *block = &set->block[i];
        block->memory = allocate_all(set, i, NULL);
        if (!ax_memory_total(&block->memory))
            continue;
        ax_memory_add(&set->memory, &block->memory);
        AX_TRY(ax_ctx_alloc_block(set->ctx, &block->memory, &block->data));
        allocate_all(set, i, block->data);
        if (i == AX_BLOCK_WEIGHTS)
            AX_TRY(upload_masks(set));
    }
    return AX_OK;
}

/* Zeroes optimizer state, gradients, and the rows of zeros of weights that are not gathered before use. Also
 * zeroes the padding between gradients: buckets reduce the padding too, so it must not hold NaN. The bytes of
 * 0 are the same in each dtype. */
static ax_status clear(ax_param_set *set)
{
    const ax_param_block *grads = &set->block[AX_BLOCK_GRADIENTS];
    for (int i = 0; i < set->n; i++) {
        AX_TRY(ax_param_state_clear(set->ctx, set->param[i]));
        if (set->param[i]->live->whole && set->param[i]->place != AX_PARAM_AWAY)
            AX_TRY(ax_param_clear_spare(set->ctx, set->param[i], &set->param[i]->rest));
    }
    ax_fill_args args = {.n = (int64_t)ax_memory_total(&grads->memory), .y = grads->data, .dtype = AX_U8};
    return args.n ? ax_run_fill(set->ctx->stream, &args) : AX_OK;
}

static ax_status make_flow(ax_param_set *set)
{
    AX_TRY(ax_calloc(1, sizeof *set->flow, &set->flow));
    set->flow->running = -1;
    AX_TRY(ax_calloc((size_t)set->n, sizeof *set->flow->live, &set->flow->live));
    ax_param_uses *uses = &set->flow->uses;
    uses->params = set->n;
    AX_TRY(ax_calloc((size_t)set->n, sizeof *uses->contributions, &uses->contributions));
    for (int i = 0; i < set->n; i++) {
        ax_param *p = set->param[i];
        p->live = &set->flow->live[i];
        *p->live = (ax_param_live){.index = i, .bucket = -1, .last = -1, .cached = p->rest};
        p->live->cached.layout = p->use;
        p->live->whole = ax_layout_equal(set->ctx->grid, &p->use, &p->rest.layout, p->rest.ndim);
        for (int k = 0; k < AX_STATE_ARRAYS; k++) {
            p->state[k].n = p->mask ? p->mask->kept : ax_tensor_count(set->ctx->grid, &p->rounded);
            p->state[k].mask = p->mask;
        }
        /* Weights that are not updated are stored only in the dtype that kernels read. */
        p->state[AX_STATE_MASTER].dtype = ax_param_trains(p) ? set->ctx->accum : p->rest.dtype;
    }
    return AX_OK;
}

ax_status ax_param_set_create(ax_ctx *ctx, ax_param *const *params, int n, int moments, ax_param_set **out)
{
    *out = NULL;
    AX_CHECK(AX_STATE_MOMENT + moments <= AX_STATE_ARRAYS, AX_ERR_INTERNAL,
             "ax_param_set_create: moments is %d; a parameter can have at most %d state arrays", moments,
             AX_STATE_ARRAYS - AX_STATE_MOMENT);
    ax_param_set *set;
    AX_TRY(ax_calloc(1, sizeof *set, &set));
    set->ctx = ctx;
    set->moments = moments;
    ax_status status = take_params(set, params, n);
    if (status == AX_OK)
        status = make_flow(set);
    if (status == AX_OK)
        status = ax_offload_lay_out(set);
    if (status == AX_OK)
        status = allocate_blocks(set);
    if (status == AX_OK)
        status = ax_offload_make(set);
    if (status == AX_OK)
        status = clear(set);
    if (status == AX_OK)
        status = ax_param_tied_make(set);
    if (status == AX_OK && moments >= 0)
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
    p->rest.data = p->rounded.data = p->sum.data = p->grad.data = NULL;
    for (int i = 0; i < AX_STATE_ARRAYS; i++)
        p->state[i] = (ax_param_state){.dtype = p->state[i].dtype};
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
    ax_offload_free(s);
    for (int i = 0; i < AX_PARAM_BLOCKS; i++)
        ax_ctx_free_block(s->ctx, &s->block[i].memory, s->block[i].data);
    if (s->flow) {
        ax_param_tied_free(s);
        ax_param_sums_free(s);
        ax_param_uses_fini(&s->flow->uses);
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

/* Ends a change of master weights, which has failed on this rank unless `status` is AX_OK. All ranks hear of
 * a failure before they gather, so that none waits for a rank that has failed. */
static ax_status refresh_after(ax_param_set *set, ax_status status)
{
    for (int i = 0; i < set->n && status == AX_OK; i++)
        status = ax_param_state_round(set->ctx, set->param[i]);
    AX_TRY(ax_comm_agree(set->ctx->world, status));
    for (int i = 0; i < set->n; i++)
        AX_TRY(ax_param_all_gather(set->param[i]));
    for (int i = 0; i < set->n; i++)
        AX_TRY(ax_param_all_gather_wait(set->param[i]));
    return AX_OK;
}

static ax_status init_params(ax_param_set *set, bool frozen)
{
    ax_status status = AX_OK;
    for (int i = 0; i < set->n && status == AX_OK; i++) {
        const ax_param *p = set->param[i];
        if (ax_param_is_owned(p) && (frozen || !p->frozen))
            status = ax_param_state_init(set->ctx, p);
    }
    return refresh_after(set, status);
}

ax_status ax_param_set_init(ax_param_set *set) { return init_params(set, true); }
ax_status ax_param_set_init_trained(ax_param_set *set) { return init_params(set, false); }
ax_status ax_param_set_refresh(ax_param_set *set) { return refresh_after(set, AX_OK); }
