/* One training step and one evaluation of a model: forward, backward, reduction, clipping, update.
 * docs/step.md explains it. The same code runs on the dry device to find out how much memory it needs
 * (ax_engine_plan_make). */
#include "engine/pipeline.h"

#include "axonn/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The int32 arrays of a micro-batch, in the order of ax_rows. */
enum { TOKENS, TARGETS, DOC_START, POSITIONS, ARRAYS };

/* The tasks that repeat from step to step. Each of them is recorded in an ax_replay of its own.
 *
 * A slot has four backward tasks for each chunk of the stage: their indices 0 … 3 are sets of the bits FIRST
 * and LAST. The task of the first micro-batch of a step sets the gradients; the tasks of the others add to
 * them. In the task of the last micro-batch the reduction of gradients over ranks may start. If the pipeline
 * is joint (ax_pipeline_is_joint), a backward task runs the forward pass too; otherwise the task FORWARD runs
 * it. If weight gradients are postponed, four tasks WEIGHTS + FIRST + LAST compute them.
 *
 * The engine has the task NORM, which computes the gradient norm, and for each chunk a task EVALUATION +
 * chunk, which runs a forward pass. */
enum { FIRST = 1, LAST = 2, FORWARD = 4, WEIGHTS = 5, SLOT_TASKS = 9 };
enum { NORM, EVALUATION };

/* The memory of one piece (pipe.h), from the beginning of its forward to the end of its last task. */
typedef struct slot {
    ax_frame *frame;
    ax_batch batch;   /* its tensors are views of `device` */
    char *device;     /* ax_batch_numbers in HEAD bytes, then int32 [ARRAYS, n, seq_len] */
    ax_replay **task; /* [chunk, SLOT_TASKS] */
} slot;

/* Where the running step or evaluation reads its rows: `rows` rows with `targets` targets, over all ranks. */
typedef struct reading {
    ax_read_rows_fn *read;
    void *source;
    int64_t rows, targets;
} reading;

struct ax_engine {
    ax_ctx *ctx;
    ax_engine_options options;
    ax_model *model;
    ax_param_set *set;
    ax_pipeline *pipeline;
    slot *slot;
    int slots;
    int64_t rows;     /* rows of a micro-batch, over all ranks */
    int64_t first, n; /* this rank's rows of a micro-batch: first … first+n-1 */
    uint64_t step;    /* number of the current step */
    char *host;       /* staging copy of slot.device in host memory */
    reading reading;
    double
        *numbers; /* in device memory: the loss, then for each parameter the sum of squares of its gradient */
    ax_updater *updater;
    ax_loss_scale scale;
    ax_replay **task; /* [EVALUATION + chunks] */
    bool stepped;     /* a step has run since the last ax_engine_result */
};

/* Bytes reserved for ax_batch_numbers at the start of slot.device. The int32 arrays follow, so they are
 * aligned to HEAD bytes. */
enum { HEAD = 64 };
_Static_assert(sizeof(ax_batch_numbers) <= HEAD, "ax_batch_numbers must fit in HEAD bytes");

static size_t batch_bytes(const ax_engine *e)
{
    return HEAD + (size_t)(ARRAYS * e->n * e->options.seq_len) * sizeof(int32_t);
}

static size_t numbers_bytes(const ax_engine *e) { return (size_t)(1 + e->set->n) * sizeof(double); }

static ax_status check_options(const ax_engine_options *o, const ax_ctx *ctx, int64_t rows)
{
    ax_grid_load load = {o->model, ax_strategy_of(ctx), o->micro_batch, o->global_batch};
    AX_CHECK(o->seq_len > 0 && o->seq_len <= o->model->seq_len, AX_ERR_USAGE,
             "sequences of %lld tokens do not fit the model's %lld positions", (long long)o->seq_len,
             (long long)o->model->seq_len);
    AX_CHECK(o->micro_batch > 0 && o->global_batch > 0, AX_ERR_USAGE,
             "a global batch of %lld rows in micro-batches of %lld: both must be positive",
             (long long)o->global_batch, (long long)o->micro_batch);
    AX_TRY(ax_model_check_grid(&load, ax_grid_sizes(ctx->grid), ax_grid_ranks(ctx->grid)));
    int64_t micro_batches = o->global_batch / rows, stages = ax_grid_axis_size(ctx->grid, AX_PIPE);
    AX_CHECK(!o->optim || ax_pipe_fits(ctx->parallel.pipe.schedule, stages, micro_batches), AX_ERR_USAGE,
             "%lld micro-batches are not a multiple of the %lld pipeline stages, as the schedule interleaved "
             "needs",
             (long long)micro_batches, (long long)stages);
    /* The bytes of a micro-batch must fit in 64 bits. Their upper bound is tokens · (layers + 1) · widest dim
     * · 64 bytes, because no layer stores more than 64 bytes per token and element of the widest dim. */
    int64_t heads = o->model->heads * ax_model_config_head_dim(o->model), bytes,
            widest = ax_max(ax_max(o->model->vocab, o->model->ffn), ax_max(o->model->hidden, heads));
    AX_CHECK(!__builtin_mul_overflow(rows, o->seq_len, &bytes) &&
                 !__builtin_mul_overflow(bytes, 64 * (o->model->layers + 1) * widest, &bytes),
             AX_ERR_USAGE,
             "micro-batches of %lld rows of %lld tokens need more memory than 64 bits can count",
             (long long)rows, (long long)o->seq_len);
    return AX_OK;
}

/* Allocates s->device, and makes the tensors of s->batch views of it. */
static ax_status make_batch(ax_engine *e, const ax_tensor *like, slot *s)
{
    AX_TRY(ax_ctx_alloc(e->ctx, batch_bytes(e), (void **)&s->device));
    ax_tensor *const views[ARRAYS] = {&s->batch.tokens, &s->batch.targets, &s->batch.doc_start,
                                      &s->batch.positions};
    for (int i = 0; i < ARRAYS; i++) {
        *views[i] = *like;
        views[i]->data = (int32_t *)(s->device + HEAD) + i * e->n * e->options.seq_len;
    }
    s->batch.now = (const ax_batch_numbers *)s->device;
    if (e->options.whole_rows)
        s->batch.doc_start.data = NULL;
    return AX_OK;
}

static int chunks_of(const ax_engine *e) { return ax_pipeline_stage(e->pipeline)->chunks; }

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

static ax_status make_frame(ax_engine *e, const ax_engine_plan *plan, size_t frame_bytes, slot *s)
{
    if (s != e->slot)
        return ax_frame_create_slot(e->slot[0].frame, &s->frame);
    return plan ? ax_frame_create_planned(e->ctx, plan->frame, &s->frame)
                : ax_frame_create(e->ctx, frame_bytes, &s->frame);
}

/* Creates the slots. On the dry device creates only one: all slots need the same memory. */
static ax_status make_slots(ax_engine *e, const ax_engine_plan *plan, size_t frame_bytes)
{
    ax_layout layout = ax_layout_of_roles(e->ctx, (ax_role[]){AX_ROLE_BATCH, AX_ROLE_NONE}, 2);
    ax_tensor like = ax_tensor_make(AX_I32, 2, (int64_t[]){e->rows, e->options.seq_len}, NULL, &layout);
    ax_tensor_range(e->ctx->grid, &like, 0, ax_grid_rank(e->ctx->grid), &e->first, &e->n);
    AX_TRY(ax_calloc(1, batch_bytes(e), &e->host));
    int slots = (int)ax_pipeline_stage(e->pipeline)->slots;
    AX_TRY(ax_calloc((size_t)slots, sizeof *e->slot, &e->slot));
    e->slots = e->ctx->dev->ops.launch ? 1 : slots;
    for (int i = 0; i < e->slots; i++) {
        AX_TRY(make_frame(e, plan, frame_bytes, &e->slot[i]));
        AX_TRY(make_batch(e, &like, &e->slot[i]));
        AX_TRY(make_tasks(e, chunks_of(e) * SLOT_TASKS, &e->slot[i].task));
    }
    return AX_OK;
}

static ax_status build(ax_engine *e, const ax_engine_plan *plan, size_t frame_bytes)
{
    const ax_engine_options *o = &e->options;
    e->rows = o->micro_batch * ax_grid_group_size(e->ctx->grid, ax_batch_axes(e->ctx));
    AX_TRY(check_options(o, e->ctx, e->rows));
    const ax_model_use use = {.recompute = o->recompute, .positions = o->seq_len};
    AX_TRY(ax_model_create(e->ctx, o->model, &use, &e->model));
    AX_TRY(ax_layer_param_set(e->model->root, o->optim ? o->optim->slots : -1, &e->set));
    if (plan)
        AX_TRY(ax_param_set_learn_orders(e->set, plan->orders));
    AX_TRY(
        ax_pipeline_create(e->model, e->rows, o->seq_len, o->global_batch / e->rows, o->optim, &e->pipeline));
    AX_TRY(make_slots(e, plan, frame_bytes));
    AX_TRY(make_tasks(e, EVALUATION + chunks_of(e), &e->task));
    AX_TRY(ax_ctx_alloc(e->ctx, numbers_bytes(e), (void **)&e->numbers));
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

static void destroy_slot(ax_engine *e, slot *s)
{
    destroy_tasks(chunks_of(e) * SLOT_TASKS, s->task);
    ax_frame_destroy(&s->frame);
    if (s->device)
        ax_ctx_free(e->ctx, s->device, batch_bytes(e));
}

void ax_engine_destroy(ax_engine **engine)
{
    ax_engine *e = *engine;
    if (!e)
        return;
    if (e->pipeline)
        destroy_tasks(EVALUATION + chunks_of(e), e->task);
    for (int i = e->slots - 1; i >= 0;
         i--) /* last to first: the first slot owns the memory that all slots share */
        destroy_slot(e, &e->slot[i]);
    free(e->slot);
    ax_pipeline_destroy(&e->pipeline);
    if (e->numbers)
        ax_ctx_free(e->ctx, e->numbers, numbers_bytes(e));
    ax_updater_destroy(&e->updater);
    ax_param_set_destroy(&e->set);
    ax_model_destroy(&e->model);
    free(e->host);
    free(e);
    *engine = NULL;
}

ax_param_set *ax_engine_params(ax_engine *engine) { return engine->set; }
ax_model *ax_engine_model(ax_engine *engine) { return engine->model; }
ax_frame *ax_engine_frame(ax_engine *engine) { return engine->slot[0].frame; }
double ax_engine_waited(const ax_engine *engine) { return ax_pipeline_waited(engine->pipeline); }
ax_loss_scale *ax_engine_loss_scale(ax_engine *engine) { return &engine->scale; }
int64_t ax_engine_rows(const ax_engine *engine) { return engine->rows; }

/* Reads this rank's rows of a micro-batch and copies them to s->device. Rows beyond r->rows, the last row of
 * the step, are filled with masked targets. */
static ax_status load_rows(ax_engine *e, int64_t micro_batch, slot *s, double loss_scale)
{
    const reading *r = &e->reading;
    int64_t start = micro_batch * e->rows, t = e->options.seq_len, size = e->n * t, from = start + e->first,
            end = ax_min(from + e->n, r->rows);
    int32_t *array = (int32_t *)(e->host + HEAD);
    ax_rows rows = {array, array + size, array + 2 * size, array + 3 * size};
    int64_t have = ax_max(end - from, 0);
    *(ax_batch_numbers *)e->host =
        (ax_batch_numbers){.step = e->step, .first_row = start * t, .loss_scale = loss_scale};
    if (have > 0)
        AX_TRY(r->read(r->source, from, end, &rows));
    for (int i = 0; i < ARRAYS; i++)
        memset(array + i * size + have * t, i == TARGETS ? -1 : 0,
               (size_t)((e->n - have) * t) * sizeof(int32_t));
    return ax_copy_in(e->ctx->stream, s->device, e->host, batch_bytes(e));
}

/* A task of slot `s`. If `s` is NULL: a task of the engine. */
typedef ax_status task_fn(ax_engine *e, slot *s, ax_pipe_piece piece);

/* Runs a task, and records its kernel launches in `replay`. If they are the same as in the last run of this
 * task, the device replays the recorded launches instead (on a GPU: as CUDA graphs). */
static ax_status run_task(ax_engine *e, ax_replay *replay, task_fn *work, slot *s, ax_pipe_piece piece)
{
    ax_stream *stream = e->ctx->stream;
    AX_TRY(ax_replay_begin(stream, replay));
    return ax_replay_end(stream, work(e, s, piece));
}

static ax_status zero_loss(ax_engine *e)
{
    return ax_run_fill(e->ctx->stream, &(ax_fill_args){.n = 1, .value = 0, .y = e->numbers, .dtype = AX_F64});
}

/* Sums the loss over the ranks that hold different rows and over the pipeline stages. Only the last stage has
 * a loss, the others add 0; afterwards all have the sum. */
static ax_status sum_loss(ax_engine *e)
{
    return ax_reduce_axes(e->ctx, (ax_axisset)(ax_batch_axes(e->ctx) | 1 << AX_PIPE), e->numbers, 1, AX_F64,
                          AX_SUM);
}

static ax_status begin_step(ax_engine *e)
{
    AX_TRY(ax_param_set_zero_grad(e->set));
    return zero_loss(e);
}

/* ---- tasks --------------------------------------------------------------------------------------- */

/* Writes the name of the frame's task `name` for a chunk, and returns it. Chunks have different layers, hence
 * tasks of their own. */
static const char *task_of(const char *name, int chunk, char out[24])
{
    if (chunk)
        snprintf(out, 24, "%s.%d", name, chunk);
    else
        snprintf(out, 24, "%s", name);
    return out;
}

/* Runs the layers of a chunk forward. Their input is the activation of the chunk before, or the tokens if the
 * chunk is the first part of the model. The result is sent to the chunk after it; at the end of the model it
 * is the loss. */
static ax_status run_forward(ax_engine *e, slot *s, ax_pipe_piece piece)
{
    ax_tensor y;
    if (!ax_model_begins(e->model, piece.chunk))
        AX_TRY(ax_pipeline_take(e->pipeline, AX_MESSAGE_ACTIVATION, s->frame, &s->batch.x));
    if (ax_model_ends(e->model, piece.chunk))
        return ax_model_loss(e->model, s->frame, e->numbers);
    AX_TRY(ax_model_forward(e->model, piece.chunk, s->frame, &y));
    return ax_pipeline_send(e->pipeline, AX_MESSAGE_ACTIVATION, s->frame, piece, &y);
}

static ax_status evaluate(ax_engine *e, slot *s, ax_pipe_piece piece)
{
    char name[24];
    AX_TRY(ax_frame_begin(s->frame, task_of("eval", piece.chunk, name), AX_MODE_EVAL, &s->batch));
    return run_forward(e, s, piece);
}

static ax_status train_forward(ax_engine *e, slot *s, ax_pipe_piece piece)
{
    char name[24];
    AX_TRY(ax_frame_begin(s->frame, task_of("train", piece.chunk, name), AX_MODE_TRAIN, &s->batch));
    return run_forward(e, s, piece);
}

/* Runs the forward pass alone: tasks of other slots may run before the backward pass of this slot. */
static ax_status forward_part(ax_engine *e, slot *s, ax_pipe_piece piece)
{
    char name[24];
    AX_TRY(train_forward(e, s, piece));
    return ax_frame_next_part(s->frame, task_of("backward", piece.chunk, name));
}

static bool postpones(const ax_engine *e) { return ax_pipeline_stage(e->pipeline)->postpone; }

static ax_status run_backward(ax_engine *e, slot *s, ax_pipe_piece piece)
{
    ax_tensor dy, dx;
    ax_frame_set_deferring(s->frame, postpones(e));
    if (!ax_model_ends(e->model, piece.chunk))
        AX_TRY(ax_pipeline_take(e->pipeline, AX_MESSAGE_GRADIENT, s->frame, &dy));
    AX_TRY(ax_model_backward(e->model, piece.chunk, s->frame, &dy, &dx));
    return ax_model_begins(e->model, piece.chunk)
               ? AX_OK
               : ax_pipeline_send(e->pipeline, AX_MESSAGE_GRADIENT, s->frame, piece, &dx);
}

/* Runs the backward pass as a part of its own. Before it returns, it waits for the transfers that still use
 * the memory that all slots share (ax_frame_at_end, which ax_frame_next_part calls too), because another slot
 * may use this memory next. */
static ax_status backward_part(ax_engine *e, slot *s, ax_pipe_piece piece)
{
    char name[24];
    AX_TRY(run_backward(e, s, piece));
    return postpones(e) ? ax_frame_next_part(s->frame, task_of("weights", piece.chunk, name))
                        : ax_frame_at_end(s->frame, NULL, NULL);
}

static ax_status weights_part(ax_engine *e, slot *s, ax_pipe_piece piece)
{
    (void)e, (void)piece;
    AX_TRY(ax_frame_run_deferred(s->frame));
    return ax_frame_at_end(s->frame, NULL, NULL);
}

/* Runs both passes as one task. If there are other slots, waits as backward_part does. */
static ax_status forward_backward(ax_engine *e, slot *s, ax_pipe_piece piece)
{
    AX_TRY(train_forward(e, s, piece));
    AX_TRY(run_backward(e, s, piece));
    return e->slots > 1 ? ax_frame_at_end(s->frame, NULL, NULL) : AX_OK;
}

/* Loads a micro-batch. Also runs its forward pass, unless forward and backward are one task. */
static ax_status start_piece(void *engine, ax_pipe_piece piece, int index)
{
    ax_engine *e = engine;
    slot *s = &e->slot[index];
    double scale = e->scale.scale / (double)ax_max(e->reading.targets, 1);
    AX_TRY(load_rows(e, piece.micro_batch, s, scale));
    return ax_pipeline_is_joint(e->pipeline, piece.chunk)
               ? AX_OK
               : run_task(e, s->task[piece.chunk * SLOT_TASKS + FORWARD], forward_part, s, piece);
}

/* Runs a task that adds to gradients: a backward, or postponed weight gradients. */
static ax_status run_gradient_task(ax_engine *e, int task, task_fn *work, slot *s, ax_pipe_piece piece)
{
    bool first = piece.micro_batch == 0, last = (piece.micro_batch + 1) * e->rows == e->options.global_batch;
    if (last || chunks_of(e) > 1 || postpones(e))
        AX_TRY(ax_param_set_last_micro_batch(e->set, last));
    int at = piece.chunk * SLOT_TASKS + task + (first ? FIRST : 0) + (last ? LAST : 0);
    return run_task(e, s->task[at], work, s, piece);
}

static ax_status end_piece(void *engine, ax_pipe_piece piece, int index)
{
    ax_engine *e = engine;
    return run_gradient_task(
        e, 0, ax_pipeline_is_joint(e->pipeline, piece.chunk) ? forward_backward : backward_part,
        &e->slot[index], piece);
}

static ax_status add_weight_grads(void *engine, ax_pipe_piece piece, int index)
{
    ax_engine *e = engine;
    return run_gradient_task(e, WEIGHTS, weights_part, &e->slot[index], piece);
}

static ax_status eval_piece(void *engine, ax_pipe_piece piece, int index)
{
    ax_engine *e = engine;
    slot *s = &e->slot[index];
    AX_TRY(load_rows(e, piece.micro_batch, s, 1));
    return run_task(e, e->task[EVALUATION + piece.chunk], evaluate, s, piece);
}

/* ---- steps --------------------------------------------------------------------------------------- */

/* Completes the reductions of the gradients and of the loss over ranks, then computes for each parameter the
 * sum of squares of its gradient. */
static ax_status compute_grad_sumsq(ax_engine *e, slot *s, ax_pipe_piece piece)
{
    (void)s, (void)piece;
    AX_TRY(ax_param_set_sync_grad(e->set));
    AX_TRY(sum_loss(e));
    return ax_param_set_grad_sumsq(e->set, e->numbers + 1);
}

/* Computes the gradient norm, clips the gradients, and updates the weights if loss and norm are finite. The
 * device makes that decision, so the host does not wait for it. */
static ax_status end_step(ax_engine *e, int64_t targets, const ax_hyper *hyper)
{
    AX_TRY(run_task(e, e->task[NORM], compute_grad_sumsq, NULL, (ax_pipe_piece){0}));
    AX_TRY(ax_updater_clip(e->updater, e->numbers + 1, e->numbers, targets, e->scale.scale, e->options.clip));
    return ax_updater_step(e->updater, hyper);
}

ax_status ax_engine_step(ax_engine *e, int64_t step, ax_read_rows_fn *read, void *source, int64_t targets,
                         const ax_hyper *hyper)
{
    AX_CHECK(e->options.optim, AX_ERR_USAGE, "this engine was made for evaluation only");
    e->step = (uint64_t)step;
    e->reading = (reading){read, source, e->options.global_batch, targets};
    AX_TRY(begin_step(e));
    AX_TRY(ax_pipeline_begin(e->pipeline, step, e->options.global_batch / e->rows, true));
    AX_TRY(ax_pipeline_run(e->pipeline, &(ax_pipeline_tasks){.run = {[AX_PIPE_FORWARD] = start_piece,
                                                                     [AX_PIPE_BACKWARD] = end_piece,
                                                                     [AX_PIPE_WEIGHTS] = add_weight_grads},
                                                             .user = e}));
    e->stepped = true;
    return end_step(e, targets, hyper);
}

/* Sets *out to the name of the first parameter with a weight that is not finite, or to NULL. One such weight
 * makes all gradients NaN or infinite, so it is the cause. */
static ax_status find_nonfinite_weights(ax_engine *e, const char **out)
{
    double *sumsq = e->numbers + 1, *host;
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

/* Updates the loss scale after a step in fp16. Only an overflow of the gradient lowers the scale: a lower one
 * does not help if the loss or a weight is not finite. */
static void update_loss_scale(ax_engine *e, ax_step_result *out)
{
    out->loss_scale = e->scale.scale;
    if (e->ctx->compute != AX_F16 || !e->stepped)
        return;
    out->overflow = !out->finite && isfinite(out->loss) && !out->culprit_weights;
    if (out->finite || out->overflow)
        ax_loss_scale_update(&e->scale, out->overflow);
    e->stepped = false;
}

/* Sets out->culprit to the parameter whose weights or, if all weights are finite, whose gradient is not
 * finite; `gradient` is the index of the latter, < 0 if there is none. Clears the updater's skip flag, so
 * that the next step is applied. */
static ax_status find_culprit(ax_engine *e, int gradient, ax_step_result *out)
{
    AX_TRY(find_nonfinite_weights(e, &out->culprit));
    out->culprit_weights = out->culprit;
    if (!out->culprit && gradient >= 0)
        out->culprit = e->set->param[gradient]->name;
    return ax_updater_resume(e->updater);
}

ax_status ax_engine_result(ax_engine *e, ax_step_result *out)
{
    ax_update_numbers now;
    AX_CHECK(e->options.optim, AX_ERR_USAGE, "this engine was made for evaluation only");
    AX_TRY(ax_updater_result(e->updater, &now));
    /* Replaces a negative NaN, which printf would print as "-nan". */
    *out = (ax_step_result){
        .loss = isnan(now.loss) ? NAN : now.loss, .grad_norm = now.norm, .finite = now.skip == 0};
    if (!out->finite)
        AX_TRY(find_culprit(e, (int)now.culprit, out));
    update_loss_scale(e, out);
    return AX_OK;
}

ax_status ax_engine_eval(ax_engine *e, ax_read_rows_fn *read, void *source, int64_t rows, double *loss_sum)
{
    e->reading = (reading){.read = read, .source = source, .rows = rows};
    AX_TRY(zero_loss(e));
    AX_TRY(ax_pipeline_begin(e->pipeline, (int64_t)e->step, ax_ceil_div(rows, e->rows), false));
    AX_TRY(ax_pipeline_run(e->pipeline,
                           &(ax_pipeline_tasks){.run = {[AX_PIPE_FORWARD] = eval_piece}, .user = e}));
    AX_TRY(sum_loss(e));
    return ax_copy_out(e->ctx->stream, loss_sum, e->numbers, sizeof *loss_sum);
}

/* ---- planning ------------------------------------------------------------------------------------ */

size_t ax_memory_total(const ax_memory *m)
{
    return m->weights + m->copies + m->gradients + m->optimizer + m->activations + m->batch + m->tables +
           m->cache + m->messages + m->workspace;
}

ax_status ax_rows_none(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    (void)source;
    (void)first;
    (void)end;
    (void)out;
    return AX_OK;
}

/* Runs the tasks of micro-batch `index` of a step that has `of` micro-batches, one chunk after the other. */
static ax_status dry_run_micro_batch(ax_engine *e, int64_t index, int64_t of)
{
    e->reading = (reading){ax_rows_none, NULL, of * e->rows, 1};
    AX_TRY(ax_pipeline_begin(e->pipeline, 0, 1, true));
    for (int chunk = 0; chunk < chunks_of(e); chunk++) {
        AX_TRY(start_piece(e, (ax_pipe_piece){index, chunk}, 0));
        AX_TRY(end_piece(e, (ax_pipe_piece){index, chunk}, 0));
        if (postpones(e))
            AX_TRY(add_weight_grads(e, (ax_pipe_piece){index, chunk}, 0));
    }
    return ax_pipeline_end(e->pipeline);
}

/* Runs each task twice on the dry device. The first run learns in which order weights are acquired, the
 * second records the memory.
 *
 * All micro-batches need the same memory except the first of a step, which sets gradients: adding to
 * gradients, as later ones do, needs more. So the second run takes the last micro-batch of a step, and the
 * dry step has two micro-batches if the real step has several. */
static ax_status dry_run_tasks(ax_engine *e)
{
    double loss;
    bool trains = e->options.optim, several = e->options.global_batch > e->rows;
    int64_t n = several ? 2 : 1;
    e->options.global_batch = n * e->rows;
    if (trains)
        AX_TRY(begin_step(e));
    if (trains)
        AX_TRY(dry_run_micro_batch(e, 0, n));
    AX_TRY(ax_engine_eval(e, ax_rows_none, NULL, e->rows, &loss));
    ax_frame_forget(e->slot[0].frame);
    if (trains && !several)
        AX_TRY(begin_step(e));
    if (trains)
        AX_TRY(dry_run_micro_batch(e, n - 1, n));
    if (trains)
        AX_TRY(end_step(e, 1, &(ax_hyper){.step = 1}));
    return ax_engine_eval(e, ax_rows_none, NULL, e->rows, &loss);
}

static ax_status dry_run(ax_engine *e, ax_engine_plan *out)
{
    AX_TRY(dry_run_tasks(e));
    AX_TRY(ax_param_set_take_orders(e->set, &out->orders));
    int slots = (int)ax_pipeline_stage(e->pipeline)->slots;
    AX_TRY(ax_frame_plan_create(e->slot[0].frame, slots, &out->frame));
    out->memory.weights = e->set->bytes_master;
    out->memory.copies = e->set->bytes_use;
    out->memory.gradients = e->set->bytes_grad + e->set->bytes_tied;
    out->memory.optimizer = e->set->bytes_state;
    out->memory.activations = ax_frame_plan_bytes(out->frame);
    out->memory.batch = (size_t)(1 + slots) * batch_bytes(e) + numbers_bytes(e);
    out->memory.tables = ax_layer_table_bytes(e->model->root);
    out->memory.messages = ax_pipeline_bytes(e->pipeline);
    if (e->updater)
        out->memory.batch += ax_updater_bytes(e->updater);
    return AX_OK;
}

ax_status ax_engine_plan_make(const ax_engine_options *options, ax_comm *world, ax_grid_size grid,
                              const ax_parallel *parallel, const char *device, int threads, ax_dtype compute,
                              ax_engine_plan *out)
{
    *out = (ax_engine_plan){0};
    ax_ctx *dry;
    ax_engine *engine = NULL;
    AX_TRY(ax_ctx_create(world, grid, "dry", threads, compute, 0, &dry));
    dry->parallel = parallel ? *parallel : ax_parallel_default;
    ax_status status = ax_engine_create(dry, options, NULL, 0, &engine);
    if (status == AX_OK)
        status = dry_run(engine, out);
    if (status == AX_OK)
        status = ax_grid_used(dry->grid, &out->axes);
    if (status == AX_OK)
        status = ax_device_workspace(device, threads, &out->memory.workspace);
    ax_engine_destroy(&engine);
    ax_ctx_destroy(&dry);
    if (status != AX_OK)
        ax_engine_plan_fini(out);
    return status;
}

void ax_engine_plan_fini(ax_engine_plan *plan)
{
    ax_frame_plan_destroy(&plan->frame);
    ax_param_orders_destroy(&plan->orders);
    free(plan->axes);
    *plan = (ax_engine_plan){0};
}
