/* What plans and their execution share. */
#ifndef AXONN_DIST_PLAN_H
#define AXONN_DIST_PLAN_H

#include "axonn/dist.h"

/* The shape of a step along dim d: a tensor is [lead, extent of d, inner] locally, and each rank's part
 * travels as [lead, chunk, inner]. */
typedef struct ax_wire {
    int64_t lead, inner, chunk, count;
} ax_wire;

/* `fine` is the tensor in the layout that is more split on `d`, by `axis`: after a scatter, before a gather.
 * The chunk is the largest part of the ranks that take part. */
ax_wire ax_wire_make(const ax_grid *grid, const ax_tensor *fine, int d, ax_axis axis);

/* A redistribution on its way. The caller has its memory, which stays where it is until it is done. */
typedef struct ax_transfer {
    ax_work base; /* what ax_redistribute hands out */
    ax_ctx *ctx;
    ax_frame *frame; /* what gives memory; NULL if none will be needed */
    ax_plan plan;
    int step;                   /* in flight; plan.n: done */
    bool roomy;                 /* what is sent has room behind its end for padding up to the uniform chunk */
    ax_tensor src, now, before; /* what it began with; what the step in flight makes, and of what */
    ax_layout target;
    void *result, *staged; /* memory of the end result (NULL: that of the source); what must be unpacked */
    ax_work *work;
} ax_transfer;
_Static_assert(sizeof(ax_transfer) <= AX_FRAME_HOST, "transfers live in the host memory of frames");

/* Elements that a tensor's memory must have for the plan's first step to send it, or for its last to receive
 * it, as it is: there is room behind its end for the padding of parts to the uniform chunk. */
int64_t ax_plan_room_sent(ax_ctx *ctx, const ax_tensor *src, const ax_plan *plan);
int64_t ax_plan_room_received(ax_ctx *ctx, const ax_tensor *src, const ax_plan *plan);

/* Starts `plan` from src to target. `roomy`: src's memory has room; that of `result` must have, and what the
 * frame gives has. result NULL: the frame's, or src's if the plan works in place. `frame` may be NULL if src
 * is roomy, result is given, and what follows the first step that makes something are gathers in place. */
AX_MUST_CHECK ax_status ax_transfer_start(ax_transfer *t, ax_ctx *ctx, ax_frame *frame, const ax_plan *plan,
                                          const ax_tensor *src, const ax_layout *target, bool roomy,
                                          void *result);
/* Ends the step in flight and starts the next one; t->now is the result once there is none. */
AX_MUST_CHECK ax_status ax_transfer_next(ax_transfer *t);
bool ax_transfer_done(const ax_transfer *t);
/* The same until it is done. */
AX_MUST_CHECK ax_status ax_transfer_finish(ax_transfer *t);

#endif
