/* Shared by the files about parameters: the transfers of weights and gradients that are in flight.
 *
 *   param.c         declaration and layouts
 *   param_set.c     memory, values, norms
 *   param_gather.c  gathers of weights before use: prefetch, cache, gathers after an update
 *   param_grad.c    accumulation and reduction of gradients */
#ifndef AXONN_PARALLEL_PARAM_H
#define AXONN_PARALLEL_PARAM_H

#include "parallel/plan.h"

/* Most contributions in flight (ORS). The bound limits the memory for gradients not yet scattered. */
enum { AX_PARAM_RING = 4 };
/* Number of gathers started ahead of the weight in use (OAG). One would overlap with a single GEMM; four let
 * the gathers of a block's two large weights (up, down) overlap with the GEMMs of its four small ones (q, k,
 * v, output). */
enum { AX_PARAM_AHEAD = 4 };
/* Alignment in bytes of parameters in their blocks. */
enum { AX_PARAM_ALIGN = 64 };
/* Most elements of a bucket of several gradients: 16 MiB of float32. */
enum { AX_PARAM_BUCKET = 4 << 20 };

/* The transfers of one parameter. */
typedef struct ax_param_live {
    int index;           /* index of the parameter in its set */
    bool whole;          /* the layouts `rest` and U are equal: no gather before use */
    ax_work *all_gather; /* all-gather from rounded to rest, in flight or NULL */
    ax_transfer *gather; /* gather from rest to U, started and not yet acquired; in the frame's host memory */
    double gather_began; /* for the device's event ring */
    ax_tensor cached;    /* place in the weight cache; data NULL: none */
    bool cache_valid;
    int started,
        done; /* number of contributions of this step that were begun, and that were added to the gradient */
    const void *target; /* memory for a contribution, with room for padding */
    int now, expected;  /* number of contributions added in this micro-batch, and in the micro-batch before */
    int bucket;         /* -1: its gradient needs no reduction */
} ax_param_live;

/* Parameters adjacent in memory whose accumulated gradients are reduced by one collective. */
typedef struct ax_param_bucket {
    int n,
        missing; /* number of parameters; number of gradients that are incomplete in the last micro-batch */
    bool started;
    ax_param *first; /* the only parameter if its plan is not one all-reduce */
    ax_axisset axes;
    void *data;
    int64_t count;
    ax_work *work;
    ax_transfer transfer; /* used instead of `work` if count is 0, because the plan is not one all-reduce */
} ax_param_bucket;

typedef struct ax_param_contribution {
    ax_param *param;
    ax_transfer *transfer;
    bool add; /* add the result of the transfer to the gradient; false: it is already there */
} ax_param_contribution;

/* The indices of parameters in the order in which a task acquires them. */
typedef struct ax_param_order {
    char task[24];
    bool known; /* complete: a run of the task has ended */
    int n, capacity, *at;
} ax_param_order;

struct ax_param_orders {
    int n;
    ax_param_order *order;
};

typedef struct ax_param_flow {
    ax_param_live *live;
    ax_param_orders orders;
    int running;         /* index of the running task's order; -1: none */
    int position, ahead; /* positions in that order: next to acquire, next to prefetch */
    ax_param_contribution ring[AX_PARAM_RING];
    int oldest, pending;
    ax_param_bucket *bucket;
    int buckets;
    bool last, synced; /* the last micro-batch of a step runs; gradients are final */
} ax_param_flow;

/* Returns the number of elements of memory for the parameter's tensor t, whose layout is one of the four: its
 * box, and room for the padding of gathers and scatters between the four layouts. */
int64_t ax_param_room(const ax_ctx *ctx, const ax_param *param, const ax_tensor *t);
/* Offset in elements of this rank's box in layout `fine` within its box in layout `coarse`. */
int64_t ax_param_offset(const ax_ctx *ctx, const ax_param *param, const ax_layout *fine,
                        const ax_layout *coarse);

/* Waits for all transfers that use the frame's memory: the ax_frame_end_fn of a set. */
AX_MUST_CHECK ax_status ax_param_set_end(void *set);
AX_MUST_CHECK ax_status ax_param_gathers_end(ax_param_set *set);
AX_MUST_CHECK ax_status ax_param_contributions_end(ax_param_set *set);
AX_MUST_CHECK ax_status ax_param_all_gather_wait(ax_param *param);

AX_MUST_CHECK ax_status ax_param_buckets_make(ax_param_set *set);

void ax_param_orders_fini(ax_param_orders *orders);

#endif
