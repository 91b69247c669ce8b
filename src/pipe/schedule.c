/* Pipeline schedules: which task a stage begins next. The functions are pure; a simulator in the tests calls
 * them too. */
#include "axonn/pipe.h"

ax_pipe_stage ax_pipe_stage_of(ax_pipe_schedule schedule, int stages, int stage, int64_t micro_batches,
                               int64_t slack)
{
    int64_t slots = schedule == AX_PIPE_GPIPE ? micro_batches : stages - stage + slack;
    if (stages == 1)
        slots = 1;
    return (ax_pipe_stage){.schedule = schedule,
                           .stages = stages,
                           .stage = stage,
                           .micro_batches = micro_batches,
                           .slots = ax_max(1, ax_min(slots, micro_batches))};
}

bool ax_pipe_is_fixed(ax_pipe_schedule schedule) { return schedule != AX_PIPE_MESSAGE; }

/* Returns the next task of 1F1B and GPipe: a forward as long as micro-batches are left and a slot is free
 * (`room`), else a backward. The two schedules differ only in the number of slots. */
static ax_pipe_task next_fixed(const ax_pipe_stage *s, const ax_pipe_counts *now, bool room)
{
    if (now->forwards < s->micro_batches && room)
        return now->activation ? AX_PIPE_FORWARD : AX_PIPE_WAIT;
    return now->gradient ? AX_PIPE_BACKWARD : AX_PIPE_WAIT;
}

static ax_pipe_task next_by_arrival(const ax_pipe_stage *s, const ax_pipe_counts *now, bool room)
{
    if (now->gradient)
        return AX_PIPE_BACKWARD;
    return now->activation && now->forwards < s->micro_batches && room ? AX_PIPE_FORWARD : AX_PIPE_WAIT;
}

ax_pipe_task ax_pipe_next(const ax_pipe_stage *s, const ax_pipe_counts *now)
{
    bool room = now->forwards - now->backwards < s->slots;
    if (now->backwards == s->micro_batches)
        return AX_PIPE_DONE;
    return ax_pipe_is_fixed(s->schedule) ? next_fixed(s, now, room) : next_by_arrival(s, now, room);
}
