/* The tasks of an engine: forward, backward and weight gradients of one micro-batch in one chunk of this
 * rank's pipeline stage (a chunk: adjacent blocks of the model). */
#include "engine/engine_private.h"

#include <stdio.h>
#include <string.h>

/* Reads this rank's rows of a micro-batch and copies them to s->device. Rows with an index of r->rows or more
 * do not exist in this step or evaluation: they are padding, and their targets are masked. */
static ax_status load_rows(ax_engine *e, int64_t micro_batch, engine_slot *s, double loss_scale)
{
    const engine_reading *r = &e->reading;
    int64_t start = micro_batch * e->rows, t = e->options.seq_len, size = e->n * t, from = start + e->first,
            end = ax_min(from + e->n, r->rows);
    int32_t *array = (int32_t *)(e->host + HEAD);
    ax_rows rows = {array, array + size, array + 2 * size, array + 3 * size};
    int64_t have = ax_max(end - from, 0);
    *(ax_batch_numbers *)e->host = (ax_batch_numbers){.step = e->step,
                                                      .first_row = start * t,
                                                      .loss_scale = loss_scale,
                                                      .sample_scale = e->scale.scale / (double)e->samples};
    if (have > 0)
        AX_TRY(r->read(r->source, from, end, &rows));
    for (int i = 0; i < ARRAYS; i++)
        memset(array + i * size + have * t, i == TARGETS || i == TOKENS ? -1 : 0,
               (size_t)((e->n - have) * t) * sizeof(int32_t));
    return ax_copy_in(e->ctx->stream, s->device, e->host, engine_batch_bytes(e));
}

ax_status engine_run_task(ax_engine *e, ax_replay *replay, engine_task_fn *work, engine_slot *s,
                          ax_pipe_piece piece)
{
    ax_stream *stream = e->ctx->stream;
    AX_TRY(ax_replay_begin(stream, replay));
    return ax_replay_end(stream, work(e, s, piece));
}

/* ---- forward and backward ------------------------------------------------------------------------ */

const char *engine_task_name(const char *name, int chunk, char out[24])
{
    if (chunk)
        snprintf(out, 24, "%s.%d", name, chunk);
    else
        snprintf(out, 24, "%s", name);
    return out;
}

/* Runs the layers of a chunk forward; the last chunk of the model adds its loss to e->numbers. */
static ax_status run_forward(ax_engine *e, engine_slot *s, ax_pipe_piece piece)
{
    AX_TRY(ax_pipeline_forward(e->pipeline, piece, s->frame, &s->batch));
    return ax_model_ends(e->model, piece.chunk)
               ? ax_model_loss(e->model, s->frame, e->numbers, e->reading.scoring ? &e->scores.micro : NULL)
               : AX_OK;
}

static ax_status evaluate(ax_engine *e, engine_slot *s, ax_pipe_piece piece)
{
    char name[24];
    const char *task = e->reading.scoring ? "score" : "eval";
    AX_TRY(ax_frame_begin(s->frame, engine_task_name(task, piece.chunk, name), AX_MODE_EVAL, &s->batch));
    return run_forward(e, s, piece);
}

static ax_status train_forward(ax_engine *e, engine_slot *s, ax_pipe_piece piece)
{
    char name[24];
    AX_TRY(ax_frame_begin(s->frame, engine_task_name("train", piece.chunk, name), AX_MODE_TRAIN, &s->batch));
    return run_forward(e, s, piece);
}

/* Runs the forward pass as a task of its own: tasks of other slots may run before the backward pass of this
 * slot. */
static ax_status forward_part(ax_engine *e, engine_slot *s, ax_pipe_piece piece)
{
    char name[24];
    AX_TRY(train_forward(e, s, piece));
    return ax_frame_next_part(s->frame, engine_task_name("backward", piece.chunk, name));
}

static ax_status run_backward(ax_engine *e, engine_slot *s, ax_pipe_piece piece)
{
    ax_tensor dy, dx;
    ax_frame_set_deferring(s->frame, engine_postpones(e));
    if (!ax_model_ends(e->model, piece.chunk))
        AX_TRY(ax_pipeline_take(e->pipeline, AX_MESSAGE_GRADIENT, s->frame, &dy));
    AX_TRY(ax_model_backward(e->model, piece.chunk, s->frame, &dy, &dx));
    return ax_model_begins(e->model, piece.chunk)
               ? AX_OK
               : ax_pipeline_send(e->pipeline, AX_MESSAGE_GRADIENT, s->frame, piece, &dx);
}

/* Runs the backward pass as a task of its own. Before it returns, it waits for the transfers between ranks
 * that still use the memory that all slots share, because another slot may use this memory next
 * (ax_frame_at_end and ax_frame_next_part call the function that was registered with the frame to wait for
 * them). */
static ax_status backward_part(ax_engine *e, engine_slot *s, ax_pipe_piece piece)
{
    char name[24];
    AX_TRY(run_backward(e, s, piece));
    return engine_postpones(e) ? ax_frame_next_part(s->frame, engine_task_name("weights", piece.chunk, name))
                               : ax_frame_at_end(s->frame, NULL, NULL);
}

static ax_status weights_part(ax_engine *e, engine_slot *s, ax_pipe_piece piece)
{
    (void)e, (void)piece;
    AX_TRY(ax_frame_run_deferred(s->frame));
    return ax_frame_at_end(s->frame, NULL, NULL);
}

/* Runs the forward and the backward pass as one task. If there are other slots, which may use the shared
 * memory next, waits for the transfers between ranks that still use this memory, as backward_part does. */
static ax_status forward_backward(ax_engine *e, engine_slot *s, ax_pipe_piece piece)
{
    AX_TRY(train_forward(e, s, piece));
    AX_TRY(run_backward(e, s, piece));
    return e->slots > 1 ? ax_frame_at_end(s->frame, NULL, NULL) : AX_OK;
}

/* ---- the tasks of a pipeline --------------------------------------------------------------------- */

ax_status engine_start_piece(void *engine, ax_pipe_piece piece, int index)
{
    ax_engine *e = engine;
    engine_slot *s = &e->slot[index];
    double scale = e->scale.scale / (double)ax_max(e->reading.targets, 1);
    AX_TRY(load_rows(e, piece.micro_batch, s, scale));
    return ax_pipeline_is_joint(e->pipeline, piece.chunk)
               ? AX_OK
               : engine_run_task(e, s->task[piece.chunk * SLOT_TASKS + FORWARD], forward_part, s, piece);
}

/* Runs a task that adds to the gradients of parameters: a backward pass, or postponed weight gradients. */
static ax_status run_gradient_task(ax_engine *e, int task, engine_task_fn *work, engine_slot *s,
                                   ax_pipe_piece piece)
{
    bool first = piece.micro_batch == 0, last = (piece.micro_batch + 1) * e->rows == e->options.global_batch;
    if (last || engine_chunks(e) > 1 || engine_postpones(e))
        AX_TRY(ax_param_set_last_micro_batch(e->set, last && !engine_reduces_late(e)));
    int at = piece.chunk * SLOT_TASKS + task + (first ? FIRST : 0) + (last ? LAST : 0);
    return engine_run_task(e, s->task[at], work, s, piece);
}

ax_status engine_end_piece(void *engine, ax_pipe_piece piece, int index)
{
    ax_engine *e = engine;
    return run_gradient_task(
        e, 0, ax_pipeline_is_joint(e->pipeline, piece.chunk) ? forward_backward : backward_part,
        &e->slot[index], piece);
}

ax_status engine_add_weight_grads(void *engine, ax_pipe_piece piece, int index)
{
    ax_engine *e = engine;
    return run_gradient_task(e, WEIGHTS, weights_part, &e->slot[index], piece);
}

ax_status engine_eval_piece(void *engine, ax_pipe_piece piece, int index)
{
    ax_engine *e = engine;
    engine_slot *s = &e->slot[index];
    const bool scoring = e->reading.scoring;
    AX_TRY(load_rows(e, piece.micro_batch, s, 1));
    AX_TRY(engine_run_task(e, e->task[EVALUATION + (scoring ? engine_chunks(e) : 0) + piece.chunk], evaluate,
                           s, piece));
    return scoring && ax_model_ends(e->model, piece.chunk) ? engine_take_scores(e, piece.micro_batch) : AX_OK;
}
