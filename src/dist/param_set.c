/* The memory of a model's parameters, and what is done to all of them at once. */
#include "axonn/dist.h"

#include <stdlib.h>
#include <string.h>

enum { MASTER, USE, GRAD, STATE, BLOCKS, ALIGN = 64 };

/* ---- memory -------------------------------------------------------------------------------------- */

/* Kernels read the master weights themselves where no rounding lies between. */
static bool use_is_master(const ax_param *p) { return p->use.dtype == p->master.dtype; }

typedef struct cursor {
    const ax_grid *grid;
    char *base; /* NULL: only count */
    size_t at;
} cursor;

static void place(cursor *c, ax_tensor *t)
{
    if (c->base)
        t->data = c->base + c->at;
    /* An empty box has an address too: NULL means "no memory". */
    c->at += (size_t)ax_round_up(ax_max(ax_tensor_bytes(c->grid, t), 1), ALIGN);
}

/* Places the parameters' tensors of one block from `base` on; returns the block's size. */
static size_t place_all(ax_param_set *set, int block, void *base)
{
    cursor c = {.grid = set->ctx->grid, .base = base};
    for (int i = 0; i < set->n; i++) {
        ax_param *p = set->param[i];
        if (block == MASTER)
            place(&c, &p->master);
        else if (block == USE && use_is_master(p))
            p->use.data = p->master.data;
        else if (block == USE)
            place(&c, &p->use);
        else if (block == GRAD && set->slots >= 0)
            place(&c, &p->grad);
        else if (block == STATE)
            for (int s = 0; s < set->slots; s++)
                place(&c, &p->slot[s]);
    }
    return c.at;
}

static size_t *block_bytes(ax_param_set *set, int block)
{
    size_t *const bytes[BLOCKS] = {&set->bytes_master, &set->bytes_use, &set->bytes_grad, &set->bytes_state};
    return bytes[block];
}

static ax_status take_params(ax_param_set *set, ax_param *const *params, int n)
{
    AX_TRY(ax_calloc((size_t)n, sizeof(ax_param *), &set->param));
    for (int i = 0; i < n; i++) {
        const ax_param *same = ax_param_set_find(set, params[i]->name);
        AX_CHECK(!same || same == params[i], AX_ERR_INTERNAL, "two parameters are called %s",
                 params[i]->name);
        if (!same)
            set->param[set->n++] = params[i];
    }
    return AX_OK;
}

static ax_status allocate(ax_param_set *set)
{
    for (int block = 0; block < BLOCKS; block++) {
        size_t bytes = *block_bytes(set, block) = place_all(set, block, NULL);
        if (bytes)
            AX_TRY(ax_device_alloc(set->ctx->dev, bytes, &set->block[block]));
        place_all(set, block, set->block[block]);
    }
    return AX_OK;
}

/* Optimizers start from zeros. */
static ax_status clear_state(ax_param_set *set)
{
    ax_dtype dtype = set->ctx->accum;
    ax_fill_args fill = {
        .n = (int64_t)(set->bytes_state / ax_dtype_size(dtype)), .y = set->block[STATE], .dtype = dtype};
    return fill.n ? ax_run_fill(set->ctx->stream, &fill) : AX_OK;
}

ax_status ax_param_set_create(ax_ctx *ctx, ax_param *const *params, int n, int slots, ax_param_set **out)
{
    *out = NULL;
    AX_CHECK(slots <= (int)AX_COUNT(params[0]->slot), AX_ERR_INTERNAL, "%d optimizer state arrays", slots);
    ax_param_set *set;
    AX_TRY(ax_calloc(1, sizeof *set, &set));
    set->ctx = ctx;
    set->slots = slots;
    ax_status status = take_params(set, params, n);
    if (status == AX_OK)
        status = allocate(set);
    if (status == AX_OK)
        status = clear_state(set);
    if (status != AX_OK)
        ax_param_set_destroy(&set);
    *out = set;
    return status;
}

void ax_param_set_destroy(ax_param_set **set)
{
    ax_param_set *s = *set;
    if (!s)
        return;
    for (int i = 0; i < s->n; i++) {
        ax_param *p = s->param[i];
        p->master.data = p->use.data = p->grad.data = NULL;
        for (size_t k = 0; k < AX_COUNT(p->slot); k++)
            p->slot[k].data = NULL;
    }
    for (int block = 0; block < BLOCKS; block++)
        ax_device_free(s->ctx->dev, s->block[block], *block_bytes(s, block));
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

static ax_status fill(ax_ctx *ctx, ax_dtype dtype, int64_t n, double value, void *y)
{
    ax_fill_args args = {.n = n, .value = value, .y = y, .dtype = dtype};
    return n ? ax_run_fill(ctx->stream, &args) : AX_OK;
}

static ax_status draw(ax_ctx *ctx, const ax_param *p)
{
    const ax_tensor *t = &p->master;
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

ax_status ax_param_set_init(ax_param_set *set)
{
    for (int i = 0; i < set->n; i++) {
        const ax_param *p = set->param[i];
        if (p->init == AX_INIT_NORMAL)
            AX_TRY(draw(set->ctx, p));
        else
            AX_TRY(fill(set->ctx, p->master.dtype, ax_tensor_count(set->ctx->grid, &p->master),
                        p->init == AX_INIT_ONE, p->master.data));
    }
    return ax_param_set_refresh(set);
}

ax_status ax_param_set_refresh(ax_param_set *set)
{
    for (int i = 0; i < set->n; i++) {
        const ax_param *p = set->param[i];
        ax_convert_args args = {.n = ax_tensor_count(set->ctx->grid, &p->master),
                                .x = p->master.data,
                                .y = p->use.data,
                                .x_dtype = p->master.dtype,
                                .y_dtype = p->use.dtype};
        if (!use_is_master(p) && args.n)
            AX_TRY(ax_run_convert(set->ctx->stream, &args));
    }
    return AX_OK;
}

/* ---- gradients ----------------------------------------------------------------------------------- */

static ax_status needs_gradients(const ax_param_set *set)
{
    AX_CHECK(set->slots >= 0, AX_ERR_INTERNAL, "these parameters were made without gradients");
    return AX_OK;
}

ax_status ax_param_set_zero_grad(ax_param_set *set)
{
    AX_TRY(needs_gradients(set));
    for (int i = 0; i < set->n; i++)
        set->param[i]->grad.layout.partial = set->param[i]->grad_axes;
    ax_dtype dtype = set->ctx->accum;
    return fill(set->ctx, dtype, (int64_t)(set->bytes_grad / ax_dtype_size(dtype)), 0, set->block[GRAD]);
}

/* Neighbours in memory that are partial along the same axes are summed at once, the gaps between them
 * included: zero_grad clears those too. */
ax_status ax_param_set_sync_grad(ax_param_set *set)
{
    AX_TRY(needs_gradients(set));
    if (set->n == 0)
        return AX_OK;
    ax_dtype dtype = set->ctx->accum;
    const char *end = (char *)set->block[GRAD] + set->bytes_grad;
    for (int i = 0, j; i < set->n; i = j) {
        ax_axisset axes = set->param[i]->grad.layout.partial;
        const char *first = set->param[i]->grad.data;
        for (j = i; j < set->n && set->param[j]->grad.layout.partial == axes; j++)
            set->param[j]->grad.layout.partial = 0;
        const char *stop = j < set->n ? set->param[j]->grad.data : end;
        AX_TRY(ax_reduce_axes(set->ctx, axes, (void *)first, (stop - first) / (int64_t)ax_dtype_size(dtype),
                              dtype, AX_SUM));
    }
    return AX_OK;
}

/* Each element counts once: only the first of the ranks that hold a box adds its sum. */
static ax_status sumsq_over_grid(ax_param_set *set, const double *scratch, bool of_gradient, double *sumsq)
{
    ax_ctx *ctx = set->ctx;
    AX_TRY(ax_copy_out(ctx->stream, sumsq, scratch, (size_t)set->n * sizeof *sumsq));
    for (int i = 0; i < set->n; i++)
        if (!ax_tensor_is_primary(ctx->grid, of_gradient ? &set->param[i]->grad : &set->param[i]->master))
            sumsq[i] = 0;
    ax_work *work;
    AX_TRY(ax_all_reduce(ax_grid_comm_all(ctx->grid), NULL, sumsq, set->n, AX_F64, AX_SUM, &work));
    return ax_wait(&work);
}

static ax_status sumsq_here(ax_ctx *ctx, const ax_tensor *t, double *out)
{
    ax_sumsq_args args = {.n = ax_tensor_count(ctx->grid, t), .x = t->data, .out = out, .dtype = t->dtype};
    return ax_run_sumsq(ctx->stream, &args);
}

ax_status ax_param_set_grad_sumsq(ax_param_set *set, double *scratch, double *sumsq)
{
    AX_TRY(needs_gradients(set));
    for (int i = 0; i < set->n; i++) {
        const ax_tensor *g = &set->param[i]->grad;
        AX_CHECK(!ax_grid_effective(set->ctx->grid, g->layout.partial), AX_ERR_INTERNAL,
                 "the gradient of %s is still a partial sum: call ax_param_set_sync_grad first",
                 set->param[i]->name);
        AX_TRY(sumsq_here(set->ctx, g, scratch + i));
    }
    return sumsq_over_grid(set, scratch, true, sumsq);
}

ax_status ax_param_set_weight_sumsq(ax_param_set *set, double *scratch, double *sumsq)
{
    for (int i = 0; i < set->n; i++)
        AX_TRY(sumsq_here(set->ctx, &set->param[i]->master, scratch + i));
    return sumsq_over_grid(set, scratch, false, sumsq);
}
