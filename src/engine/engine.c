/* One training step and one evaluation of a model: forward, backward, reduction, clipping, update.
 * docs/step.md explains it. The same code runs on the device `dry`, which computes nothing, to find out how
 * much memory a step needs (ax_engine_plan_make). */
#include "engine/costs.h"
#include "engine/engine_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static ax_status check_options(const ax_engine_options *o, const ax_ctx *ctx, int64_t rows)
{
    ax_grid_load load = {o->model, ax_strategy_of(ctx), o->micro_batch, o->global_batch};
    const int64_t positions = ax_model_config_positions(o->model);
    AX_CHECK(o->seq_len > 0 && o->seq_len <= positions, AX_ERR_USAGE,
             "sequences of %lld tokens are not possible with this model: choose 1 to %lld tokens, its number "
             "of positions",
             (long long)o->seq_len, (long long)positions);
    AX_CHECK(o->micro_batch > 0 && o->global_batch > 0, AX_ERR_USAGE,
             "the global batch (%lld rows) and the micro-batch (%lld rows) must both have at least one row",
             (long long)o->global_batch, (long long)o->micro_batch);
    AX_TRY(ax_model_check_grid(&load, ax_grid_sizes(ctx->grid), ax_grid_ranks(ctx->grid)));
    int64_t micro_batches = o->global_batch / rows, stages = ax_grid_axis_size(ctx->grid, AX_PIPE);
    AX_CHECK(!o->optim || ax_pipe_fits(ctx->parallel.pipe.schedule, stages, micro_batches), AX_ERR_USAGE,
             "the schedule interleaved needs a number of micro-batches that is a multiple of the %lld "
             "pipeline stages, not %lld: "
             "change the global batch or the micro-batch",
             (long long)stages, (long long)micro_batches);
    /* The bytes of a micro-batch must fit in 64 bits. Their upper bound is tokens · (layers + 1) · widest dim
     * · 64 bytes, because no layer stores more than 64 bytes per token and element of the widest dim. */
    int64_t heads = o->model->heads * ax_model_config_head_dim(o->model), bytes,
            experts = o->model->experts.top_k * ax_model_config_expert_ffn(o->model),
            widest = ax_max(ax_max(o->model->vocab, ax_max(o->model->ffn, experts)),
                            ax_max(o->model->hidden, heads));
    AX_CHECK(!__builtin_mul_overflow(rows, o->seq_len, &bytes) &&
                 !__builtin_mul_overflow(bytes, 64 * (o->model->layers + 1) * widest, &bytes),
             AX_ERR_USAGE,
             "micro-batches of %lld rows of %lld tokens need more memory than 64 bits can count: choose "
             "fewer rows",
             (long long)rows, (long long)o->seq_len);
    return AX_OK;
}

/* Allocates the device memory s->device for the rows of a micro-batch, and makes the tensors of s->batch
 * views of this memory. */
static ax_status make_batch(ax_engine *e, const ax_tensor *like, engine_slot *s)
{
    AX_TRY(ax_ctx_alloc(e->ctx, AX_MEMORY_BATCH, engine_batch_bytes(e), (void **)&s->device));
    ax_tensor *const views[ARRAYS] = {&s->batch.tokens, &s->batch.targets, &s->batch.doc_start,
                                      &s->batch.positions};
    for (int i = 0; i < ARRAYS; i++) {
        *views[i] = *like;
        views[i]->data = (int32_t *)(s->device + HEAD) + i * e->n * e->options.seq_len;
    }
    s->batch.now = (const ax_batch_numbers *)s->device;
    s->batch.routers = engine_routers(e) ? e->numbers + 1 : NULL;
    if (e->options.whole_rows)
        s->batch.doc_start.data = NULL;
    return AX_OK;
}

static ax_status make_tasks(ax_engine *e, int n, ax_replay ***task)
{
    AX_TRY(ax_calloc((size_t)n, sizeof **task, task));
    for (int i = 0; i < n; i++)
        AX_TRY(ax_replay_create(e->ctx->dev, &(*task)[i]));
    return AX_OK;
}

static void destroy_tasks(int n, ax_replay **task)
{
    for (int i = 0; task && i < n; i++)
        ax_replay_destroy(&task[i]);
    free(task);
}

static ax_status make_frame(ax_engine *e, const ax_engine_plan *plan, size_t frame_bytes, engine_slot *s)
{
    if (s != e->slot)
        return ax_frame_create_slot(e->slot[0].frame, (int)(s - e->slot), &s->frame);
    return plan ? ax_frame_create_planned(e->ctx, plan->frame, &s->frame)
                : ax_frame_create(e->ctx, frame_bytes, &s->frame);
}

/* Creates the slots (memory of one micro-batch in one chunk). An engine that records a plan has only one
 * slot, in which it runs each chunk's tasks. */
static ax_status make_slots(ax_engine *e, const ax_engine_plan *plan, size_t frame_bytes)
{
    ax_layout layout = ax_layout_of_roles(e->ctx, (ax_role[]){AX_ROLE_BATCH, AX_ROLE_NONE}, 2);
    ax_tensor like = ax_tensor_make(AX_I32, 2, (int64_t[]){e->rows, e->options.seq_len}, NULL, &layout);
    ax_tensor_range(e->ctx->grid, &like, 0, ax_grid_rank(e->ctx->grid), &e->first, &e->n);
    AX_TRY(ax_calloc(1, engine_batch_bytes(e), &e->host));
    int slots = (int)ax_pipeline_stage(e->pipeline)->slots;
    AX_TRY(ax_calloc((size_t)slots, sizeof *e->slot, &e->slot));
    e->slots = plan || frame_bytes ? slots : 1;
    for (int i = 0; i < e->slots; i++) {
        AX_TRY(make_frame(e, plan, frame_bytes, &e->slot[i]));
        AX_TRY(make_batch(e, &like, &e->slot[i]));
        AX_TRY(make_tasks(e, engine_chunks(e) * SLOT_TASKS, &e->slot[i].task));
    }
    return AX_OK;
}

static size_t routers_bytes(const ax_engine *e) { return (size_t)engine_routers(e) * sizeof *e->routers; }

static ax_status make_numbers(ax_engine *e)
{
    AX_TRY(ax_ctx_alloc(e->ctx, AX_MEMORY_BATCH, engine_numbers_bytes(e), (void **)&e->numbers));
    return e->options.optim && routers_bytes(e)
               ? ax_pinned_alloc(e->ctx->dev, routers_bytes(e), (void **)&e->routers)
               : AX_OK;
}

static ax_status make_scores(ax_engine *e)
{
    engine_scores *s = &e->scores;
    const size_t mine = (size_t)engine_positions(e),
                 all = (size_t)(ax_engine_eval_rows(e) * e->options.seq_len);
    if (!e->options.scores)
        return AX_OK;
    AX_TRY(ax_ctx_alloc(e->ctx, AX_MEMORY_BATCH, engine_scores_bytes(e), (void **)&s->device));
    s->micro.loss = s->device;
    s->micro.rank = (int32_t *)(void *)(s->device + mine * ax_dtype_size(e->ctx->accum));
    AX_TRY(ax_calloc(mine, sizeof(double), &s->host));
    AX_TRY(ax_calloc(all, sizeof *s->loss, &s->loss));
    return ax_calloc(all, sizeof *s->rank, &s->rank);
}

static void destroy_scores(ax_engine *e)
{
    if (e->scores.device)
        ax_ctx_free(e->ctx, AX_MEMORY_BATCH, e->scores.device, engine_scores_bytes(e));
    free(e->scores.host);
    free(e->scores.loss);
    free(e->scores.rank);
}

/* Gives the matrices of the blocks their masks. */
static ax_status prune(ax_engine *e)
{
    ax_param **matrix;
    int n;
    if (!e->options.masks)
        return AX_OK;
    AX_TRY(ax_model_matrices(e->model, &matrix, &n));
    ax_status status = ax_masks_apply(e->options.masks, e->ctx, matrix, n);
    free(matrix);
    return status;
}

static ax_status build(ax_engine *e, const ax_engine_plan *plan, size_t frame_bytes)
{
    const ax_engine_options *o = &e->options;
    e->rows = o->micro_batch * ax_grid_group_size(e->ctx->grid, ax_batch_axes(e->ctx));
    e->samples = o->global_batch;
    AX_TRY(check_options(o, e->ctx, e->rows));
    if (!plan)
        AX_TRY(ax_block_costs(e->ctx, o, &e->costs));
    const ax_model_use use = {
        .recompute = o->recompute, .positions = o->seq_len, .costs = plan ? plan->costs : e->costs};
    AX_TRY(ax_model_create(e->ctx, o->model, &use, &e->model));
    AX_TRY(prune(e));
    AX_TRY(ax_layer_param_set(e->model->root, o->optim ? o->optim->moments : -1, &e->set));
    if (o->loki)
        AX_TRY(ax_loki_attach(e->model->root, o->loki));
    if (plan)
        AX_TRY(ax_param_set_learn_uses(e->set, plan->uses));
    AX_TRY(
        ax_pipeline_create(e->model, e->rows, o->seq_len, o->global_batch / e->rows, o->optim, &e->pipeline));
    AX_TRY(make_numbers(e));
    AX_TRY(make_slots(e, plan, frame_bytes));
    AX_TRY(make_scores(e));
    AX_TRY(make_tasks(e, EVALUATION + 2 * engine_chunks(e), &e->task));
    return o->optim ? ax_updater_create(o->optim, e->set, &e->updater) : AX_OK;
}

ax_status ax_engine_create(ax_ctx *ctx, const ax_engine_options *options, const ax_engine_plan *plan,
                           size_t frame_bytes, ax_engine **out)
{
    ax_engine *e;
    AX_TRY(ax_calloc(1, sizeof *e, &e));
    e->ctx = ctx;
    e->options = *options;
    e->scale = ax_loss_scale_start(ctx->compute);
    ax_status status = build(e, plan, frame_bytes);
    if (status != AX_OK) {
        ax_engine_destroy(&e);
        return status;
    }
    *out = e;
    return AX_OK;
}

static void destroy_slot(ax_engine *e, engine_slot *s)
{
    destroy_tasks(engine_chunks(e) * SLOT_TASKS, s->task);
    ax_frame_destroy(&s->frame);
    if (s->device)
        ax_ctx_free(e->ctx, AX_MEMORY_BATCH, s->device, engine_batch_bytes(e));
}

void ax_engine_destroy(ax_engine **engine)
{
    ax_engine *e = *engine;
    if (!e)
        return;
    if (e->pipeline)
        destroy_tasks(EVALUATION + 2 * engine_chunks(e), e->task);
    for (int i = e->slots - 1; i >= 0;
         i--) /* from last to first, because the first slot owns the memory that all slots share */
        destroy_slot(e, &e->slot[i]);
    free(e->slot);
    ax_pipeline_destroy(&e->pipeline);
    destroy_scores(e);
    if (e->numbers)
        ax_ctx_free(e->ctx, AX_MEMORY_BATCH, e->numbers, engine_numbers_bytes(e));
    if (e->routers)
        ax_pinned_free(e->ctx->dev, e->routers, routers_bytes(e));
    ax_updater_destroy(&e->updater);
    ax_param_set_destroy(&e->set);
    ax_model_destroy(&e->model);
    free(e->costs);
    free(e->host);
    free(e);
    *engine = NULL;
}

ax_param_set *ax_engine_params(ax_engine *engine) { return engine->set; }
ax_model *ax_engine_model(ax_engine *engine) { return engine->model; }
ax_frame *ax_engine_frame(ax_engine *engine) { return engine->slot[0].frame; }
double ax_engine_waited(const ax_engine *engine) { return ax_pipeline_waited(engine->pipeline); }
void ax_engine_ask_stop(ax_engine *engine) { ax_pipeline_ask_stop(engine->pipeline); }
double ax_engine_stop_asked(const ax_engine *engine) { return ax_pipeline_stop_asked(engine->pipeline); }
ax_loss_scale *ax_engine_loss_scale(ax_engine *engine) { return &engine->scale; }
int64_t ax_engine_rows(const ax_engine *engine) { return engine->rows; }

int64_t ax_engine_eval_rows(const ax_engine *engine)
{
    const int64_t stages = engine->model->stages;
    return engine->rows * (stages > 1 ? 4 * stages : 1);
}

static ax_status zero_sums(ax_engine *e)
{
    return ax_run_fill(e->ctx->stream,
                       &(ax_fill_args){.n = engine_sums(e), .value = 0, .y = e->numbers, .dtype = AX_F64});
}

/* Returns the axes along which ranks have different rows, and pipe. */
static ax_axisset sum_axes(const ax_engine *e) { return (ax_axisset)(ax_batch_axes(e->ctx) | 1 << AX_PIPE); }

/* Sums the first n numbers over the ranks that hold different rows and over the pipeline stages. Only the
 * last stage has a loss, and only one the statistics of a block's router; the other stages add 0. Afterwards
 * all ranks have the sums. */
static ax_status reduce_sums(ax_engine *e, int64_t n)
{
    return ax_reduce_axes(e->ctx, sum_axes(e), e->numbers, n, AX_F64, AX_SUM);
}

static double *grad_sumsq(const ax_engine *e) { return e->numbers + engine_sums(e); }

/* Starts the copy of the routers' statistics, which is complete when the update's numbers are. */
static ax_status copy_routers(ax_engine *e)
{
    return e->routers ? ax_copy_out_async(e->ctx->stream, e->routers, e->numbers + 1, routers_bytes(e))
                      : AX_OK;
}

ax_status engine_begin_step(ax_engine *e)
{
    AX_TRY(ax_param_set_zero_grad(e->set));
    return zero_sums(e);
}

/* ---- steps --------------------------------------------------------------------------------------- */

/* Completes the reductions of the gradients and of the step's sums over ranks, then computes for each
 * parameter the sum of squares of its gradient. */
static ax_status compute_grad_sumsq(ax_engine *e, engine_slot *s, ax_pipe_piece piece)
{
    (void)s, (void)piece;
    AX_TRY(ax_param_set_sync_grad(e->set));
    AX_TRY(reduce_sums(e, engine_sums(e)));
    return ax_param_set_grad_sumsq(e->set, grad_sumsq(e));
}

/* Computes the gradient norm, clips the gradients, and updates the weights if loss and norm are finite. The
 * device decides whether to update, so the host does not wait. */
ax_status engine_end_step(ax_engine *e, int64_t targets, const ax_hyper *hyper)
{
    if (engine_reduces_late(e)) {
        AX_TRY(reduce_sums(e, engine_sums(e)));
        AX_TRY(copy_routers(e));
        return ax_updater_step_reducing(e->updater, e->numbers, targets, e->scale.scale, hyper);
    }
    AX_TRY(engine_run_task(e, e->task[NORM], compute_grad_sumsq, NULL, (ax_pipe_piece){0}));
    AX_TRY(copy_routers(e));
    AX_TRY(ax_updater_clip(e->updater, grad_sumsq(e), e->numbers, targets, e->scale.scale, e->options.clip));
    return ax_updater_step(e->updater, hyper);
}

ax_status engine_run_micro_batches(ax_engine *e, ax_read_rows_fn *read, void *source, int64_t targets)
{
    e->reading =
        (engine_reading){.read = read, .source = source, .rows = e->options.global_batch, .targets = targets};
    AX_TRY(engine_begin_step(e));
    AX_TRY(ax_pipeline_begin(e->pipeline, (int64_t)e->step, e->options.global_batch / e->rows, true));
    AX_TRY(ax_pipeline_run(e->pipeline,
                           &(ax_pipeline_tasks){.run = {[AX_PIPE_FORWARD] = engine_start_piece,
                                                        [AX_PIPE_BACKWARD] = engine_end_piece,
                                                        [AX_PIPE_WEIGHTS] = engine_add_weight_grads},
                                                .user = e}));
    e->stepped = true;
    return AX_OK;
}

void ax_engine_set_samples(ax_engine *e, int64_t samples) { e->samples = ax_max(samples, 1); }

ax_status ax_engine_step(ax_engine *e, int64_t step, ax_read_rows_fn *read, void *source, int64_t targets,
                         const ax_hyper *hyper)
{
    AX_CHECK(e->options.optim, AX_ERR_USAGE,
             "ax_engine_step: the engine was created without an optimizer (optim in ax_engine_options), for "
             "evaluation only");
    e->step = (uint64_t)step;
    e->empty = targets == 0;
    if (e->empty) /* the gradient would be 0, but an update by it would still decay weights and move them by
                     momentum */
        return AX_OK;
    AX_TRY(engine_run_micro_batches(e, read, source, targets));
    return engine_end_step(e, targets, hyper);
}

/* Sets *out to the name of the first parameter with a weight that is not finite, or to NULL. One such weight
 * can make all gradients NaN or infinite, so find_culprit names the weight and not a gradient. */
static ax_status find_nonfinite_weights(ax_engine *e, const char **out)
{
    double *sumsq = grad_sumsq(e), *host;
    size_t bytes = (size_t)e->set->n * sizeof *host;
    *out = NULL;
    AX_TRY(ax_param_set_weight_sumsq(e->set, sumsq));
    AX_TRY(ax_calloc(1, bytes, &host));
    ax_status status = ax_copy_out(e->ctx->stream, host, sumsq, bytes);
    for (int i = 0; i < e->set->n && status == AX_OK && !*out; i++)
        if (!isfinite(host[i]))
            *out = e->set->param[i]->name;
    free(host);
    return status;
}

/* Updates the loss scale after a step in fp16. Only an overflow of the gradient lowers the scale: a lower
 * scale does not help if the loss or a weight is not finite. */
static void update_loss_scale(ax_engine *e, ax_step_result *out)
{
    out->loss_scale = e->scale.scale;
    if (e->ctx->compute != AX_F16 || !e->stepped)
        return;
    out->overflow = !out->finite && isfinite(out->loss) && !out->culprit_weights;
    if (out->finite || out->overflow)
        ax_loss_scale_update(&e->scale, out->overflow);
}

/* Sets out->culprit to the name of the first parameter with a weight that is not finite. If all weights are
 * finite, names the parameter with index `gradient`, whose gradient is not finite (< 0: none). Clears the
 * updater's skip flag, so that the next step updates the weights. */
static ax_status find_culprit(ax_engine *e, int gradient, ax_step_result *out)
{
    AX_TRY(find_nonfinite_weights(e, &out->culprit));
    out->culprit_weights = out->culprit;
    if (!out->culprit && gradient >= 0)
        out->culprit = e->set->param[gradient]->name;
    return ax_updater_resume(e->updater);
}

/* Computes the means over sparse blocks and samples of the routers' losses, the largest load of an expert,
 * and the share of choices without a place. Blocks before the first trained parameter have no backward, hence
 * no statistics: they do not count.
 */
static void sum_up_routers(const ax_engine *e, ax_step_result *out)
{
    const ax_model_config *m = &e->model->config;
    const int64_t sparse = ax_model_config_sparse_blocks(m, m->layers), experts = m->experts.n;
    double choices = 0, dropped = 0;
    int64_t blocks = 0;
    for (int64_t i = 0; e->routers && i < sparse; i++) {
        const double *stats = e->routers + i * (3 + experts), *count = stats + 2;
        double sum = 0, most = 0;
        for (int64_t k = 0; k < experts; k++) {
            sum += count[k];
            most = fmax(most, count[k]);
        }
        blocks += sum > 0;
        choices += sum;
        dropped += count[experts];
        out->balance_loss += stats[0];
        out->z_loss += stats[1];
        out->expert_load = fmax(out->expert_load, sum > 0 ? most * (double)experts / sum : 0);
    }
    out->balance_loss /= (double)(ax_max(blocks, 1) * e->samples);
    out->z_loss /= (double)(ax_max(blocks, 1) * e->samples);
    out->expert_dropped = choices > 0 ? dropped / choices : 0;
}

ax_status ax_engine_result(ax_engine *e, ax_step_result *out)
{
    ax_update_numbers now;
    AX_CHECK(e->options.optim, AX_ERR_USAGE,
             "ax_engine_result: the engine was created without an optimizer (optim in ax_engine_options), "
             "for evaluation only");
    if (e->empty && !e->stepped) {
        *out = (ax_step_result){
            .loss = NAN, .grad_norm = NAN, .finite = true, .empty = true, .loss_scale = e->scale.scale};
        return AX_OK;
    }
    AX_TRY(ax_updater_result(e->updater, &now));
    /* Replaces a negative NaN, which printf would print as "-nan". */
    *out = (ax_step_result){
        .loss = isnan(now.loss) ? NAN : now.loss, .grad_norm = now.norm, .finite = now.skip == 0};
    sum_up_routers(e, out);
    if (!out->finite)
        AX_TRY(find_culprit(e, (int)now.culprit, out));
    update_loss_scale(e, out);
    e->stepped = false;
    return AX_OK;
}

/* ---- evaluations --------------------------------------------------------------------------------- */

ax_status engine_run_evaluation(ax_engine *e, const engine_reading *reading)
{
    e->reading = *reading;
    AX_TRY(zero_sums(e));
    AX_TRY(ax_pipeline_begin(e->pipeline, (int64_t)e->step, ax_ceil_div(reading->rows, e->rows), false));
    return ax_pipeline_run(e->pipeline,
                           &(ax_pipeline_tasks){.run = {[AX_PIPE_FORWARD] = engine_eval_piece}, .user = e});
}

ax_status ax_engine_eval(ax_engine *e, ax_read_rows_fn *read, void *source, int64_t rows, double *loss_sum)
{
    AX_TRY(engine_run_evaluation(e, &(engine_reading){.read = read, .source = source, .rows = rows}));
    AX_TRY(reduce_sums(e, 1));
    return ax_copy_out(e->ctx->stream, loss_sum, e->numbers, sizeof *loss_sum);
}

ax_status engine_take_scores(ax_engine *e, int64_t micro_batch)
{
    const engine_scores *s = &e->scores;
    const int64_t first = micro_batch * e->rows + e->first, T = e->options.seq_len,
                  n = ax_max(ax_min(e->n, e->reading.rows - first), 0) * T;
    AX_TRY(ax_copy_out(e->ctx->stream, s->host, s->micro.loss, (size_t)n * ax_dtype_size(e->ctx->accum)));
    for (int64_t i = 0; i < n; i++)
        s->loss[first * T + i] = ax_load(e->ctx->accum, s->host, i);
    return ax_copy_out(e->ctx->stream, s->rank + first * T, s->micro.rank, (size_t)n * sizeof *s->rank);
}

/* Sums n numbers in host memory over the ranks that hold different rows and over the pipeline stages. */
static ax_status sum_on_host(ax_engine *e, void *data, int64_t n, ax_dtype dtype)
{
    const ax_axisset axes = sum_axes(e);
    ax_comm *comm;
    ax_work *work;
    if (!ax_grid_effective(e->ctx->grid, axes))
        return AX_OK;
    AX_TRY(ax_grid_comm(e->ctx->grid, axes, &comm));
    AX_TRY(ax_all_reduce(comm, NULL, data, n, dtype, AX_SUM, &work));
    return ax_wait(&work);
}

ax_status ax_engine_score(ax_engine *e, ax_read_rows_fn *read, void *source, int64_t rows,
                          ax_target_scores *out)
{
    const engine_scores *s = &e->scores;
    const int64_t n = rows * e->options.seq_len;
    AX_CHECK(s->device && rows <= ax_engine_eval_rows(e), AX_ERR_USAGE,
             "ax_engine_score: %lld rows of an engine %s the option `scores`, which scores at most %lld at a "
             "time",
             (long long)rows, s->device ? "with" : "without", (long long)ax_engine_eval_rows(e));
    memset(s->loss, 0, (size_t)n * sizeof *s->loss);
    memset(s->rank, 0, (size_t)n * sizeof *s->rank);
    AX_TRY(engine_run_evaluation(
        e, &(engine_reading){.read = read, .source = source, .rows = rows, .scoring = true}));
    AX_TRY(sum_on_host(e, s->loss, n, AX_F64));
    AX_TRY(sum_on_host(e, s->rank, n, AX_I32));
    *out = (ax_target_scores){s->loss, s->rank};
    return AX_OK;
}
