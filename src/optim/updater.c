/* The updater: builds the table of the arrays to update (ax_update_array), one row per parameter or, if its
 * state comes in buckets, one per part of it in a bucket; keeps the numbers that change from step to step
 * (ax_update_numbers); and runs the updates. */
#include "axonn/optim.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

/* Rows of the table that one launch updates, and the parameters that are all-gathered after it. */
typedef struct launch {
    int64_t bucket;      /* of offloaded state, to which the rows belong; -1: none */
    int row, end;        /* rows [row, end) */
    int param, gathered; /* parameters [param, gathered) */
} launch;

/* A part of a pruned matrix that an update changes: its elements begin with `first` of the rank's vector. */
typedef struct expansion {
    const ax_param *param; /* NULL: the update writes the weights that kernels read */
    int64_t first;
} expansion;

struct ax_updater {
    const ax_optim *optim;
    ax_param_set *set;
    int rows, launches;
    launch *launch;
    ax_update_array *table;     /* host memory, [rows]: addresses of the arrays */
    expansion *expand;          /* [rows]: what is expanded after the row's update */
    ax_update_array *array;     /* copy of `table` in device memory */
    ax_update_numbers *numbers; /* in device memory */
    ax_update_numbers *result; /* in pinned host memory: copy of `numbers` after the newest ax_updater_clip */
    ax_stream_event *clipped;  /* complete when the copy of `numbers` to `result` is */
    ax_update_numbers on_host; /* `numbers` for updates on another device than the context's */
    double *sums;              /* host memory, [1 + set->n]: for has_headroom */
};

static size_t table_bytes(const ax_updater *u) { return (size_t)u->rows * sizeof *u->array; }

size_t ax_updater_bytes(const ax_updater *u) { return table_bytes(u) + sizeof *u->numbers; }

/* ---- table --------------------------------------------------------------------------------------- */

static bool updates(const ax_param *p) { return ax_param_is_owned(p) && !p->frozen; }

/* Appends a row for a part of p. Kernels read the master weights themselves unless these have an address of
 * their own; then the update writes the copy that kernels read, too. */
static void add_row(ax_updater *u, const ax_param *p, const ax_offload_part *part)
{
    const ax_update_array *last = u->rows ? &u->table[u->rows - 1] : NULL;
    void *master = part->state[AX_STATE_MASTER] ? part->state[AX_STATE_MASTER] : part->weights;
    u->expand[u->rows] = (expansion){.param = p->mask ? p : NULL, .first = part->first};
    u->table[u->rows++] =
        (ax_update_array){.n = part->n,
                          .first = last ? last->first + ax_round_up(last->n, AX_UPDATE_UNIT) : 0,
                          .w = master,
                          .m = part->state[AX_STATE_MOMENT],
                          .v = part->state[AX_STATE_MOMENT + 1],
                          .copy = master == part->weights ? NULL : part->weights,
                          .g = part->grad,
                          .decays = p->decay,
                          .g_dtype = p->grad.dtype};
}

static void add_whole(ax_updater *u, const ax_param *p)
{
    ax_offload_part whole = {
        .n = p->state[AX_STATE_MASTER].n, .grad = p->grad.data, .weights = p->mask ? NULL : p->rounded.data};
    for (int k = 0; k < AX_STATE_ARRAYS; k++)
        whole.state[k] = p->state[k].data;
    add_row(u, p, &whole);
}

/* Begins a launch, which takes the rows and parameters after those of the launch before. */
static launch *add_launch(ax_updater *u, int64_t bucket)
{
    int param = u->launches ? u->launch[u->launches - 1].gathered : 0;
    launch *l = &u->launch[u->launches++];
    *l = (launch){.bucket = bucket, .row = u->rows, .end = u->rows, .param = param, .gathered = param};
    return l;
}

/* Lists the launches that update state in its place. One launch updates all of it, unless weights are
 * all-gathered after the update. In that case each launch takes parameters until they have at least 4 Mi
 * elements in total (the last launch may have fewer), so that the all-gathers that follow one launch overlap
 * the next launch. Leaves out parameters whose state comes in buckets. */
static void list_in_place(ax_updater *u, bool gathers)
{
    enum { MOST = 4 << 20 }; /* elements */
    bool buckets = ax_offload_buckets(u->set);
    for (int i = 0; i < u->set->n;) {
        launch *l = add_launch(u, -1);
        for (int64_t n = 0; i < u->set->n && (buckets || !gathers || n < MOST); i++) {
            const ax_param *p = u->set->param[i];
            if (!updates(p) || ax_param_is_bucketed(p))
                continue;
            add_whole(u, p);
            n += u->table[u->rows - 1].n;
        }
        l->end = u->rows;
        while (l->gathered < i && ax_offload_last(u->set->param[l->gathered]) < 0)
            l->gathered++;
    }
}

/* Lists the launches that update state bucket by bucket. A parameter is all-gathered after the bucket with
 * the last elements of the parameters up to it, so that all ranks gather in the same order. */
static void list_buckets(ax_updater *u)
{
    int64_t buckets = ax_offload_buckets(u->set);
    ax_offload_part part;
    for (int64_t b = 0; b < buckets; b++) {
        launch *l = add_launch(u, b);
        for (int i = 0; i < u->set->n; i++)
            if (ax_offload_find(u->set->param[i], b, &part))
                add_row(u, u->set->param[i], &part);
        l->end = u->rows;
        while (l->gathered < u->set->n && ax_offload_last(u->set->param[l->gathered]) <= b)
            l->gathered++;
    }
}

/* Returns true if weights are all-gathered after updates. */
static bool gathers(const ax_param_set *set)
{
    for (int i = 0; i < set->n; i++) {
        const ax_param *p = set->param[i];
        if (updates(p) && !ax_layout_equal(set->ctx->grid, &p->rest.layout, &p->rounded.layout, p->rest.ndim))
            return true;
    }
    return false;
}

/* Makes the table and the list of launches. A bucket has a row for each parameter that begins in it, and one
 * for the parameter before. */
static ax_status list_launches(ax_updater *u)
{
    size_t most = (size_t)(2 * u->set->n + ax_offload_buckets(u->set) + 1);
    AX_TRY(ax_calloc(most, sizeof *u->table, &u->table));
    AX_TRY(ax_calloc(most, sizeof *u->expand, &u->expand));
    AX_TRY(ax_calloc(most, sizeof *u->launch, &u->launch));
    AX_ASSERT(u->table && u->expand && u->launch); /* for the static analyzer */
    list_buckets(u);
    list_in_place(u, gathers(u->set)); /* last, because the gradients of vectors are reduced last */
    return AX_OK;
}

static ax_status build(ax_updater *u)
{
    ax_ctx *ctx = u->set->ctx;
    AX_TRY(list_launches(u));
    AX_TRY(ax_calloc((size_t)(1 + u->set->n), sizeof *u->sums, &u->sums));
    AX_TRY(ax_ctx_alloc(ctx, AX_MEMORY_BATCH, table_bytes(u), (void **)&u->array));
    AX_TRY(ax_copy_in(ctx->stream, u->array, u->table, table_bytes(u)));
    AX_TRY(ax_ctx_alloc(ctx, AX_MEMORY_BATCH, sizeof *u->numbers, (void **)&u->numbers));
    AX_TRY(ax_pinned_alloc(ctx->dev, sizeof *u->result, (void **)&u->result));
    AX_TRY(ax_stream_event_create(ctx->dev, &u->clipped));
    return ax_updater_resume(u);
}

ax_status ax_updater_create(const ax_optim *optim, ax_param_set *set, ax_updater **out)
{
    ax_updater *u;
    *out = NULL;
    AX_CHECK(set->moments == optim->moments, AX_ERR_INTERNAL,
             "ax_updater_create: optimizer %s needs a parameter set with %d state arrays for each parameter "
             "(moments), not %d",
             optim->name, optim->moments, set->moments);
    AX_TRY(ax_calloc(1, sizeof *u, &u));
    u->optim = optim;
    u->set = set;
    ax_status status = build(u);
    if (status != AX_OK)
        ax_updater_destroy(&u);
    *out = u;
    return status;
}

void ax_updater_destroy(ax_updater **updater)
{
    ax_updater *u = *updater;
    if (!u)
        return;
    ax_ctx_free(u->set->ctx, AX_MEMORY_BATCH, u->array, table_bytes(u));
    ax_ctx_free(u->set->ctx, AX_MEMORY_BATCH, u->numbers, sizeof *u->numbers);
    ax_pinned_free(u->set->ctx->dev, u->result, sizeof *u->result);
    ax_stream_event_destroy(&u->clipped);
    free(u->sums);
    free(u->launch);
    free(u->expand);
    free(u->table);
    free(u);
    *updater = NULL;
}

ax_status ax_updater_resume(ax_updater *u)
{
    ax_update_numbers start = {.grad_scale = 1, .culprit = -1};
    return ax_copy_in(u->set->ctx->stream, u->numbers, &start, sizeof start);
}

ax_status ax_updater_clip(ax_updater *u, const double *sumsq, const double *loss, int64_t targets,
                          double scale, double clip)
{
    ax_stream *stream = u->set->ctx->stream;
    AX_TRY(ax_run_clip(stream, &(ax_clip_args){.n = u->set->n,
                                               .clip = clip,
                                               .targets = (double)ax_max(targets, 1),
                                               .scale = scale,
                                               .sumsq = sumsq,
                                               .loss = loss,
                                               .numbers = u->numbers}));
    AX_TRY(ax_copy_out_async(stream, u->result, u->numbers, sizeof *u->result));
    return ax_stream_record(stream, u->clipped);
}

ax_status ax_updater_result(ax_updater *u, ax_update_numbers *out)
{
    AX_TRY(ax_stream_event_wait(u->clipped));
    *out = *u->result;
    return AX_OK;
}

static ax_status update(ax_updater *u, const ax_hyper *h, const launch *l)
{
    ax_update_args args = {.arrays = l->end - l->row,
                           .beta1 = h->beta1,
                           .beta2 = h->beta2,
                           .eps = h->eps,
                           .momentum = h->momentum,
                           .decay = h->weight_decay,
                           .array = u->array + l->row,
                           .table = u->table + l->row,
                           .numbers = u->numbers,
                           .dtype = u->set->ctx->accum,
                           .copy_dtype = u->set->ctx->compute};
    ax_stream *stream = l->bucket < 0 ? u->set->ctx->stream : ax_offload_stream(u->set);
    if (stream->dev != u->set->ctx->dev) {
        args.array = args.table;
        args.numbers = &u->on_host;
    }
    for (int i = l->row; i < l->end; i++) {
        args.n += u->table[i].n;
        args.copied += u->table[i].copy ? u->table[i].n : 0;
    }
    return args.n ? u->optim->update(stream, &args) : AX_OK;
}

static ax_status run_launch(ax_updater *u, const ax_hyper *h, const launch *l, bool reduces)
{
    if (reduces)
        AX_TRY(ax_offload_reduce(u->set, l->bucket));
    if (l->bucket >= 0)
        AX_TRY(ax_offload_acquire(u->set, l->bucket));
    AX_TRY(update(u, h, l));
    for (int i = l->row; i < l->end; i++)
        if (u->expand[i].param)
            AX_TRY(ax_param_expand(u->expand[i].param, u->expand[i].first, u->table[i].n, u->table[i].w));
    if (l->bucket >= 0)
        AX_TRY(ax_offload_release(u->set, l->bucket));
    for (int i = l->param; i < l->gathered; i++)
        if (!u->set->param[i]->frozen)
            AX_TRY(ax_param_all_gather(u->set->param[i]));
    return AX_OK;
}

static ax_status run_launches(ax_updater *u, const ax_hyper *h, bool reduces)
{
    ax_update_numbers now = {.lr = h->lr,
                             .correction1 = 1 - pow(h->beta1, (double)h->step),
                             .correction2 = 1 - pow(h->beta2, (double)h->step)};
    AX_TRY(ax_copy_in(u->set->ctx->stream, u->numbers, &now, offsetof(ax_update_numbers, grad_scale)));
    if (ax_offload_stream(u->set)->dev != u->set->ctx->dev) {
        AX_TRY(ax_updater_result(u, &u->on_host));
        u->on_host.lr = now.lr;
        u->on_host.correction1 = now.correction1;
        u->on_host.correction2 = now.correction2;
    }
    for (int i = 0; i < u->launches; i++)
        AX_TRY(run_launch(u, h, &u->launch[i], reduces));
    return AX_OK;
}

ax_status ax_updater_step(ax_updater *u, const ax_hyper *h) { return run_launches(u, h, false); }

/* ---- updates while gradients are reduced --------------------------------------------------------- */

/* Returns the largest number that all gradients can hold. */
static double largest_grad(const ax_param_set *set)
{
    double largest = DBL_MAX;
    for (int i = 0; i < set->n; i++) {
        ax_dtype dtype = set->param[i]->grad.dtype;
        largest = fmin(largest, dtype == AX_F16 ? 65504 : dtype == AX_F64 ? DBL_MAX : 0x1p127);
    }
    return largest;
}

/* Sets *out to whether the step's loss is finite and no sum of gradients over ranks can overflow, given
 * `numbers` (ax_updater_step_reducing) with the sums of squares before the reduction; the same on all ranks.
 * Sums of G ranks are at most sqrt(G · total) in each element, also partial ones. */
static ax_status has_headroom(const ax_updater *u, const double *numbers, bool *out)
{
    const ax_ctx *ctx = u->set->ctx;
    double total = 0;
    AX_TRY(ax_copy_out(ctx->stream, u->sums, numbers, (size_t)(1 + u->set->n) * sizeof *numbers));
    for (int i = 0; i < u->set->n; i++)
        total += u->sums[1 + i];
    *out = isfinite(u->sums[0]) && sqrt(total * ax_grid_ranks(ctx->grid)) < largest_grad(u->set) / 2;
    return AX_OK;
}

/* All ranks first make sure that the step is finite; if it might not be, everything is reduced first after
 * all. So in no step is one bucket updated and another skipped. The norm, which is for the log alone, comes
 * last. */
ax_status ax_updater_step_reducing(ax_updater *u, double *numbers, int64_t targets, double scale,
                                   const ax_hyper *h)
{
    bool finite;
    AX_TRY(ax_param_set_end_grad(u->set));
    AX_TRY(ax_param_set_partial_sumsq(u->set, numbers + 1));
    AX_TRY(has_headroom(u, numbers, &finite));
    if (finite)
        AX_TRY(ax_updater_clip(u, numbers + 1, numbers, targets, scale, 0));
    AX_TRY(finite ? run_launches(u, h, true) : ax_param_set_sync_grad(u->set));
    AX_TRY(ax_param_set_grad_sumsq(u->set, numbers + 1));
    AX_TRY(ax_updater_clip(u, numbers + 1, numbers, targets, scale, 0));
    return finite ? AX_OK : run_launches(u, h, false);
}
