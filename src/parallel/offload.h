/* Offloaded state: the arrays that only updates read, of matrices that are trained, in a store outside the
 * device (store.h). parallel.h ("offloaded state") explains its order and its buckets. */
#ifndef AXONN_PARALLEL_OFFLOAD_H
#define AXONN_PARALLEL_OFFLOAD_H

#include "parallel/param.h"
#include "parallel/store.h"

/* The largest number of buckets on the device: while one is updated, the next comes in and the last one
 * leaves. */
enum { AX_OFFLOAD_RING = 3 };

/* A place for one bucket in the memory of the device that updates: [arrays][bucket] state, unless that is
 * used in the store; if a cpu device updates for a GPU, then also [bucket] gradients and [bucket] weights as
 * kernels read them. */
typedef struct ax_offload_slot {
    void *data;
    void *staging;   /* pinned memory between file and GPU, as `data`; NULL: the file's thread uses `data` */
    int64_t bucket;  /* the bucket whose state is here or on its way here; -1: none */
    int64_t fetched; /* the bucket whose gradients are here or on their way here; -1: none */
    bool leaves;     /* what was updated is on its way to `staging`, and not yet in the file */
    ax_state_store_request in, out;
    ax_stream_event *came, *updated, *left; /* the copies to the slot, the kernels before the copies from it,
                                               these copies are done */
} ax_offload_slot;

/* The offloaded state of a parameter set. Array k of its `arrays` arrays begins at element k · elements of
 * the store. */
struct ax_offload_state {
    ax_ctx *ctx;
    ax_offload by;           /* resolved */
    int first, arrays;       /* the arrays AX_STATE_… first … first + arrays - 1 are offloaded */
    ax_dtype dtype;          /* of their elements */
    int64_t elements;        /* of each array, all matrices */
    int64_t bucket, buckets; /* elements of a bucket; number of buckets, 0 if updates use the store itself */
    ax_state_store *store;
    ax_device *host;  /* the cpu device that updates for a GPU; NULL: the context's device updates */
    ax_stream stream; /* of the device that updates */
    size_t grad_size,
        weight_size; /* bytes of an element of a gradient, and of weights as kernels read them */
    int slots;
    ax_offload_slot slot[AX_OFFLOAD_RING];
};

/* Decides which state of the set's parameters is offloaded and where in the store it begins: sets the
 * parameters' states and set->offload, NULL if there is none. */
AX_MUST_CHECK ax_status ax_offload_lay_out(ax_param_set *set);
/* Creates the store and the slots, and counts their bytes in set->memory. */
AX_MUST_CHECK ax_status ax_offload_make(ax_param_set *set);
void ax_offload_free(ax_param_set *set);
/* Returns the first offloaded element of a bucket; -1: there is no such bucket. */
int64_t ax_offload_begin_of(const ax_param_set *set, int64_t bucket);
/* Returns true if the state of p that only updates read is offloaded. */
bool ax_offload_has(const ax_param *p);

/* Access to an array of state that is in a store, s->offload, piece by piece, for set-up and checkpoints.
 * ax_offload_piece returns the largest number of elements of a piece. ax_offload_room sets *out to an address
 * for elements first … first+n-1 in the memory of the device that updates, whose stream is
 * s->offload->stream; nothing is on its way there. It is valid until the next call of a function of
 * ax_offload. ax_offload_fetch copies the elements there, and ax_offload_put copies them back to the store.
 * ax_offload_round rounds them to elements first … of `to`, on the context's device. ax_offload_move copies
 * elements between the store and host memory. */
int64_t ax_offload_piece(const ax_param_state *s);
AX_MUST_CHECK ax_status ax_offload_room(const ax_param_state *s, int64_t first, void **out);
AX_MUST_CHECK ax_status ax_offload_fetch(const ax_param_state *s, int64_t first, int64_t n);
AX_MUST_CHECK ax_status ax_offload_put(const ax_param_state *s, int64_t first, int64_t n);
AX_MUST_CHECK ax_status ax_offload_round(const ax_param_state *s, int64_t first, int64_t n,
                                         const ax_tensor *to);
AX_MUST_CHECK ax_status ax_offload_move(const ax_param_state *s, bool write, int64_t first, int64_t n,
                                        void *host);

#endif
