/* What a frame and its plan consist of: shared by frame.c and frame_plan.c. */
#ifndef AXONN_TENSOR_FRAME_H
#define AXONN_TENSOR_FRAME_H

#include "axonn/tensor.h"

enum { AX_FRAME_ALIGN = 64 };

/* One allocation of a task. Times count operations since the task began; [birth, last] are the operations
 * during which the memory must not be another's. */
typedef struct ax_frame_alloc_record {
    size_t bytes;  /* rounded up to AX_FRAME_ALIGN */
    size_t offset; /* in the recording range, or in the planned block */
    int64_t birth, last;
} ax_frame_alloc_record;

typedef struct ax_frame_task {
    char name[24];
    int n, capacity;
    ax_frame_alloc_record *alloc;
} ax_frame_task;

struct ax_frame_plan {
    size_t bytes, unshared, lower_bound;
    int tasks;
    ax_frame_task *task;
};

struct ax_frame {
    ax_ctx *ctx;
    char *block;
    size_t bytes, top, high_water;
    bool recording, training, saving;
    const ax_frame_plan *planned;
    const ax_batch *batch;
    ax_frame_task *task; /* the running one: recorded or planned */
    int next;            /* its next allocation */
    int64_t clock;
    ax_frame_task *recorded;
    int tasks;
    ax_tensor *stack;
    int depth, stack_capacity;
    char name[sizeof(((ax_frame_task *)0)->name)]; /* of the running task */
    ax_frame_end_fn *at_end;
    void *at_end_user;
    char **host; /* blocks of AX_FRAME_HOST bytes */
    int host_blocks;
    size_t host_used; /* bytes in use, whole blocks before the last one */
};

#endif
