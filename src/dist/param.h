/* What the files about parameters share: how far they are split, and what of them is on its way.
 *
 *   param.c         declaration and layouts
 *   param_set.c     memory, values, norms
 *   param_gather.c  weights on their way to kernels: gathers, their order, the cache
 *   param_grad.c    gradients on their way to the optimizer: contributions, reductions */
#ifndef AXONN_DIST_PARAM_H
#define AXONN_DIST_PARAM_H

#include "dist/plan.h"

/* Contributions in flight at most: with more, memory for unsharded gradients would grow without end (ORS). */
enum { AX_PARAM_RING = 4 };
/* Gathers that are started ahead of the one in use (OAG). One hides behind a single product; four let the two
 * large weights of a block (up, down) travel behind its four small ones (q, k, v, output). */
enum { AX_PARAM_AHEAD = 4 };
/* Bytes to a multiple of which parameters lie in their blocks. */
enum { AX_PARAM_ALIGN = 64 };
/* Elements of accumulated gradients that are reduced at a time: 16 MiB of float32. */
enum { AX_PARAM_BUCKET = 4 << 20 };

/* One parameter, while it is used. */
typedef struct ax_param_live {
    int index;           /* in its set */
    bool whole;          /* rests as kernels read it */
    ax_work *publish;    /* from master to rest */
    ax_transfer *gather; /* from rest to kernels, started and not yet taken; in the frame's host memory */
    double gather_began; /* noted in the device's event ring */
    ax_tensor cached;    /* data NULL: not in the cache */
    bool cache_valid;
    int started, done;  /* contributions of this step; those that have arrived */
    const void *target; /* memory for a contribution, with room */
    int now, expected;  /* those that have arrived in this micro-batch, and in the one before */
    int bucket;         /* -1: its gradient needs no reduction */
} ax_param_live;

/* Parameters, neighbours in memory, whose accumulated gradients are reduced at once. */
typedef struct ax_param_bucket {
    int n, missing; /* of the last micro-batch: gradients that are not complete */
    bool started;
    ax_param *first; /* the only one if its plan is more than an all-reduce */
    ax_axisset axes;
    void *data;
    int64_t count;
    ax_work *work;
    ax_transfer transfer; /* if count is 0 */
} ax_param_bucket;

typedef struct ax_param_contribution {
    ax_param *param;
    ax_transfer *transfer;
    bool add; /* the result is not the gradient's memory already */
} ax_param_contribution;

/* The indices of parameters in the order in which a task acquires them. */
typedef struct ax_param_order {
    char task[24];
    bool known;
    int n, capacity, *at;
} ax_param_order;

struct ax_param_orders {
    int n;
    ax_param_order *order;
};

typedef struct ax_param_flow {
    ax_param_live *live;
    ax_param_orders orders;
    int running;         /* order of the running task; -1: none */
    int position, ahead; /* in it: next to be acquired, next to be started */
    ax_param_contribution ring[AX_PARAM_RING];
    int oldest, pending;
    ax_param_bucket *bucket;
    int buckets;
    bool last, synced;
} ax_param_flow;

/* Elements of memory for the parameter's tensor t, whose layout is one of the four: its box, and room for it
 * to be gathered from a finer and sent to a coarser one. */
int64_t ax_param_room(const ax_ctx *ctx, const ax_param *param, const ax_tensor *t);
/* Elements by which the box in layout `fine` lies behind that in layout `coarse`, which it is a part of. */
int64_t ax_param_offset(const ax_ctx *ctx, const ax_param *param, const ax_layout *fine,
                        const ax_layout *coarse);

/* Ends what is in flight on the frame's memory: an ax_frame_end_fn of a set. */
AX_MUST_CHECK ax_status ax_param_set_end(void *set);
AX_MUST_CHECK ax_status ax_param_gathers_end(ax_param_set *set);
AX_MUST_CHECK ax_status ax_param_contributions_end(ax_param_set *set);
AX_MUST_CHECK ax_status ax_param_publish_wait(ax_param *param);

AX_MUST_CHECK ax_status ax_param_buckets_make(ax_param_set *set);

void ax_param_orders_fini(ax_param_orders *orders);

#endif
