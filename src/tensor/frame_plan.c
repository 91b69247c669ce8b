/* Packs allocations with recorded lifetimes into one block (dynamic storage allocation by first fit).
 * Allocations are placed in order of size, the largest first, each at the lowest offset that is free during
 * its whole lifetime. The time is quadratic in the number of allocations. If there are more than
 * BY_SIZE_MOST (thousands of layers), they are packed in order of birth instead, as malloc and free would do
 * it.
 * This order is fast, because few ranges are free at a time, but the block may become larger. Read frame.c
 * first. */
#include "tensor/frame.h"

#include <stdlib.h>
#include <string.h>

/* Largest number of allocations that are packed in order of size; packing this number takes 0.2 s. */
enum { BY_SIZE_MOST = 16384 };

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

static int sooner_dead(const void *a, const void *b)
{
    const ax_frame_alloc_record *x = *(ax_frame_alloc_record *const *)a,
                                *y = *(ax_frame_alloc_record *const *)b;
    if (x->last != y->last)
        return x->last < y->last ? -1 : 1;
    return x < y ? -1 : x > y;
}

static bool alive_together(const ax_frame_alloc_record *a, const ax_frame_alloc_record *b)
{
    return a->birth <= b->last && b->birth <= a->last;
}

/* ---- packing in order of size -------------------------------------------------------------------- */

/* Gives `item` the lowest offset at which `item` overlaps no allocation in `placed` that is alive at the same
 * time (first fit). Then inserts `item` into `placed`, which is sorted by offset. */
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

static void pack_by_size(ax_frame_alloc_record **order, int n, ax_frame_alloc_record **placed)
{
    qsort(order, (size_t)n, sizeof *order, larger_first);
    for (int i = 0; i < n; i++)
        place_first_fit(placed, i, order[i]);
}

/* ---- packing in order of time -------------------------------------------------------------------- */

/* A free range of the block. Ranges are listed in order of offset; the last one has the end SIZE_MAX. */
typedef struct hole {
    size_t begin, end;
} hole;

typedef struct holes {
    hole *hole; /* array of n ranges; n is at most the number of live allocations + 1 */
    int n;
} holes;

/* Takes `bytes` from the lowest free range that is large enough (first fit). Returns the offset of the bytes
 * taken. */
static size_t take_lowest(holes *h, size_t bytes)
{
    int i = 0;
    while (h->hole[i].end - h->hole[i].begin < bytes)
        i++;
    size_t offset = h->hole[i].begin;
    h->hole[i].begin += bytes;
    if (h->hole[i].begin == h->hole[i].end)
        memmove(&h->hole[i], &h->hole[i + 1], (size_t)(--h->n - i) * sizeof *h->hole);
    return offset;
}

/* Makes the range [begin, end) free again and merges it with adjacent free ranges. */
static void give_back(holes *h, size_t begin, size_t end)
{
    int lo = 0, hi = h->n - 1; /* binary search for `lo`, the first free range after [begin, end). There is
                                  one, because the last free range ends at SIZE_MAX */
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (h->hole[mid].begin < end)
            lo = mid + 1;
        else
            hi = mid;
    }
    hole *at = &h->hole[lo];
    bool before = lo > 0 && at[-1].end == begin, behind = at->begin == end;
    size_t after = (size_t)(h->n - lo) * sizeof *at;
    if (before && behind) {
        at->begin = at[-1].begin;
        memmove(at - 1, at, after);
        h->n--;
    } else if (before) {
        at[-1].end = end;
    } else if (behind) {
        at->begin = begin;
    } else {
        memmove(at + 1, at, after);
        *at = (hole){begin, end};
        h->n++;
    }
}

/* Packs the n allocations of `order`, which are in order of birth. `ended` is scratch memory for n
 * pointers. */
static ax_status pack_by_time(ax_frame_alloc_record **order, int n, ax_frame_alloc_record **ended)
{
    memcpy(ended, order, (size_t)n * sizeof(*ended));
    qsort(ended, (size_t)n, sizeof *ended, sooner_dead);
    holes h = {.n = 1};
    AX_TRY(ax_calloc((size_t)n + 1, sizeof *h.hole, &h.hole));
    h.hole[0].end = SIZE_MAX;
    for (int i = 0, dead = 0; i < n; i++) {
        for (; ended[dead]->last < order[i]->birth; dead++)
            give_back(&h, ended[dead]->offset, ended[dead]->offset + ended[dead]->bytes);
        order[i]->offset = take_lowest(&h, order[i]->bytes);
    }
    free(h.hole);
    return AX_OK;
}

/* ---- plans --------------------------------------------------------------------------------------- */

/* Returns true if allocation i must be kept in the slot's own memory: there are several slots, and the task
 * uses the allocation in a later part than the part that made the allocation. */
static bool is_kept(const ax_frame_task *task, int i, int slots)
{
    int part = 0;
    while (part < task->ends && i >= task->end[part].allocs)
        part++;
    return slots > 1 && part < task->ends && task->alloc[i].last >= task->end[part].clock;
}

/* Packs the allocations with alloc->kept == kept into one block. Raises *bytes to the size of this block if
 * *bytes is smaller. `order` and `other` are scratch memory for one pointer per allocation of the task. */
static ax_status pack(ax_frame_task *task, bool kept, size_t *bytes, ax_frame_alloc_record **order,
                      ax_frame_alloc_record **other)
{
    int n = 0;
    for (int i = 0; i < task->n; i++)
        if (task->alloc[i].kept == kept)
            order[n++] = &task->alloc[i];
    if (n > BY_SIZE_MOST)
        AX_TRY(pack_by_time(order, n, other));
    else
        pack_by_size(order, n, other);
    for (int i = 0; i < n; i++) {
        size_t end = order[i]->offset + order[i]->bytes;
        *bytes = (size_t)ax_max((int64_t)*bytes, (int64_t)end);
    }
    return AX_OK;
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
    for (int i = 0; i < task->n; i++)
        task->alloc[i].kept = is_kept(task, i, plan->slots);
    ax_frame_alloc_record **order = NULL;
    AX_TRY(ax_calloc(2 * (size_t)task->n, sizeof *order, &order));
    ax_status status = pack(task, false, &plan->bytes, order, order + task->n);
    if (status == AX_OK)
        status = pack(task, true, &task->kept_bytes, order, order + task->n);
    free(order);
    return status;
}

/* Makes each slot's own block as large as the tasks need that the slot may run. */
static void size_slots(ax_frame_plan *plan, ax_frame_runs_fn *runs, const void *user)
{
    for (int slot = 0; slot < plan->slots; slot++)
        for (const ax_frame_task *task = plan->task; task < plan->task + plan->tasks; task++)
            if (task->kept_bytes > plan->slot_bytes[slot] && (!runs || runs(user, slot, task->name)))
                plan->slot_bytes[slot] = task->kept_bytes;
}

ax_status ax_frame_plan_create(const ax_frame *frame, int slots, ax_frame_runs_fn *runs, const void *user,
                               ax_frame_plan **out)
{
    AX_CHECK(frame->recording, AX_ERR_INTERNAL,
             "ax_frame_plan_create: the frame has no record: create it on the dry device, without a plan");
    ax_frame_plan *plan;
    AX_TRY(ax_calloc(1, sizeof *plan, &plan));
    plan->slots = slots;
    ax_status status = ax_calloc((size_t)frame->tasks, sizeof *plan->task, &plan->task);
    if (status == AX_OK)
        status = ax_calloc((size_t)slots, sizeof *plan->slot_bytes, &plan->slot_bytes);
    for (int i = 0; status == AX_OK && i < frame->tasks; i++)
        status = plan_task(&frame->recorded[i], plan);
    if (status != AX_OK) {
        ax_frame_plan_destroy(&plan);
        return status;
    }
    size_slots(plan, runs, user);
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
    free((*plan)->slot_bytes);
    free(*plan);
    *plan = NULL;
}

size_t ax_frame_plan_bytes(const ax_frame_plan *plan)
{
    size_t bytes = plan->bytes;
    for (int i = 0; i < plan->slots; i++)
        bytes += plan->slot_bytes[i];
    return bytes;
}
