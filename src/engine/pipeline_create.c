/* Creates and destroys the state of a pipeline stage: which ranks exchange messages and decisions, and the
 * buffers of messages. */
#include "engine/pipeline_private.h"

#include <stdlib.h>

/* Returns all grid axes of size above 1, except pipe and, if `data` is false, data: of data, if experts are
 * divided along a factor of it, the other factor. */
static ax_axisset axes_of(const ax_grid *grid, bool data)
{
    const ax_factoring *experts = ax_grid_experts(grid);
    const ax_axisset all = (ax_axisset)((1u << ax_grid_axes(grid)) - 1) & (ax_axisset) ~(1u << AX_PIPE),
                     apart = (ax_axisset)(1u << (experts ? experts->major : AX_DATA));
    return ax_grid_effective(grid, all) & (ax_axisset) ~(data ? 0 : ax_grid_effective(grid, apart));
}

/* Returns the axes along which ranks run collectives within a task, so that they must run their tasks in the
 * same order: x, y, z and data.exp. Returns 0 if the schedule fixes the order. With ZeRO 2 and 3 these axes
 * include data, because gradients and weights are then reduced and gathered along data within a task. They
 * also include data with several chunks and postponed weight gradients: the last backward of one chunk and
 * the last weight gradients of another chunk both start reductions along data, and either task may run first.
 */
static ax_axisset group_axes(const ax_pipeline *p)
{
    const ax_pipe_stage *s = &p->stage;
    bool data = p->ctx->parallel.zero >= 2 || (s->chunks > 1 && s->postpone);
    return ax_pipe_is_fixed(s) ? 0 : axes_of(p->ctx->grid, data);
}

/* Returns the grid axes along which all ranks have the same box of an activation. */
static ax_axisset copies_axes(const ax_pipeline *p)
{
    const ax_grid *grid = p->ctx->grid;
    ax_axisset split = ax_layout_split_axes(&p->like.layout, p->like.ndim);
    return axes_of(grid, true) & (ax_axisset)~ax_grid_effective(grid, split);
}

/* Returns how many messages can be in flight. A direction that receives counts twice: the next message may
 * arrive while the last message is still copied to the device. */
static int64_t most_messages(const ax_pipeline *p)
{
    int64_t n = 0;
    for (int w = 0; w < DIRECTIONS; w++) {
        const direction *y = &p->direction[w];
        n += (y->from >= 0 ? 2 : 0) + (y->to >= 0 ? y->buffers : 0);
    }
    return n;
}

ax_status ax_pipeline_connect(ax_pipeline *p)
{
    ax_comm *comm;
    ax_grid *grid = p->ctx->grid;
    if (p->stage.stages == 1 || p->comm)
        return AX_OK;
    if (group_axes(p))
        AX_TRY(ax_grid_comm(grid, group_axes(p), &p->group));
    if (copies_axes(p))
        AX_TRY(ax_grid_comm(grid, copies_axes(p), &p->copies));
    AX_TRY(ax_grid_comm(grid, 1 << AX_PIPE, &comm));
    AX_TRY(ax_comm_reserve_messages(comm, p->ctx->dev, pipeline_part_bytes(p), most_messages(p)));
    p->comm = comm;
    return AX_OK;
}

size_t pipeline_part_bytes(const ax_pipeline *p)
{
    return (size_t)ax_round_up(ax_max(1, p->part) * (int64_t)ax_dtype_size(p->like.dtype), 64);
}

/* Creates the buffers of messages. A message needs a buffer of its sender until the receiver has taken the
 * message. The number of such messages is at most ax_pipe_stage.flight, the number of pieces that have run
 * forward but not backward: for activations `flight` of this stage, for gradients `flight` of the previous
 * stage. With several chunks the stages form a ring. In an evaluation, the last of P stages then sends the
 * activations of P micro-batches to the first stage while the first stage may still run its first chunk. With
 * fewer than P buffers the ring could deadlock. */
static ax_status make_directions(ax_pipeline *p, bool trains)
{
    const ax_pipe_stage *s = &p->stage;
    bool ring = s->chunks > 1;
    int before = s->stage ? s->stage - 1 : ring ? s->stages - 1 : -1;
    int after = !is_last(p) ? s->stage + 1 : ring ? 0 : -1;
    int64_t flight_before = ax_model_stage(p->model, ax_max(before, 0), s->micro_batches).flight;
    direction *f = &p->direction[ACTIVATION], *b = &p->direction[GRADIENT];
    *f = (direction){.from = before, .to = after, .buffers = ring ? ax_max(s->flight, s->stages) : s->flight};
    *b = (direction){.from = trains ? after : -1, .to = trains ? before : -1, .buffers = flight_before};
    int64_t buffers = 0, at = 0;
    for (int w = 0; w < DIRECTIONS; w++)
        buffers += (p->direction[w].from >= 0) + (p->direction[w].to >= 0 ? p->direction[w].buffers : 0);
    p->bytes = (size_t)buffers * pipeline_part_bytes(p);
    if (p->bytes)
        AX_TRY(ax_ctx_alloc(p->ctx, AX_MEMORY_MESSAGES, p->bytes, (void **)&p->memory));
    for (int w = 0; w < DIRECTIONS; w++) {
        direction *y = &p->direction[w];
        AX_TRY(ax_calloc((size_t)y->buffers, sizeof *y->sends, &y->sends));
        y->in = p->memory + (size_t)at * pipeline_part_bytes(p);
        at += y->from >= 0;
        y->out = p->memory + (size_t)at * pipeline_part_bytes(p);
        at += y->to >= 0 ? y->buffers : 0;
    }
    return AX_OK;
}

static ax_status make_decisions(ax_pipeline *p)
{
    int64_t most = 3 * p->stage.micro_batches * p->stage.chunks,
            ranks = ax_grid_group_size(p->ctx->grid, group_axes(p));
    if (ranks == 1)
        return AX_OK;
    AX_TRY(ax_calloc((size_t)most, sizeof *p->task, &p->task));
    return ax_calloc((size_t)(most * ranks), sizeof *p->decision_sends, &p->decision_sends);
}

static ax_status build(ax_pipeline *p, bool trains)
{
    p->part = ax_ceil_div(ax_tensor_count(p->ctx->grid, &p->like),
                          ax_grid_group_size(p->ctx->grid, copies_axes(p)));
    AX_TRY(make_directions(p, trains));
    for (int i = 0; i < ENQUEUED; i++)
        AX_TRY(ax_stream_event_create(p->ctx->dev, &p->ended[i]));
    return make_decisions(p);
}

ax_status ax_pipeline_create(ax_model *model, int64_t rows, int64_t seq_len, int64_t micro_batches,
                             bool trains, ax_pipeline **out)
{
    ax_pipeline *p;
    ax_ctx *ctx = model->ctx;
    *out = NULL;
    AX_TRY(ax_calloc(1, sizeof *p, &p));
    ax_layout layout = ax_activation_layout(ctx, AX_ROLE_MODEL);
    p->ctx = ctx;
    p->like =
        ax_tensor_make(ctx->compute, 3, (int64_t[]){rows, seq_len, model->config.hidden}, NULL, &layout);
    p->model = model;
    p->stage = ax_model_stage(model, model->stage, trains ? micro_batches : 1);
    ax_status status = ax_pipe_slots_init(&p->stage, &p->slots);
    if (status == AX_OK && model->stages > 1)
        status = build(p, trains);
    if (status != AX_OK)
        ax_pipeline_destroy(&p);
    *out = p;
    return status;
}

/* Returns true if a message of a step that has failed is still in flight. */
static bool is_in_flight(const ax_pipeline *p)
{
    bool found = false;
    for (int w = 0; w < DIRECTIONS; w++) {
        const direction *y = &p->direction[w];
        found = found || y->receive;
        for (int64_t i = 0; y->sends && i < y->buffers; i++)
            found = found || y->sends[i];
    }
    return found;
}

/* Aborts the world if a failed step has left messages in flight, before this rank's buffers are freed:
 * otherwise another rank or MPI would still read or write these buffers. The messages are not awaited,
 * because they may depend on ranks that have failed too. */
static void abort_messages(ax_pipeline *p)
{
    if (is_in_flight(p))
        ax_comm_abort(p->comm, AX_ERR_COMM, ax_error_message());
}

void ax_pipeline_destroy(ax_pipeline **pipeline)
{
    ax_pipeline *p = *pipeline;
    if (!p)
        return;
    abort_messages(p);
    if (p->comm)
        ax_comm_release_messages(p->comm, p->ctx->dev, pipeline_part_bytes(p), most_messages(p));
    if (p->memory)
        ax_ctx_free(p->ctx, AX_MEMORY_MESSAGES, p->memory, p->bytes);
    for (int w = 0; w < DIRECTIONS; w++)
        free(p->direction[w].sends);
    for (int i = 0; i < ENQUEUED; i++)
        ax_stream_event_destroy(&p->ended[i]);
    ax_pipe_slots_fini(&p->slots);
    free(p->task);
    free(p->decision_sends);
    free(p);
    *pipeline = NULL;
}
