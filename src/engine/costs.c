/* Counts what each unit of a model costs: the embedding, each block, and the final norm with the head. A
 * model in which each unit is a chunk runs one micro-batch on the device `dry`, which has no memory and
 * computes nothing. For each kernel that the model launches, the table of kernels tells the floating-point
 * operations and the bytes. So the costs include whatever makes blocks different: windows of attention,
 * recomputation, frozen weights, tied heads, shards.
 *
 * Every rank of the real grid counts the kernels of rank 0, whose boxes (local parts of tensors) are the
 * largest, so that all ranks get the same costs. Nothing is timed. */
#include "engine/costs.h"

#include <math.h>
#include <stdlib.h>

/* The seconds of a kernel are estimated by the roofline model: floating-point operations divided by their
 * rate, or bytes divided by their rate, whichever is longer. The rates are those of a core with AVX-512 and,
 * for 16 bits, AMX. Only the ratio of the two rates matters here; it is similar on GPUs. */
static const double bytes_per_second = 1e10;
static const double flops_per_second[] = {
    [AX_F64] = 5e10, [AX_F32] = 1e11, [AX_BF16] = 1e12, [AX_F16] = 1e12};

/* The dry run of one model. */
typedef struct counter {
    const ax_engine_options *options;
    ax_ctx *ctx;
    ax_model *model;
    ax_param_set *set;
    ax_updater *updater;
    ax_frame *frame;
    ax_batch batch;
    ax_listener kernels;
    double *numbers; /* the loss, then for each parameter the sum of squares of its gradient */
    double seconds;  /* of all kernels since the last call of lap */
} counter;

static void add_kernel(void *user, const ax_device_event *launch)
{
    counter *c = user;
    double flops, bytes;
    ax_kernel_cost(launch->kernel, launch->args, &flops, &bytes);
    c->seconds += fmax(flops / flops_per_second[c->ctx->compute], bytes / bytes_per_second);
}

/* Returns the seconds of the kernels that were launched since the last call. */
static double lap(counter *c)
{
    double seconds = c->seconds;
    c->seconds = 0;
    return seconds;
}

/* ---- the dry run --------------------------------------------------------------------------------- */

/* Makes the context of rank 0 of a grid that is like the real one, but has one stage. Overlap (keys
 * overlap.*) is off, so that each kernel is counted for the unit that it belongs to. Each rank has all
 * experts, unless they train with a capacity: so it computes the mean number of rows, whereas a dry run of
 * divided experts counts the most that a rank could get. */
static ax_status make_context(counter *c, const ax_ctx *real)
{
    ax_grid_size size = ax_grid_sizes(real->grid);
    int ranks = ax_grid_ranks(real->grid) / size.of[AX_PIPE];
    const ax_parallel parallel = {.strategy = real->parallel.strategy,
                                  .zero = real->parallel.zero,
                                  .narrow_grads = real->parallel.narrow_grads,
                                  .weight_cache = real->parallel.weight_cache};
    size.of[AX_PIPE] = 1;
    if (c->options->model->experts.capacity == 0 || !c->options->optim)
        size.of[AX_SIZE_EXPERT] = 1;
    return ax_ctx_create_dry(0, ranks, size, real->compute, &parallel, &c->ctx);
}

static ax_status make_model(counter *c)
{
    const ax_engine_options *o = c->options;
    const ax_model_use use = {.recompute = o->recompute, .positions = o->seq_len, .chunk_each = true};
    AX_TRY(ax_model_create(c->ctx, o->model, &use, &c->model));
    AX_TRY(ax_layer_param_set(c->model->root, o->optim ? o->optim->moments : -1, &c->set));
    AX_TRY(ax_ctx_alloc(c->ctx, AX_MEMORY_BATCH, (size_t)(1 + c->set->n) * sizeof *c->numbers,
                        (void **)&c->numbers));
    AX_TRY(ax_frame_create(c->ctx, 0, &c->frame));
    return o->optim ? ax_updater_create(o->optim, c->set, &c->updater) : AX_OK;
}

static void destroy(counter *c)
{
    ax_updater_destroy(&c->updater);
    ax_frame_destroy(&c->frame);
    ax_param_set_destroy(&c->set);
    ax_model_destroy(&c->model);
    ax_ctx_destroy(&c->ctx);
}

/* Allocates the arrays of c->batch in the frame, for a micro-batch of `rows` rows. */
static ax_status make_batch(counter *c, int64_t rows)
{
    ax_layout layout = ax_layout_of_roles(c->ctx, (ax_role[]){AX_ROLE_BATCH, AX_ROLE_NONE}, 2);
    ax_tensor like = ax_tensor_make(AX_I32, 2, (int64_t[]){rows, c->options->seq_len}, NULL, &layout);
    ax_tensor *const all[] = {&c->batch.tokens, &c->batch.targets, &c->batch.positions, &c->batch.doc_start};
    for (size_t i = 0; i < AX_COUNT(all); i++)
        AX_TRY(ax_frame_alloc(c->frame, &like, all[i]));
    if (c->options->whole_rows)
        c->batch.doc_start.data = NULL;
    return AX_OK;
}

/* Runs a micro-batch forward and, if the engine trains, backward. Sets cost[i] to the seconds of unit i. */
static ax_status run_micro_batch(counter *c, int64_t rows, double *cost)
{
    ax_model *m = c->model;
    bool trains = c->options->optim;
    ax_tensor y, dy = {0};
    AX_TRY(ax_frame_begin(c->frame, "count", trains ? AX_MODE_TRAIN : AX_MODE_EVAL, &c->batch));
    AX_TRY(make_batch(c, rows));
    for (int i = 0; i < m->chunks - 1; i++) {
        AX_TRY(ax_model_forward(m, i, c->frame, &y));
        c->batch.x = y;
        cost[i] = lap(c);
    }
    AX_TRY(ax_model_loss(m, c->frame, c->numbers, NULL));
    cost[m->chunks - 1] = lap(c);
    for (int i = m->chunks - 1; i >= 0 && trains; i--) {
        const ax_tensor in = dy;
        AX_TRY(ax_model_backward(m, i, c->frame, &in, &dy));
        cost[i] += lap(c);
    }
    return ax_frame_at_end(c->frame, NULL, NULL);
}

/* Returns the number of trained elements on this rank, of the parameters that `layer` and all layers below it
 * own. */
static int64_t trained(const ax_layer *layer)
{
    int64_t n = 0;
    for (int i = 0; i < AX_LAYER_PARAMS; i++)
        if (layer->param[i] && !layer->borrows[i] && ax_param_trains(layer->param[i]))
            n += ax_tensor_count(layer->ctx->grid, &layer->param[i]->rounded);
    for (int i = 0; i < layer->children; i++)
        n += trained(layer->child[i]);
    return n;
}

/* Runs the end of a step: the norm of the gradient and the update. Adds to cost[i] the share of unit i, which
 * is in proportion to its trained elements. */
static ax_status run_update(counter *c, double *cost)
{
    const ax_model *m = c->model;
    double all = (double)ax_max(1, trained(m->root));
    AX_TRY(ax_param_set_sync_grad(c->set));
    AX_TRY(ax_param_set_grad_sumsq(c->set, c->numbers + 1));
    AX_TRY(ax_updater_step(c->updater, &(ax_hyper){.step = 1}));
    double seconds = lap(c);
    for (int i = 0; i < m->chunks; i++) {
        int64_t n = i == m->chunks - 1 ? trained(m->head) : 0;
        for (int k = m->chunk[i].first; k < m->chunk[i].end; k++)
            n += trained(m->body->child[k]);
        cost[i] += seconds * (double)n / all;
    }
    return AX_OK;
}

/* Sets cost[i] to the seconds of unit i in a step. */
static ax_status run_step(counter *c, double *cost)
{
    const ax_engine_options *o = c->options;
    int64_t rows = o->micro_batch * ax_grid_group_size(c->ctx->grid, ax_batch_axes(c->ctx));
    c->kernels = (ax_listener){AX_ON_KERNEL, add_kernel, c, NULL};
    ax_device_listen(c->ctx->dev, &c->kernels);
    if (o->optim)
        AX_TRY(ax_param_set_zero_grad(c->set));
    if (o->optim)
        AX_TRY(ax_param_set_last_micro_batch(c->set, true));
    lap(c);
    AX_TRY(run_micro_batch(c, rows, cost));
    const int64_t micro_batches = o->global_batch / rows;
    for (int i = 0; i < c->model->chunks; i++)
        cost[i] *= (double)micro_batches;
    return o->optim ? run_update(c, cost) : AX_OK;
}

/* ---- the result ---------------------------------------------------------------------------------- */

static ax_status count(const ax_ctx *ctx, const ax_engine_options *options, double *cost)
{
    counter c = {.options = options};
    ax_status status = make_context(&c, ctx);
    if (status == AX_OK)
        status = make_model(&c);
    if (status == AX_OK)
        status = run_step(&c, cost);
    destroy(&c);
    return status;
}

ax_status ax_block_costs(const ax_ctx *ctx, const ax_engine_options *options, int64_t **out)
{
    int64_t n = options->model->layers + 2;
    double *cost, all = 0;
    *out = NULL;
    if (ax_grid_axis_size(ctx->grid, AX_PIPE) == 1 || ctx->parallel.pipe.cut)
        return AX_OK;
    AX_TRY(ax_model_config_check(options->model)); /* before its number of layers is used as a size */
    AX_TRY(ax_calloc((size_t)n, sizeof *cost, &cost));
    ax_status status = count(ctx, options, cost);
    if (status == AX_OK)
        status = ax_calloc((size_t)n, sizeof **out, out);
    for (int64_t i = 0; i < n && status == AX_OK; i++)
        all += cost[i];
    for (int64_t i = 0; i < n && status == AX_OK; i++)
        (*out)[i] = llround(cost[i] / all * 0x1p40);
    free(cost);
    return status;
}
