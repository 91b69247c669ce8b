/* A store: memory outside the device, for the state of parameters that only updates read. It is pinned host
 * memory or an unnamed file, which no other process can open and which is gone when the process ends. A file
 * is read and written by a thread, one request after the other, while kernels run. */
#ifndef AXONN_PARALLEL_STORE_H
#define AXONN_PARALLEL_STORE_H

#include "axonn/parallel.h"

typedef struct ax_state_store ax_state_store;

/* A range of a store, and the host memory from which or to which it is copied. */
typedef struct ax_state_store_part {
    size_t at, bytes;
    void *memory;
} ax_state_store_part;

/* A request to read or write parts of a file. The caller fills in `write`, `parts` and `part`. */
typedef struct ax_state_store_request {
    bool write;
    int parts;
    ax_state_store_part part[AX_STATE_ARRAYS];
    bool waiting; /* the store has the request: it was started, and ax_state_store_wait has not returned since
                   */
    bool done;
    ax_status status;
    char message[320];
    struct ax_state_store_request *next;
} ax_state_store_request;

/* Allocate and free pinned memory as ax_pinned_alloc does; on a device without memory (dry) they give an
 * address of the device. */
AX_MUST_CHECK ax_status ax_state_store_alloc(ax_device *dev, size_t bytes, void **out);
void ax_state_store_free(ax_device *dev, void *memory, size_t bytes);

/* Creates a store of `bytes` zeros: in pinned memory of `dev`, or in a file in the directory by->dir, whose
 * blocks are reserved here. On a device without memory (dry) the store has none either. The caller owns *out.
 * Not collective. AX_ERR_MEMORY; AX_ERR_DATA: the directory cannot be written or has too little space.
 */
AX_MUST_CHECK ax_status ax_state_store_create(ax_device *dev, const ax_offload *by, size_t bytes,
                                              ax_state_store **out);
/* Waits for the requests in flight, whose errors are lost, and frees the store. */
void ax_state_store_destroy(ax_state_store **store);
/* Returns the address of a store in host memory; NULL for a file. */
void *ax_state_store_memory(const ax_state_store *store);

/* Starts a request of a file. Requests run in the order in which they are started. Until ax_state_store_wait
 * returns, the request and its memory must not be changed. */
void ax_state_store_start(ax_state_store *store, ax_state_store_request *request);
/* Waits until a request is done, and returns its status: AX_ERR_DATA if the file cannot be read or written.
 * AX_OK if the request was never started. */
AX_MUST_CHECK ax_status ax_state_store_wait(ax_state_store *store, ax_state_store_request *request);
/* Copies `bytes` bytes from or to `memory`, beginning at byte `at` of the store, and waits. */
AX_MUST_CHECK ax_status ax_state_store_move(ax_state_store *store, bool write, size_t at, size_t bytes,
                                            void *memory);

#endif
