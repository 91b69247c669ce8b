/* Shared by the files about parameters: the transfers of weights and gradients that are in flight.
 *
 *   param.c         declaration and layouts
 *   param_set.c     memory, values, norms
 *   param_gather.c  gathers of weights before use: prefetch, cache, gathers after an update
 *   param_grad.c    accumulation and reduction of gradients
 *   param_tied.c    parameters that two pipeline stages have */
#ifndef AXONN_PARALLEL_PARAM_H
#define AXONN_PARALLEL_PARAM_H

#include "parallel/plan.h"

/* The most contributions to gradients in flight (overlap.ors). It limits the memory for gradients that are
 * not yet scattered. */
enum { AX_PARAM_RING = 4 };
/* How many weights beyond the one in use are gathered ahead (overlap.oag). One would overlap with a single
 * GEMM; four let the gathers of a block's two large weights (up, down) overlap with the GEMMs of its four
 * small ones (q, k, v, output). */
enum { AX_PARAM_AHEAD = 4 };
/* Alignment, in bytes, of parameters in the blocks of memory of a set. */
enum { AX_PARAM_ALIGN = 64 };
/* The most elements in a bucket of several gradients: 16 MiB of float32. */
enum { AX_PARAM_BUCKET = 4 << 20 };

/* The transfers of one parameter. */
typedef struct ax_param_live {
    int index;  /* index of the parameter in its set */
    bool whole; /* `rest` has the layout of kernels (U in ax_param), so no gather is needed before use */
    ax_work *all_gather; /* all-gather from rounded to rest, in flight or NULL */
    ax_transfer *gather; /* the gather for kernels (from `rest` to layout U), started and not yet acquired; in
                            the frame's host memory */
    double gather_began; /* time at which `gather` was started, for the device's event ring */
    ax_tensor cached;    /* the gathered weight in the weight cache; data NULL: it has no place there */
    bool cache_valid;
    int started,
        done; /* number of contributions in this step that were begun, and that were added to the gradient */
    const void *target; /* memory for a contribution, with room for padding */
    int now, expected;  /* number of contributions that were added in this micro-batch, and in the micro-batch
                           before */
    int bucket;         /* index of the gradient's bucket; -1: the gradient needs no reduction */
} ax_param_live;

/* Parameters whose accumulated gradients are adjacent in memory and are reduced by one collective. */
typedef struct ax_param_bucket {
    int n, missing; /* n: number of parameters; missing: how many gradients still lack contributions of the
                       last micro-batch */
    bool started;
    ax_param *first; /* the bucket's first parameter; it is the only one if its reduction is not a single
                        all-reduce */
    ax_axisset axes;
    void *data;
    int64_t count;
    ax_work *work;
    ax_transfer transfer; /* used instead of `work` if the reduction takes more than a single all-reduce;
                             `count` is then 0 */
} ax_param_bucket;

typedef struct ax_param_contribution {
    ax_param *param;
    ax_transfer *transfer;
    bool add; /* true: the result of the transfer must be added to the gradient; false: it was received in the
                 gradient's memory */
} ax_param_contribution;

/* The indices of parameters in the order in which a task acquires them. */
typedef struct ax_param_order {
    char task[24];
    bool known; /* the order is complete, because a run of the task has ended */
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
    int position, ahead; /* positions in that order of the next weight to acquire, and the next to prefetch */
    ax_param_contribution ring[AX_PARAM_RING];
    int oldest, pending;
    ax_param_bucket *bucket;
    int buckets;
    void *tied_piece[2]; /* device memory for pieces of gradients from the last stage; NULL: none are LENT */
    bool last, synced;   /* last: the last micro-batch of a step is running; synced: gradients are final */
} ax_param_flow;

/* Returns the number of elements of memory for the parameter's tensor t, whose layout is one of the four: its
 * box, and room for the padding of gathers and scatters between the four layouts. */
int64_t ax_param_room(const ax_ctx *ctx, const ax_param *param, const ax_tensor *t);
/* Returns the offset, in elements, at which this rank's box in layout `fine` begins within its box in layout
 * `coarse`. */
int64_t ax_param_offset(const ax_ctx *ctx, const ax_param *param, const ax_layout *fine,
                        const ax_layout *coarse);

/* The callback of a set for ax_frame_at_end: waits for all transfers that use the frame's memory. */
AX_MUST_CHECK ax_status ax_param_set_end(void *set);
AX_MUST_CHECK ax_status ax_param_gathers_end(ax_param_set *set);
AX_MUST_CHECK ax_status ax_param_contributions_end(ax_param_set *set);
AX_MUST_CHECK ax_status ax_param_all_gather_wait(ax_param *param);

AX_MUST_CHECK ax_status ax_param_buckets_make(ax_param_set *set);

/* param_tied.c. These functions handle parameters whose place is AX_PARAM_LENT or AX_PARAM_COPY, and do
 * nothing for others. ax_param_tied_make allocates memory for the exchange of gradients. ax_param_tied_grads
 * adds the last stage's gradients to those of the first stage. ax_param_tied_weights sends p's rounded
 * weights from the first stage to the last one. The last two are collective along pipe. */
AX_MUST_CHECK ax_status ax_param_tied_make(ax_param_set *set);
void ax_param_tied_free(ax_param_set *set);
AX_MUST_CHECK ax_status ax_param_tied_grads(ax_param_set *set);
AX_MUST_CHECK ax_status ax_param_tied_weights(ax_param *p);

void ax_param_orders_fini(ax_param_orders *orders);

#endif
