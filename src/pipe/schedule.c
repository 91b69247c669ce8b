/* Pipeline schedules: which task a stage begins next. The functions are pure; a simulator in the tests calls
 * them too. */
#include "axonn/pipe.h"

ax_pipe_stage ax_pipe_stage_of(const ax_pipe_settings *settings, int stages, int stage, int64_t micro_batches)
{
    bool interleaved = settings->schedule == AX_PIPE_INTERLEAVED && stages > 1;
    int chunks = interleaved ? settings->chunks : 1;
    int64_t slots = stages - stage + settings->slack;
    if (settings->schedule == AX_PIPE_GPIPE)
        slots = micro_batches;
    if (interleaved)
        slots = (int64_t)(chunks - 1) * stages + 2 * (stages - stage) - 1;
    if (stages == 1)
        slots = 1;
    return (ax_pipe_stage){.schedule = settings->schedule,
                           .stages = stages,
                           .stage = stage,
                           .chunks = chunks,
                           .micro_batches = micro_batches,
                           .slots = ax_max(1, ax_min(slots, micro_batches * chunks))};
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

bool ax_pipe_is_fixed(ax_pipe_schedule schedule) { return schedule != AX_PIPE_MESSAGE; }

static int64_t pieces(const ax_pipe_stage *s) { return s->micro_batches * s->chunks; }

/* Returns the next task of fixed schedules: a forward as long as pieces are left and a slot is free (`room`),
 * else a backward. These schedules differ only in the number of slots and the order of pieces. */
static ax_pipe_task next_fixed(const ax_pipe_stage *s, const ax_pipe_counts *now, bool room)
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
    bool room = now->forwards - now->backwards < s->slots;
    if (now->backwards == pieces(s))
        return AX_PIPE_DONE;
    return ax_pipe_is_fixed(s->schedule) ? next_fixed(s, now, room) : next_by_arrival(s, now, room);
}
