/* Pipeline schedules: which task a stage begins next. The functions have no side effects; the simulator
 * (simulate.c) calls them too. */
#include "axonn/pipe.h"

const char *ax_pipe_schedule_name(int index)
{
    static const char *const names[AX_PIPE_SCHEDULES] = {[AX_PIPE_MESSAGE] = "message",
                                                         [AX_PIPE_1F1B] = "1f1b",
                                                         [AX_PIPE_GPIPE] = "gpipe",
                                                         [AX_PIPE_INTERLEAVED] = "interleaved"};
    return index < AX_PIPE_SCHEDULES ? names[index] : NULL;
}

bool ax_pipe_fits(ax_pipe_schedule schedule, int64_t stages, int64_t micro_batches)
{
    return schedule != AX_PIPE_INTERLEAVED || micro_batches % stages == 0;
}

ax_pipe_stage ax_pipe_stage_of(const ax_pipe_settings *settings, int stages, int stage, int64_t micro_batches)
{
    bool interleaved = settings->schedule == AX_PIPE_INTERLEAVED && stages > 1;
    int chunks = interleaved ? ax_max(1, settings->chunks) : 1;
    int64_t flight = stages - stage + settings->slack, postpone = settings->postpone;
    if (settings->schedule == AX_PIPE_GPIPE)
        flight = micro_batches;
    if (interleaved)
        flight = (int64_t)(chunks - 1) * stages + 2 * (stages - stage) - 1;
    if (stages == 1)
        flight = 1, postpone = 0;
    flight = ax_max(1, ax_min(flight, micro_batches * chunks));
    return (ax_pipe_stage){.schedule = settings->schedule,
                           .stages = stages,
                           .stage = stage,
                           .chunks = chunks,
                           .micro_batches = micro_batches,
                           .flight = flight,
                           .postpone = postpone,
                           .slots = ax_max(1, ax_min(flight + postpone, micro_batches * chunks))};
}

ax_pipe_piece ax_pipe_forward(const ax_pipe_stage *s, int64_t n, int64_t i)
{
    int64_t group = i / ((int64_t)s->stages * s->chunks), first = group * s->stages,
            size = ax_min(s->stages, n - first), at = i - first * s->chunks;
    if (s->chunks == 1)
        return (ax_pipe_piece){i, 0};
    return (ax_pipe_piece){first + at % size, (int)(at / size)};
}

ax_pipe_piece ax_pipe_backward(const ax_pipe_stage *s, int64_t n, int64_t i)
{
    ax_pipe_piece piece = ax_pipe_forward(s, n, i);
    piece.chunk = s->chunks - 1 - piece.chunk;
    return piece;
}

bool ax_pipe_is_fixed(const ax_pipe_stage *s)
{
    return !s->postpone && (s->schedule != AX_PIPE_MESSAGE || s->slots == 1);
}

static int64_t pieces(const ax_pipe_stage *s) { return s->micro_batches * s->chunks; }

/* Returns the next task under all schedules except AX_PIPE_MESSAGE. The task is a forward while pieces are
 * left that have not run forward and `room` is true: fewer than `flight` pieces are between their forward
 * and their backward. Otherwise the task is a backward. Returns AX_PIPE_WAIT if the input of the task has
 * not arrived. These schedules differ only in `flight` and in the order of pieces. */
static ax_pipe_task next_in_order(const ax_pipe_stage *s, const ax_pipe_counts *now, bool room)
{
    if (now->forwards < pieces(s) && room)
        return now->activation ? AX_PIPE_FORWARD : AX_PIPE_WAIT;
    return now->gradient ? AX_PIPE_BACKWARD : AX_PIPE_WAIT;
}

static ax_pipe_task next_by_arrival(const ax_pipe_stage *s, const ax_pipe_counts *now, bool room)
{
    if (now->gradient)
        return AX_PIPE_BACKWARD;
    return now->activation && now->forwards < pieces(s) && room ? AX_PIPE_FORWARD : AX_PIPE_WAIT;
}

ax_pipe_task ax_pipe_next(const ax_pipe_stage *s, const ax_pipe_counts *now)
{
    bool room = now->forwards - now->backwards < s->flight;
    int64_t postponed = now->backwards - now->weights;
    ax_pipe_task task = AX_PIPE_WAIT;
    if (now->weights == pieces(s))
        return AX_PIPE_DONE;
    if (now->backwards < pieces(s))
        task = s->schedule == AX_PIPE_MESSAGE ? next_by_arrival(s, now, room) : next_in_order(s, now, room);
    bool full = postponed == s->postpone;
    return postponed && (task == AX_PIPE_WAIT || (task == AX_PIPE_BACKWARD && full)) ? AX_PIPE_WEIGHTS : task;
}
