/* The structs of frames (the activation memory of a micro-batch) and of their memory plans, shared by frame.c
 * and frame_plan.c. A task is work with a plan of its own, such as "train"; it may have several parts, such
 * as forward and backward (ax_frame_next_part). A slot is one of several frames with the same plan, one for
 * each micro-batch in flight (ax_frame_create_slot). */
#ifndef AXONN_TENSOR_FRAME_H
#define AXONN_TENSOR_FRAME_H

#include "axonn/tensor.h"

enum { AX_FRAME_ALIGN = 64, AX_FRAME_PARTS = 3 };

/* The contractions that one call of ax_frame_defer postponed: those of a[i] and `b`, for i below n. user[i]
 * and user[n + i] belong to a[i]. ax_frame_run_deferred passes all of this to `fn`. */
typedef struct ax_frame_deferred {
    ax_frame_deferred_fn *fn;
    int n;
    void *user[2 * AX_BESIDE];
    const char *spec;
    ax_tensor a[AX_BESIDE], b;
} ax_frame_deferred;

/* One allocation of a task. birth and last are numbers of operations, counted from the beginning of the task;
 * no other allocation may use the memory during the operations birth … last. */
typedef struct ax_frame_alloc_record {
    size_t bytes;  /* size, rounded up to a multiple of AX_FRAME_ALIGN */
    size_t offset; /* while recording: offset in a range of addresses that has no memory; in a plan: offset in
                      the block that all frames of the plan (slots) share or, if `kept`, in the slot's own
                      block */
    int64_t birth, last;
    bool kept; /* in a plan for several slots: several parts of the task use the allocation, so no other slot
                  may use its memory; false while recording */
} ax_frame_alloc_record;

typedef struct ax_frame_task {
    char name[24];
    int n, capacity;
    ax_frame_alloc_record *alloc;
    size_t kept_bytes; /* in a plan: size of the block for the allocations that are `kept` */
    int ends;          /* number of entries of `end`: the number of parts of the task - 1 */
    struct {
        int allocs;    /* number of allocations up to the end of the part */
        int64_t clock; /* number of operations up to the end of the part */
    } end[AX_FRAME_PARTS - 1];
} ax_frame_task;

struct ax_frame_plan {
    size_t bytes; /* size of the block of memory that all slots (frames of the plan) share */
    int slots;
    size_t *slot_bytes; /* [slots]: size of each slot's own block: the most that a task of the slot keeps */
    int tasks;
    ax_frame_task *task;
};

struct ax_frame {
    ax_ctx *ctx;
    char *block;
    bool borrowed; /* another frame allocated `block` and frees it */
    char *slot; /* this frame's own block, for allocations that no other frame may overwrite (`kept`); NULL:
                   there are none, or there is no plan */
    size_t slot_bytes; /* size of `slot` */
    size_t bytes, top, high_water;
    bool recording, training;
    ax_frame_run run;
    ax_frame_segment *segments; /* the segments that backward has yet to run again, the last first */
    const ax_frame_plan *planned;
    const ax_batch *batch;
    ax_frame_task *task;  /* the running task, in `recorded` or in `planned`; NULL before the first task, and
                             if allocations are neither recorded nor planned (bump mode) */
    int next;             /* index of the running task's next allocation */
    int64_t clock;        /* number of device operations since the task began (record mode only) */
    ax_listener listener; /* counts the operations (record mode only) */
    int part;             /* index of the running task's part */
    bool defers;
    ax_frame_deferred *deferred;
    int n_deferred, deferred_capacity;
    uint64_t train_tasks; /* number of tasks begun in training mode (AX_MODE_TRAIN) so far */
    ax_frame_task *recorded;
    int tasks;
    ax_tensor *stack;
    int depth, stack_capacity;
    char name[sizeof(((ax_frame_task *)0)->name)]; /* name of the running task */
    ax_frame_end_fn *at_end;
    void *at_end_user;
    char **host; /* blocks of AX_FRAME_HOST bytes of host memory, given out by ax_frame_host */
    int host_blocks;
    size_t host_used; /* offset of the first free byte, counted over all blocks */
};

/* In record mode, counts as a use of the allocation that contains the address, by the next operation. */
void ax_frame_use(ax_frame *frame, const void *at);

#endif
