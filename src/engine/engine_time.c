/* The time of a planned step. A stage's step is replayed on the device `dry` with a clock, and the schedule
 * of the pipeline runs on the times of its tasks. */
#include "engine/engine_private.h"

#include <math.h>
#include <stdlib.h>

/* The prices of a replay: those of the caller, except for messages between stages, which take no time here.
 * Their seconds are noted, because the schedule is run with them. */
typedef struct replay {
    ax_prices given;
    ax_stage_times *out;
    ax_engine *engine;
    ax_clock *clock;
} replay;

static ax_status price_kernel(void *user, ax_kernel kernel, const void *args, double *seconds)
{
    const ax_prices *given = &((const replay *)user)->given;
    return given->kernel(given->user, kernel, args, seconds);
}

static ax_status price_transfer(void *user, const ax_device_event *e, ax_leg leg[AX_LEGS], int *legs)
{
    const replay *r = user;
    const ax_message_args *m = e->args;
    AX_TRY(r->given.transfer(r->given.user, e, leg, legs));
    if (e->kind != AX_ON_MESSAGE || m->message.kind > AX_MESSAGE_GRADIENT)
        return AX_OK;
    double seconds = 0;
    for (int i = 0; i < *legs; i++)
        seconds += leg[i].seconds;
    if (m->sends)
        r->out->message[m->message.kind] = seconds;
    *legs = 0;
    return AX_OK;
}

/* Adds `times` the seconds so far to those of a step: of kernels, and of communication along each group. */
static void add_up(const replay *r, double times)
{
    const ax_grid *grid = r->engine->ctx->grid;
    r->out->computed += times * ax_clock_computed(r->clock);
    for (int i = 0; i < r->out->n_exposed; i++) {
        ax_axisset axes;
        const ax_comm *comm = ax_grid_group(grid, i, &axes);
        r->out->exposed[i].seconds += times * ax_comm_traffic_get(comm).exposed;
    }
}

ax_step_part ax_step_part_of(int64_t index, int64_t of)
{
    return index == of - 1 ? AX_STEP_LAST : (ax_step_part)ax_min(index, AX_STEP_MIDDLE);
}

/* Returns how many micro-batches of a step take the time of this part, which the step has. */
static double count_of(ax_step_part part, int64_t micro_batches)
{
    return part == AX_STEP_MIDDLE ? (double)(micro_batches - AX_STEP_LAST) : 1;
}

/* Runs a step of as many micro-batches as differ. */
static ax_status run_step(const replay *r, int64_t micro_batches)
{
    static const ax_hyper hyper = {.step = 1};
    ax_engine *e = r->engine;
    ax_stage_times *out = r->out;
    const int64_t n = ax_min(micro_batches, AX_STEP_PARTS);
    double begin = ax_device_now(e->ctx->dev);
    e->options.global_batch = n * e->rows;
    add_up(r, -1);
    AX_TRY(engine_begin_step(e));
    out->end = ax_device_now(e->ctx->dev) - begin;
    add_up(r, 1);
    for (int64_t i = 0; i < n; i++) {
        const ax_step_part part = ax_step_part_of(i, n);
        const double times = count_of(part, micro_batches);
        add_up(r, -times);
        AX_TRY(engine_dry_micro_batch(e, i, n, out->task + (int)part * out->chunks));
        add_up(r, times);
    }
    add_up(r, -1);
    begin = ax_device_now(e->ctx->dev);
    AX_TRY(engine_end_step(e, 1, &hyper));
    out->end += ax_device_now(e->ctx->dev) - begin;
    add_up(r, 1);
    return ax_clock_status(r->clock);
}

static ax_status prepare(const replay *r)
{
    const ax_grid *grid = r->engine->ctx->grid;
    ax_stage_times *out = r->out;
    out->chunks = engine_chunks(r->engine);
    free(out->exposed);
    out->n_exposed = ax_grid_groups(grid);
    AX_TRY(ax_calloc((size_t)out->n_exposed + 1, sizeof *out->exposed, &out->exposed));
    for (int i = 0; i < out->n_exposed; i++) {
        ax_axisset axes;
        ax_grid_group(grid, i, &axes);
        ax_grid_set_print(grid, axes, out->exposed[i].axes);
    }
    return AX_OK;
}

/* Replays two steps: the weights that the update of the first gathers are awaited in the second. Only the
 * second is counted. */
static ax_status replay_steps(replay *r, int64_t micro_batches, ax_event_ring *ring)
{
    const ax_prices prices = {price_kernel, price_transfer, r};
    ax_device *dev = r->engine->ctx->dev;
    ax_listener activities = ax_ring_listener(ring);
    r->out->chunks = engine_chunks(r->engine);
    AX_TRY(ax_calloc((size_t)(AX_STEP_PARTS * r->out->chunks), sizeof *r->out->task, &r->out->task));
    AX_TRY(ax_clock_create(dev, &prices, &r->clock));
    ax_status status = run_step(r, micro_batches);
    if (status == AX_OK)
        status = prepare(r);
    r->out->computed = 0;
    ax_device_listen(dev, &activities);
    if (status == AX_OK)
        status = run_step(r, micro_batches);
    ax_device_unlisten(dev, &activities);
    ax_clock_destroy(&r->clock);
    return status;
}

ax_status ax_stage_times_make(const ax_engine_options *options, const ax_engine_plan *plan, ax_comm *world,
                              ax_grid_size grid, const ax_parallel *parallel, ax_dtype compute,
                              const ax_prices *prices, ax_event_ring *ring, ax_stage_times *out)
{
    ax_ctx *dry;
    replay r = {.given = *prices, .out = out};
    *out = (ax_stage_times){0};
    AX_CHECK(options->optim, AX_ERR_USAGE, "an engine without an optimizer takes no steps to time");
    AX_TRY(ax_ctx_create_dry_over(world, grid, compute, parallel, &dry));
    ax_status status = ax_engine_create(dry, options, plan, 0, &r.engine);
    if (status == AX_OK)
        status = replay_steps(&r, options->global_batch / ax_engine_rows(r.engine), ring);
    ax_engine_destroy(&r.engine);
    ax_ctx_destroy(&dry);
    if (status != AX_OK)
        ax_stage_times_fini(out);
    return status;
}

void ax_stage_times_fini(ax_stage_times *times)
{
    free(times->task);
    free(times->exposed);
    *times = (ax_stage_times){0};
}

/* ---- the schedule -------------------------------------------------------------------------------- */

typedef struct schedule {
    const ax_stage_times *stage;
    double *busy; /* [stages]: seconds of a stage's tasks */
} schedule;

static double task_seconds(void *user, const ax_pipe_stage *stage, ax_pipe_task task, ax_pipe_piece piece,
                           const ax_pipe_counts *done)
{
    const schedule *s = user;
    const ax_stage_times *t = &s->stage[stage->stage];
    const ax_step_part part = ax_step_part_of(piece.micro_batch, stage->micro_batches);
    const ax_piece_seconds *seconds = &t->task[(int)part * t->chunks + piece.chunk];
    (void)done;
    s->busy[stage->stage] += seconds->of[task];
    return seconds->of[task];
}

static double message_seconds(void *user, int stage, bool gradient)
{
    return ((const schedule *)user)
        ->stage[stage]
        .message[gradient ? AX_MESSAGE_GRADIENT : AX_MESSAGE_ACTIVATION];
}

/* Returns the seconds of the tasks of a stage that waits for no other. */
static double tasks_seconds(const ax_stage_times *t, int64_t micro_batches)
{
    const int64_t n = ax_min(micro_batches, AX_STEP_PARTS);
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const ax_step_part part = ax_step_part_of(i, n);
        for (int chunk = 0; chunk < t->chunks; chunk++)
            for (int task = AX_PIPE_FORWARD; task < AX_PIPE_DONE; task++)
                sum += count_of(part, micro_batches) * t->task[(int)part * t->chunks + chunk].of[task];
    }
    return sum;
}

ax_status ax_step_time_make(const ax_pipe_settings *settings, int stages, int64_t micro_batches,
                            const ax_stage_times *stage, ax_step_time *out)
{
    double *ends = NULL, end = 0, last = 0, busy = 0;
    schedule s = {.stage = stage};
    const ax_pipe_times times = {task_seconds, message_seconds, &s};
    *out = (ax_step_time){0};
    if (stages == 1) {
        out->seconds = tasks_seconds(stage, micro_batches) + stage->end;
        return AX_OK;
    }
    AX_TRY(ax_calloc((size_t)(2 * stages), sizeof *ends, &ends));
    s.busy = ends + stages;
    ax_status status = ax_pipe_simulate(settings, stages, micro_batches, &times, ends);
    for (int i = 0; i < stages && status == AX_OK; i++) {
        last = fmax(last, ends[i]);
        end = fmax(end, stage[i].end);
        busy += s.busy[i] / stages;
    }
    free(ends);
    *out = (ax_step_time){.seconds = last + end, .bubble = last - busy};
    return status;
}
