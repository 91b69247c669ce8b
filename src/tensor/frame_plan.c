/* Packs recorded lifetimes into one block (dynamic storage allocation by first fit): largest allocation
 * first, each at the lowest offset that is free during its whole lifetime. Read frame.c first. */
#include "tensor/frame.h"

#include <stdlib.h>
#include <string.h>

static int larger_first(const void *a, const void *b)
{
    const ax_frame_alloc_record *x = *(ax_frame_alloc_record *const *)a,
                                *y = *(ax_frame_alloc_record *const *)b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    if (x->birth != y->birth)
        return x->birth < y->birth ? -1 : 1;
    return x < y ? -1 : 1;
}

static bool alive_together(const ax_frame_alloc_record *a, const ax_frame_alloc_record *b)
{
    return a->birth <= b->last && b->birth <= a->last;
}

/* First fit: gives `item` the lowest offset that overlaps no placed allocation alive at the same time, and
 * inserts it into `placed`, which is sorted by offset. */
static void place_first_fit(ax_frame_alloc_record **placed, int n, ax_frame_alloc_record *item)
{
    size_t offset = 0;
    for (int i = 0; i < n; i++) {
        if (!alive_together(placed[i], item))
            continue;
        if (placed[i]->offset >= offset + item->bytes)
            break;
        if (placed[i]->offset + placed[i]->bytes > offset)
            offset = placed[i]->offset + placed[i]->bytes;
    }
    item->offset = offset;
    int at = n;
    while (at > 0 && placed[at - 1]->offset > offset) {
        placed[at] = placed[at - 1];
        at--;
    }
    placed[at] = item;
}

static ax_status pack(ax_frame_task *task, size_t *bytes)
{
    ax_frame_alloc_record **order, **placed;
    AX_TRY(ax_calloc((size_t)task->n, sizeof *order, &order));
    ax_status status = ax_calloc((size_t)task->n, sizeof *placed, &placed);
    if (status == AX_OK) {
        for (int i = 0; i < task->n; i++)
            order[i] = &task->alloc[i];
        qsort(order, (size_t)task->n, sizeof *order, larger_first);
        for (int i = 0; i < task->n; i++) {
            place_first_fit(placed, i, order[i]);
            *bytes = (size_t)ax_max((int64_t)*bytes, (int64_t)(order[i]->offset + order[i]->bytes));
        }
        free(placed);
    }
    free(order);
    return status;
}

/* Adds the sizes of all allocations to *unshared, and raises *peak to the most bytes alive at any operation.
 * Allocations are in order of birth, so the maximum is reached at one of the births. */
static void measure(const ax_frame_task *task, size_t *unshared, size_t *peak)
{
    for (int i = 0; i < task->n; i++) {
        size_t alive = 0;
        *unshared += task->alloc[i].bytes;
        for (int j = 0; j <= i; j++)
            if (task->alloc[j].last >= task->alloc[i].birth)
                alive += task->alloc[j].bytes;
        *peak = (size_t)ax_max((int64_t)*peak, (int64_t)alive);
    }
}

static ax_status plan_task(const ax_frame_task *recorded, ax_frame_plan *plan)
{
    ax_frame_task *task = &plan->task[plan->tasks];
    *task = *recorded;
    task->capacity = task->n;
    AX_TRY(ax_calloc((size_t)task->n, sizeof *task->alloc, &task->alloc));
    plan->tasks++;
    if (task->n)
        memcpy(task->alloc, recorded->alloc, (size_t)task->n * sizeof *task->alloc);
    size_t unshared = 0;
    measure(task, &unshared, &plan->lower_bound);
    plan->unshared = (size_t)ax_max((int64_t)plan->unshared, (int64_t)unshared);
    return pack(task, &plan->bytes);
}

ax_status ax_frame_plan_create(const ax_frame *frame, ax_frame_plan **out)
{
    AX_CHECK(frame->recording, AX_ERR_INTERNAL, "a plan can be made only from a frame on the dry device");
    ax_frame_plan *plan;
    AX_TRY(ax_calloc(1, sizeof *plan, &plan));
    ax_status status = ax_calloc((size_t)frame->tasks, sizeof *plan->task, &plan->task);
    for (int i = 0; status == AX_OK && i < frame->tasks; i++)
        status = plan_task(&frame->recorded[i], plan);
    if (status != AX_OK) {
        ax_frame_plan_destroy(&plan);
        return status;
    }
    *out = plan;
    return AX_OK;
}

void ax_frame_plan_destroy(ax_frame_plan **plan)
{
    if (!*plan)
        return;
    for (int i = 0; i < (*plan)->tasks; i++)
        free((*plan)->task[i].alloc);
    free((*plan)->task);
    free(*plan);
    *plan = NULL;
}

size_t ax_frame_plan_bytes(const ax_frame_plan *plan) { return plan->bytes; }
size_t ax_frame_plan_unshared(const ax_frame_plan *plan) { return plan->unshared; }
size_t ax_frame_plan_lower_bound(const ax_frame_plan *plan) { return plan->lower_bound; }
