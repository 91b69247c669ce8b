/* Structs of the files param*.c: the collectives that gather weights and reduce gradients, while they are in
 * flight. Layout U is the layout in which kernels read a weight (ax_param in parallel.h). A contribution is
 * the gradient of one use of a weight in one micro-batch. A bucket has gradients that are reduced together. A
 * group has weights that kernels read as one matrix (ax_param_join).
 *
 *   param.c         declaration and layouts
 *   param_set.c     memory
 *   param_state.c   state: master weights and the optimizer's arrays; initial values
 *   mask.c          pruned matrices: vectors of the elements that a mask keeps
 *   offload.c       state in host memory or in a file, and its way to the device
 *   param_sums.c    sums of squares of gradients and weights
 *   param_gather.c  gathers of weights before use: prefetch, cache, gathers after an update
 *   param_grad.c    accumulation and reduction of gradients
 *   accumulate.c    gradients that are contractions
 *   param_tied.c    parameters that two pipeline stages have */
#ifndef AXONN_PARALLEL_PARAM_H
#define AXONN_PARALLEL_PARAM_H

#include "parallel/transfer.h"

/* The largest number of contributions whose reduction is in flight (key overlap.ors). This number limits the
 * memory for contributions that are not yet reduced. */
enum { AX_PARAM_RING = 4 };
/* Number of weights after the one in use that are all-gathered ahead of their use (key overlap.oag). With 1,
 * each gather would overlap with a single GEMM. With 4, the gathers of the two large weights (up, down) of a
 * transformer block overlap with the GEMMs of its four small weights (q, k, v, output). */
enum { AX_PARAM_AHEAD = 4 };
/* Alignment, in bytes, of tensors in the blocks of memory of an ax_param_set. */
enum { AX_PARAM_ALIGN = 64 };
/* The largest number of elements in a bucket of several gradients: 16 MiB of fp32. */
enum { AX_PARAM_BUCKET = 4 << 20 };

/* State of one parameter during a step: its collectives in flight, its cached weight, and numbers of
 * contributions. */
typedef struct ax_param_live {
    int index;           /* index of the parameter in its set */
    bool whole;          /* the stored weight (`rest`) has layout U, so no all-gather is needed before use */
    ax_work *all_gather; /* all-gather in flight after an update: from `rounded` (this rank's new part) to
                            `rest` (the stored weight); NULL: none */
    ax_transfer *gather; /* all-gather of the weight for kernels, from `rest`; started, but the result is not
                            yet acquired. The struct is in the frame's host memory; NULL: none */
    double gather_began; /* time (ax_now) at which `gather` was started, for the trace of events */
    ax_tensor cached;    /* the gathered weight in the weight cache; data NULL: not in the cache */
    bool in_cache, cache_valid; /* in_cache: the weight has memory in the weight cache; cache_valid: `cached`
                                   holds the present weight */
    void *place;       /* frame memory for the weight's next gather, a part of the memory that place_group
                          allocates for the whole group; NULL: none yet */
    int started, done; /* contributions of this step: `started` counts those passed to ax_param_add_grad,
                          `done` those that were added to the gradient */
    void *target;      /* memory that ax_param_grad_target allocated last for a contribution, with room for
                          the padding of its reduce-scatter */
    int now;           /* number of contributions that were added in this micro-batch */
    bool exchanged;    /* the reduced gradient has been exchanged between stages (ax_param_tied_grad) */
    int bucket, last;  /* indices of the gradient's first and last ax_param_bucket; -1: the gradient needs no
                          reduction */
    int64_t offloaded; /* where the parameter's state begins among the elements of offloaded state */
} ax_param_live;

/* A bucket: parameters whose accumulated gradients are adjacent in memory, have one dtype and are reduced by
 * one all-reduce, or a part of such a gradient (ax_offload.chunk), or one parameter whose reduction is more
 * than a single all-reduce. */
typedef struct ax_param_bucket {
    int n, missing; /* n: number of parameters; missing: number of parameters that still lack contributions of
                       the last micro-batch */
    bool started;
    ax_param *first; /* the bucket's first parameter; the only one if the reduction is more than a single
                        all-reduce */
    ax_axisset axes; /* axes along which the gradients are all-reduced */
    void *data;      /* the gradients */
    int64_t count;   /* number of elements at `data`, padding between gradients included */
    ax_work *work;
    ax_transfer transfer; /* used instead of `work` if the reduction takes more than a single all-reduce;
                             `count` is then 0 */
} ax_param_bucket;

/* A contribution whose reduction to the gradient's layout is in flight. */
typedef struct ax_param_contribution {
    ax_param *param;
    ax_transfer *transfer;
    bool add; /* the result of the transfer must be added to the gradient. False if the transfer writes to the
                 gradient itself, or if another rank with the same result adds it (at_origin) */
} ax_param_contribution;

/* The indices of parameters in the order in which a task (such as "train") acquires them. */
typedef struct ax_param_order {
    char task[24];
    bool known; /* the order is complete, because a run of the task has ended */
    int n, capacity, *at;
} ax_param_order;

struct ax_param_uses {
    int n;
    ax_param_order *order;
    int params, *contributions; /* of each of `params` parameters: number of contributions in the last earlier
                                   micro-batch that had any */
};

/* A table of arrays whose squares kernel sumsq sums. */
typedef struct ax_param_sums {
    ax_sumsq_array *table; /* host memory, set->n entries */
    ax_sumsq_array *array; /* copy of `table` in device memory */
    int64_t end[2]; /* where the entries of the accumulation dtype end, and those of the compute dtype if that
                       is another */
} ax_param_sums;

/* The arrays of a table: weights as kernels read them; gradients; gradients before their reduction, if they
 * are reduced in chunks. */
enum { AX_SUMS_WEIGHTS, AX_SUMS_GRADS, AX_SUMS_PARTIAL, AX_SUMS };

typedef struct ax_param_flow {
    ax_param_live *live;
    ax_param_sums sums[AX_SUMS];
    ax_param_uses uses;
    int running;         /* index, in `uses`, of the running task's order; -1: none */
    int position, ahead; /* indices in the running task's order: of the next weight to acquire; of the next
                            weight to prefetch */
    ax_param_contribution ring[AX_PARAM_RING]; /* contributions in flight: `pending` ones, from `oldest` on */
    int oldest, pending;
    ax_param_bucket *bucket;
    int buckets;

    void *tied_piece[2]; /* device memory for pieces of the tied weights' gradient, received from the last
                            pipeline stage; NULL: no trained parameter of this stage is AX_PARAM_LENT */
    ax_comm *tied_comm; /* the communicator along pipe; NULL: no pinned memory is reserved for tied weights */
    bool last, synced;  /* last: the last micro-batch of a step is running; synced: gradients are final */
} ax_param_flow;

/* ax_param_spare returns the number of rows of zeros that follow this rank's weights in layout U
 * (ax_param_pad_rows), ax_param_spare_count the number of elements of these rows. */
int64_t ax_param_spare(const ax_ctx *ctx, const ax_param *param);
int64_t ax_param_spare_count(const ax_ctx *ctx, const ax_param *param);
/* Sets the rows of zeros after t, the weights in layout U, to zero. */
AX_MUST_CHECK ax_status ax_param_clear_spare(ax_ctx *ctx, const ax_param *param, const ax_tensor *t);
/* Return the number of elements of memory for t, a tensor of the parameter in one of the parameter's four
 * layouts: enough for this rank's box, and for the padding of gathers and scatters between the four layouts.
 * ax_param_room is for weights and gradients, which contractions use: in layout U it includes the rows of
 * zeros too. */
int64_t ax_param_wire_room(const ax_ctx *ctx, const ax_param *param, const ax_tensor *t);
int64_t ax_param_room(const ax_ctx *ctx, const ax_param *param, const ax_tensor *t);
/* Returns the offset, in elements, of this rank's part of the weights in layout `fine` within its larger part
 * in layout `coarse`, two of the parameter's four layouts. */
int64_t ax_param_offset(const ax_ctx *ctx, const ax_param *param, const ax_layout *fine,
                        const ax_layout *coarse);

/* Starts the reductions of the gradients that the first `start` buckets of offloaded state need (the
 * matrices' in the order of the set), and waits for those that the first `wait` buckets need; AX_ALL_BUCKETS:
 * all gradients. Exchanges gradients of tied weights between stages, once they are reduced. Collective as
 * ax_param_set_sync_grad. */
#define AX_ALL_BUCKETS INT64_MAX
AX_MUST_CHECK ax_status ax_param_set_reduce(ax_param_set *set, int64_t start, int64_t wait);

/* Waits for all collectives of a parameter set that use the frame's memory, and stores in `uses` how many
 * contributions each gradient got since the last call, unless it got none. Callback for ax_frame_at_end. */
AX_MUST_CHECK ax_status ax_param_set_end(void *set);
AX_MUST_CHECK ax_status ax_param_gathers_end(ax_param_set *set);
AX_MUST_CHECK ax_status ax_param_contributions_end(ax_param_set *set);
AX_MUST_CHECK ax_status ax_param_all_gather_wait(ax_param *param);

AX_MUST_CHECK ax_status ax_param_buckets_make(ax_param_set *set);

/* Returns the address of an element of this rank's part of a tensor. */
static inline void *ax_param_at(const ax_tensor *t, int64_t element)
{
    return (char *)t->data + element * (int64_t)ax_dtype_size(t->dtype);
}

/* param_state.c. ax_param_rounds returns true if kernels read rounded copies of the master weights, which
 * then have memory of their own. ax_param_state_init sets the master weights of a parameter that this rank
 * owns to their initial values. ax_param_state_clear sets the optimizer's arrays to zero, and
 * ax_param_state_round makes `rounded` from the master weights, if this rank has such arrays. */
bool ax_param_rounds(const ax_param *p);
AX_MUST_CHECK ax_status ax_param_state_init(ax_ctx *ctx, const ax_param *p);
AX_MUST_CHECK ax_status ax_param_state_clear(ax_ctx *ctx, const ax_param *p);
AX_MUST_CHECK ax_status ax_param_state_round(ax_ctx *ctx, const ax_param *p);

/* param_tied.c. These functions handle tied weights, which the first and the last pipeline stage share
 * (places AX_PARAM_LENT and AX_PARAM_COPY), and do nothing for other parameters. ax_param_tied_make allocates
 * memory for the exchange of gradients. ax_param_tied_grad adds the last stage's gradient of p to that of the
 * first stage. ax_param_tied_weights sends p's rounded weights from the first stage to the last one.
 * ax_param_tied_grad and ax_param_tied_weights are collective along pipe. */
AX_MUST_CHECK ax_status ax_param_tied_make(ax_param_set *set);
void ax_param_tied_free(ax_param_set *set);
AX_MUST_CHECK ax_status ax_param_tied_grad(ax_param *p);
AX_MUST_CHECK ax_status ax_param_tied_weights(ax_param *p);

/* param_grad.c. Finds the memory for n contributions in the layouts produced[i], as ax_param_grad_target
 * does, and sets `out` and `fresh`. param[i] NULL: there is no such contribution. */
AX_MUST_CHECK ax_status ax_param_grad_targets(ax_frame *frame, int n, void *const *param,
                                              const ax_layout *produced, ax_tensor *out, bool *fresh);
/* Sets *out to the memory that ax_param_grad_target or ax_param_grad_targets gave last for a contribution to
 * p's gradient, and *fresh to false: what is there counts. */
void ax_param_grad_target_again(const ax_param *p, const ax_layout *produced, ax_tensor *out, bool *fresh);

/* Make and free the tables that list the arrays whose squares kernel sumsq sums. */
AX_MUST_CHECK ax_status ax_param_sums_make(ax_param_set *set);
void ax_param_sums_free(ax_param_set *set);

void ax_param_uses_fini(ax_param_uses *uses);

#endif
