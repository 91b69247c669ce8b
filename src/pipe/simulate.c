/* Runs a pipeline's schedule on given times of tasks and messages (ax_pipe_simulate). */
#include "axonn/pipe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FORWARD, BACKWARD, DIRECTIONS };

/* A stage. input[d][i]: when the input of its i-th forward or backward arrives; infinity: not known yet. */
typedef struct simulated {
    ax_pipe_stage stage;
    ax_pipe_counts done;
    double clock; /* end of the last task */
    double *input[DIRECTIONS];
} simulated;

typedef struct simulation {
    const ax_pipe_times *times;
    int stages;
    int64_t pieces; /* of a stage */
    simulated *all;
} simulation;

static double arrival(const simulation *sim, const simulated *s, int direction, int64_t i)
{
    return i < sim->pieces ? s->input[direction][i] : INFINITY;
}

/* Sets *task to the task that the stage begins next, at the time that is returned; infinity: never, as things
 * are. */
static double next_begin(const simulation *sim, const simulated *s, ax_pipe_task *task)
{
    ax_pipe_counts now = s->done;
    const double forward = arrival(sim, s, FORWARD, now.forwards),
                 backward = arrival(sim, s, BACKWARD, now.backwards),
                 at[] = {s->clock, fmin(forward, backward), fmax(forward, backward)};
    for (size_t i = 0; i < AX_COUNT(at); i++) {
        const double t = fmax(at[i], s->clock);
        now.activation = forward <= t;
        now.gradient = backward <= t;
        *task = isinf(t) ? AX_PIPE_WAIT : ax_pipe_next(&s->stage, &now);
        if (*task != AX_PIPE_WAIT && *task != AX_PIPE_DONE)
            return t;
    }
    return INFINITY;
}

static ax_pipe_piece piece_of(const simulated *s, int direction, int64_t i)
{
    const int64_t n = s->stage.micro_batches;
    return direction == FORWARD ? ax_pipe_forward(&s->stage, n, i) : ax_pipe_backward(&s->stage, n, i);
}

/* Sets the time at which the input of a piece arrives: of the i-th forward or backward, the inverse of
 * piece_of. */
static void set_arrival(const simulation *sim, int stage, int direction, ax_pipe_piece piece, double when)
{
    const ax_pipe_stage *s = &sim->all[stage].stage;
    const int64_t first = piece.micro_batch / s->stages * s->stages,
                  size = ax_min(s->stages, s->micro_batches - first),
                  chunk = direction == FORWARD ? piece.chunk : s->chunks - 1 - piece.chunk;
    sim->all[stage].input[direction][first * s->chunks + chunk * size + piece.micro_batch - first] = when;
}

/* The output of a piece goes to the next part of the model, or to the one before it. After the last part
 * comes its own backward, before the first nothing. */
static void pass_on(const simulation *sim, int stage, int direction, ax_pipe_piece piece)
{
    const simulated *s = &sim->all[stage];
    const int parts = sim->stages * s->stage.chunks, part = piece.chunk * sim->stages + stage,
              to = part + (direction == FORWARD ? 1 : -1);
    if (to == parts)
        set_arrival(sim, stage, BACKWARD, piece, s->clock);
    else if (to >= 0)
        set_arrival(sim, to % sim->stages, direction, (ax_pipe_piece){piece.micro_batch, to / sim->stages},
                    s->clock + sim->times->message(sim->times->user, stage, direction == BACKWARD));
}

/* Runs a task, which begins at time `begin`. Without postponed ones, weight gradients belong to the backward.
 */
static void run(const simulation *sim, int stage, ax_pipe_task task, double begin)
{
    simulated *s = &sim->all[stage];
    const int direction = task == AX_PIPE_FORWARD ? FORWARD : BACKWARD;
    const int64_t number = task == AX_PIPE_FORWARD    ? s->done.forwards++
                           : task == AX_PIPE_BACKWARD ? s->done.backwards++
                                                      : s->done.weights++;
    const ax_pipe_piece piece = piece_of(s, direction, number);
    s->done.weights += task == AX_PIPE_BACKWARD && !s->stage.postpone;
    s->clock = begin + sim->times->task(sim->times->user, &s->stage, task, piece, &s->done);
    if (task != AX_PIPE_WEIGHTS)
        pass_on(sim, stage, direction, piece);
}

/* Returns the stage that begins a task first, and when and which; -1: none can. */
static int find_first(const simulation *sim, double *when, ax_pipe_task *task)
{
    int first = -1;
    *when = INFINITY;
    for (int s = 0; s < sim->stages; s++) {
        ax_pipe_task what;
        const double t = next_begin(sim, &sim->all[s], &what);
        if (t < *when) {
            first = s;
            *when = t;
            *task = what;
        }
    }
    return first;
}

/* Gives all stages their tasks, and the first stage its rows. */
static ax_status begin_step(simulation *sim, const ax_pipe_settings *settings, int64_t micro_batches)
{
    for (int i = 0; i < sim->stages; i++) {
        simulated *s = &sim->all[i];
        s->stage = ax_pipe_stage_of(settings, sim->stages, i, micro_batches);
        sim->pieces = micro_batches * s->stage.chunks;
        for (int d = 0; d < DIRECTIONS; d++) {
            AX_TRY(ax_calloc((size_t)sim->pieces, sizeof(double), &s->input[d]));
            for (int64_t k = 0; k < sim->pieces; k++)
                s->input[d][k] = INFINITY;
        }
    }
    for (int64_t m = 0; m < micro_batches; m++)
        set_arrival(sim, 0, FORWARD, (ax_pipe_piece){m, 0}, 0);
    return AX_OK;
}

static ax_status run_step(const simulation *sim, double *ends)
{
    double when;
    ax_pipe_task task;
    for (int s; (s = find_first(sim, &when, &task)) >= 0;)
        run(sim, s, task, when);
    for (int s = 0; s < sim->stages; s++) {
        AX_CHECK(sim->all[s].done.weights == sim->pieces, AX_ERR_USAGE,
                 "the schedule stops: stage %d waits for a message that no stage can send", s);
        ends[s] = sim->all[s].clock;
    }
    return AX_OK;
}

ax_status ax_pipe_simulate(const ax_pipe_settings *settings, int stages, int64_t micro_batches,
                           const ax_pipe_times *times, double *ends)
{
    simulation sim = {.times = times, .stages = stages};
    AX_TRY(ax_calloc((size_t)stages, sizeof *sim.all, &sim.all));
    ax_status status = begin_step(&sim, settings, micro_batches);
    if (status == AX_OK)
        status = run_step(&sim, ends);
    for (int s = 0; s < stages; s++)
        for (int d = 0; d < DIRECTIONS; d++)
            free(sim.all[s].input[d]);
    free(sim.all);
    return status;
}
