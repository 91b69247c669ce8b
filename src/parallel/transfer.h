/* Shared by steps.c, redistribute.c and param*.c: message sizes of redistributions, and redistributions in
 * flight. */
#ifndef AXONN_PARALLEL_TRANSFER_H
#define AXONN_PARALLEL_TRANSFER_H

#include "axonn/parallel.h"

/* The message size, in elements, of a gather (all-gather) or scatter (reduce-scatter) along dim d. `lead` and
 * `inner` are the products of the local extents of the dims before and after d. `chunk` is the extent along d
 * of the largest part. Each rank's part is sent as an array [lead, chunk, inner], padded to `chunk` along d;
 * count = lead · chunk · inner. */
typedef struct ax_wire {
    int64_t lead, inner, chunk, count;
} ax_wire;

/* Computes the message size of a gather or scatter along `axis`. `fine` is the tensor with dim `d` already
 * split along `axis`: the result of a scatter, or the source of a gather. */
ax_wire ax_wire_make(const ax_grid *grid, const ax_tensor *fine, int d, ax_axis axis);

/* What a rank sends to each rank in a move (all-to-all): an array of the extents n, padded to the largest
 * part on both dims of the move; count: its elements. Dims that the tensor lacks have extent 1. */
typedef struct ax_move_wire {
    int64_t n[AX_MAX_DIMS], count;
} ax_move_wire;

/* Computes the message size of the move `step` of a tensor `from`. */
ax_move_wire ax_move_wire_make(const ax_grid *grid, const ax_tensor *from,
                               const ax_redistribution_step *step);

/* A redistribution in flight. The caller provides the struct, which must not move until the redistribution is
 * done. */
typedef struct ax_transfer {
    ax_work base; /* the work handle that ax_redistribute returns */
    ax_ctx *ctx;
    ax_frame *frame; /* the frame in which memory is allocated; NULL: no memory will be needed */
    ax_redistribution steps;
    int step;         /* index of the step in flight; steps.n: all steps are done */
    bool roomy;       /* the next step's source has memory for all that the step sends, padding included */
    ax_tensor src;    /* the redistribution's source */
    ax_tensor now;    /* the result of the step in flight */
    ax_tensor before; /* the source of the step in flight */
    ax_layout target;
    void *result; /* memory of the final result; NULL: the memory of the source, because all steps are
                     all-reduces */
    void *staged; /* buffer into which the step in flight receives packed data; end_step unpacks them. NULL:
                     none */
    ax_work *work;
} ax_transfer;
_Static_assert(sizeof(ax_transfer) <= AX_FRAME_HOST, "transfers live in the host memory of frames");

/* ax_redistribution_room_sent returns the number of elements of memory that src must have to hold all that
 * the first step sends that is no all-reduce. ax_redistribution_room_received returns the number of elements
 * of memory that the result must have to hold all that the steps receive in it. Both include the padding of
 * each rank's part to the largest part. With this memory, gathers and scatters need no other buffers if they
 * can run in place (redistribute.c). */
int64_t ax_redistribution_room_sent(ax_ctx *ctx, const ax_tensor *src, const ax_redistribution *steps);
int64_t ax_redistribution_room_received(ax_ctx *ctx, const ax_tensor *src, const ax_redistribution *steps);

/* Starts to change src to the layout `target` by `steps`. `roomy`: src's memory has
 * ax_redistribution_room_sent elements. `result` must have ax_redistribution_room_received elements; NULL:
 * memory of the frame, or src's if all steps are all-reduces. `frame` may be NULL if three things hold:
 * `roomy` is true, `result` is not NULL unless all steps are all-reduces, and the steps that are not
 * all-reduces are a single step that needs no packing (a slice, or a gather or scatter in place), or only
 * gathers in place (redistribute.c). */
AX_MUST_CHECK ax_status ax_transfer_start(ax_transfer *t, ax_ctx *ctx, ax_frame *frame,
                                          const ax_redistribution *steps, const ax_tensor *src,
                                          const ax_layout *target, bool roomy, void *result);
/* Waits for the step in flight and starts the next one. After the last step t->now is the result. */
AX_MUST_CHECK ax_status ax_transfer_next(ax_transfer *t);
bool ax_transfer_done(const ax_transfer *t);
/* Repeats ax_transfer_next until the transfer is done. */
AX_MUST_CHECK ax_status ax_transfer_finish(ax_transfer *t);

#endif
