/* The updater: builds the table of the arrays to update, one ax_update_array per parameter; keeps the numbers
 * that change from step to step (ax_update_numbers); and runs the updates. */
#include "axonn/optim.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

struct ax_updater {
    const ax_optim *optim;
    ax_param_set *set;
    ax_update_array *table;     /* host memory, [set->n]: addresses of each parameter's arrays */
    ax_update_array *array;     /* copy of `table` in device memory */
    ax_update_numbers *numbers; /* in device memory */
    ax_update_numbers *result; /* in pinned host memory: copy of `numbers` after the newest ax_updater_clip */
    ax_stream_event *clipped;  /* complete when the copy of `numbers` to `result` is */
    bool gathers; /* some updated weights are all-gathered after the update (ax_param_all_gather) */
};

static size_t table_bytes(const ax_updater *u) { return (size_t)u->set->n * sizeof *u->array; }

size_t ax_updater_bytes(const ax_updater *u) { return table_bytes(u) + sizeof *u->numbers; }

/* Returns the rounded copy of the master weights, which the update must write too. Returns NULL if there is
 * no copy, because kernels read the master weights themselves. */
static void *copy_of(const ax_param *p)
{
    return p->rounded.data == p->state[AX_STATE_MASTER].data ? NULL : p->rounded.data;
}

static void fill_table(ax_updater *u)
{
    int64_t first = 0;
    for (int i = 0; i < u->set->n; i++) {
        const ax_param *p = u->set->param[i];
        if (!ax_param_is_owned(p) || p->frozen) {
            /* Another pipeline stage updates this parameter; no stage does if it is frozen. */
            u->table[i] = (ax_update_array){.first = first};
            continue;
        }
        u->table[i] = (ax_update_array){.n = p->state[AX_STATE_MASTER].n,
                                        .first = first,
                                        .w = p->state[AX_STATE_MASTER].data,
                                        .m = p->state[AX_STATE_MOMENT].data,
                                        .v = p->state[AX_STATE_MOMENT + 1].data,
                                        .copy = copy_of(p),
                                        .g = p->grad.data,
                                        .decays = p->decay};
        first += ax_round_up(u->table[i].n, AX_UPDATE_UNIT);
        u->gathers = u->gathers ||
                     !ax_layout_equal(u->set->ctx->grid, &p->rest.layout, &p->rounded.layout, p->rest.ndim);
    }
}

static ax_status build(ax_updater *u)
{
    ax_ctx *ctx = u->set->ctx;
    AX_TRY(ax_calloc((size_t)u->set->n, sizeof *u->table, &u->table));
    fill_table(u);
    AX_TRY(ax_ctx_alloc(ctx, table_bytes(u), (void **)&u->array));
    AX_TRY(ax_copy_in(ctx->stream, u->array, u->table, table_bytes(u)));
    AX_TRY(ax_ctx_alloc(ctx, sizeof *u->numbers, (void **)&u->numbers));
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
    ax_ctx_free(u->set->ctx, u->array, table_bytes(u));
    ax_ctx_free(u->set->ctx, u->numbers, sizeof *u->numbers);
    ax_pinned_free(u->set->ctx->dev, u->result, sizeof *u->result);
    ax_stream_event_destroy(&u->clipped);
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

/* Returns `end` such that one launch updates the parameters [from, end). One launch updates all of them,
 * unless weights are all-gathered after the update. In that case each launch takes parameters until they have
 * at least 4 Mi elements in total (the last launch may have fewer). So the all-gathers that follow one launch
 * overlap the next launch. */
static int launch_end(const ax_updater *u, int from)
{
    enum { MOST = 4 << 20 }; /* elements */
    int64_t n = 0;
    int i = from;
    while (i < u->set->n && (!u->gathers || n < MOST))
        n += u->table[i++].n;
    return i;
}

static ax_status update(ax_updater *u, const ax_hyper *h, int from, int end)
{
    const ax_param_set *set = u->set;
    ax_update_args args = {.arrays = end - from,
                           .beta1 = h->beta1,
                           .beta2 = h->beta2,
                           .eps = h->eps,
                           .momentum = h->momentum,
                           .decay = h->weight_decay,
                           .array = u->array + from,
                           .table = u->table + from,
                           .numbers = u->numbers,
                           .dtype = set->ctx->accum,
                           .copy_dtype = set->ctx->compute};
    for (int i = from; i < end; i++) {
        args.n += u->table[i].n;
        args.copied += u->table[i].copy ? u->table[i].n : 0;
    }
    AX_TRY(u->optim->update(set->ctx->stream, &args));
    for (int i = from; i < end; i++)
        if (!set->param[i]->frozen)
            AX_TRY(ax_param_all_gather(set->param[i]));
    return AX_OK;
}

ax_status ax_updater_step(ax_updater *u, const ax_hyper *h)
{
    ax_update_numbers now = {.lr = h->lr,
                             .correction1 = 1 - pow(h->beta1, (double)h->step),
                             .correction2 = 1 - pow(h->beta2, (double)h->step)};
    AX_TRY(ax_copy_in(u->set->ctx->stream, u->numbers, &now, offsetof(ax_update_numbers, grad_scale)));
    for (int from = 0, end; from < u->set->n; from = end) {
        end = launch_end(u, from);
        AX_TRY(update(u, h, from, end));
    }
    return AX_OK;
}
