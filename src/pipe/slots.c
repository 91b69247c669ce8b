/* Which slot of a stage a piece takes, and pieces of which chunks a slot holds in a step. */
#include "axonn/pipe.h"

#include <stdlib.h>

static const ax_pipe_piece nothing = {-1, 0};

ax_status ax_pipe_slots_init(const ax_pipe_stage *stage, ax_pipe_slots *out)
{
    *out = (ax_pipe_slots){.n = stage->slots};
    AX_TRY(ax_calloc((size_t)out->n, sizeof *out->held, &out->held));
    ax_pipe_slots_empty(out);
    return AX_OK;
}

void ax_pipe_slots_fini(ax_pipe_slots *slots)
{
    free(slots->held);
    *slots = (ax_pipe_slots){0};
}

void ax_pipe_slots_empty(ax_pipe_slots *slots)
{
    for (int64_t i = 0; i < slots->n; i++)
        slots->held[i] = nothing;
    slots->last = slots->n - 1;
}

int ax_pipe_slots_take(ax_pipe_slots *slots, ax_pipe_piece piece)
{
    do
        slots->last = (slots->last + 1) % slots->n;
    while (slots->held[slots->last].micro_batch >= 0);
    slots->held[slots->last] = piece;
    return (int)slots->last;
}

int ax_pipe_slots_find(const ax_pipe_slots *slots, ax_pipe_piece piece)
{
    int slot = 0;
    while (slots->held[slot].micro_batch != piece.micro_batch || slots->held[slot].chunk != piece.chunk)
        slot++;
    return slot;
}

void ax_pipe_slots_release(ax_pipe_slots *slots, int slot) { slots->held[slot] = nothing; }

/* Runs the tasks of a step in their fixed order, and notes which pieces each slot holds. */
static void follow_order(const ax_pipe_stage *s, ax_pipe_slots *slots, bool *holds)
{
    ax_pipe_counts now = {.activation = true};
    for (ax_pipe_task task; (task = ax_pipe_next(s, &now)) != AX_PIPE_DONE;
         now.gradient = now.backwards < now.forwards) {
        if (task == AX_PIPE_FORWARD) {
            ax_pipe_piece piece = ax_pipe_forward(s, s->micro_batches, now.forwards++);
            holds[ax_pipe_slots_take(slots, piece) * s->chunks + piece.chunk] = true;
        } else {
            ax_pipe_piece piece = ax_pipe_backward(s, s->micro_batches, now.backwards++);
            ax_pipe_slots_release(slots, ax_pipe_slots_find(slots, piece));
            now.weights = now.backwards;
        }
    }
}

ax_status ax_pipe_slot_chunks(const ax_pipe_stage *stage, bool *holds)
{
    const bool fixed = ax_pipe_is_fixed(stage);
    ax_pipe_slots slots;
    for (int64_t i = 0; i < stage->slots * stage->chunks; i++)
        holds[i] = !fixed;
    if (!fixed)
        return AX_OK;
    AX_TRY(ax_pipe_slots_init(stage, &slots));
    follow_order(stage, &slots, holds);
    ax_pipe_slots_fini(&slots);
    return AX_OK;
}
