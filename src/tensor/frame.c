/* Frames: the activation memory of a micro-batch, and the stack of tensors that forward saves for backward.
 * Read include/axonn/tensor.h ("frames") first.
 *
 * In record mode allocations get ascending addresses on the dry device, which has no memory. The frame
 * listens to the device: to each kernel and copy, and to each collective and message when it is started and
 * when it is awaited. An operand in the frame's range of addresses counts as a use of the allocations that it
 * covers. So each allocation gets a birth and a
 * last use, counted in operations since the task began. frame_plan.c then packs all allocations with these
 * lifetimes into one block. */
#include "tensor/frame.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static const size_t record_range = (size_t)1 << 48;

/* Returns the index of the running task's last allocation that starts at or before `offset`. */
static int allocation_at(const ax_frame *frame, size_t offset)
{
    const ax_frame_alloc_record *alloc = frame->task->alloc;
    int lo = 0, hi = frame->next - 1;
    while (lo < hi) {
        int mid = (lo + hi + 1) / 2;
        if (alloc[mid].offset <= offset)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

/* Sets the last use (`last`) of the allocations that the operand covers to the current operation. An operand
 * without elements counts as a use of the allocation that contains its address. */
static void mark_used(void *user, const ax_operand *operand)
{
    ax_frame *frame = user;
    uintptr_t begin = (uintptr_t)operand->at, block = (uintptr_t)frame->block;
    if (begin < block || begin - block >= frame->top)
        return;
    size_t offset = begin - block, end = offset + (size_t)operand->span * ax_dtype_size(operand->dtype);
    ax_frame_alloc_record *alloc = frame->task->alloc;
    int i = allocation_at(frame, offset);
    do
        alloc[i].last = ax_max(alloc[i].last, frame->clock);
    while (++i < frame->next && alloc[i].offset < end);
}

void ax_frame_use(ax_frame *frame, const void *at)
{
    if (frame->recording)
        mark_used(frame, &(ax_operand){.at = at, .dtype = AX_U8});
}

static void count_operation(void *user, const ax_device_event *event)
{
    ax_frame *frame = user;
    if (!frame->task)
        return;
    ax_device_event_operands(event, mark_used, frame);
    frame->clock++;
}

static ax_status frame_new(ax_ctx *ctx, size_t bytes, const ax_frame_plan *plan, ax_frame **out)
{
    ax_frame *frame;
    AX_TRY(ax_calloc(1, sizeof *frame, &frame));
    frame->ctx = ctx;
    frame->planned = plan;
    frame->recording = !plan && !bytes;
    frame->bytes = frame->recording ? record_range : bytes;
    ax_status status = ax_ctx_alloc(ctx, AX_MEMORY_ACTIVATIONS, frame->bytes, (void **)&frame->block);
    if (status != AX_OK) {
        free(frame);
        return status;
    }
    frame->listener = (ax_listener){
        frame->recording ? AX_ON_KERNEL | AX_ON_COPY | AX_ON_COLLECTIVE | AX_ON_MESSAGE | AX_ON_WAIT : 0,
        count_operation, frame, NULL};
    ax_device_listen(ctx->dev, &frame->listener);
    *out = frame;
    return AX_OK;
}

ax_status ax_frame_create(ax_ctx *ctx, size_t bytes, ax_frame **out)
{
    return frame_new(ctx, bytes, NULL, out);
}

static ax_status allocate_slot(ax_frame *frame, int slot)
{
    frame->slot_bytes = frame->planned->slot_bytes[slot];
    return frame->slot_bytes
               ? ax_ctx_alloc(frame->ctx, AX_MEMORY_ACTIVATIONS, frame->slot_bytes, (void **)&frame->slot)
               : AX_OK;
}

ax_status ax_frame_create_planned(ax_ctx *ctx, const ax_frame_plan *plan, ax_frame **out)
{
    AX_TRY(frame_new(ctx, plan->bytes, plan, out));
    ax_status status = allocate_slot(*out, 0);
    if (status != AX_OK)
        ax_frame_destroy(out);
    return status;
}

ax_status ax_frame_create_slot(ax_frame *first, int slot, ax_frame **out)
{
    if (!first->planned)
        return frame_new(first->ctx, first->recording ? 0 : first->bytes, NULL, out);
    ax_frame *frame;
    AX_TRY(ax_calloc(1, sizeof *frame, &frame));
    frame->ctx = first->ctx;
    frame->planned = first->planned;
    frame->block = first->block;
    frame->borrowed = true;
    frame->bytes = first->bytes;
    ax_status status = allocate_slot(frame, slot);
    if (status != AX_OK)
        ax_frame_destroy(&frame);
    *out = frame;
    return status;
}

void ax_frame_forget(ax_frame *frame)
{
    for (int i = 0; i < frame->tasks; i++)
        free(frame->recorded[i].alloc);
    free(frame->recorded);
    frame->recorded = frame->task = NULL;
    frame->tasks = 0;
}

void ax_frame_destroy(ax_frame **frame)
{
    ax_frame *f = *frame;
    if (!f)
        return;
    ax_device_unlisten(f->ctx->dev, &f->listener);
    if (!f->borrowed)
        ax_ctx_free(f->ctx, AX_MEMORY_ACTIVATIONS, f->block, f->bytes);
    if (f->slot)
        ax_ctx_free(f->ctx, AX_MEMORY_ACTIVATIONS, f->slot, f->slot_bytes);
    ax_frame_forget(f);
    for (int i = 0; i < f->host_blocks; i++)
        free(f->host[i]);
    free(f->host);
    free(f->stack);
    free(f->deferred);
    free(f);
    *frame = NULL;
}

ax_ctx *ax_frame_ctx(const ax_frame *frame) { return frame->ctx; }
const ax_batch *ax_frame_batch(const ax_frame *frame) { return frame->batch; }
const char *ax_frame_task_name(const ax_frame *frame) { return frame->name; }
size_t ax_frame_high_water(const ax_frame *frame) { return frame->high_water; }
bool ax_frame_training(const ax_frame *frame) { return frame->training; }
uint64_t ax_frame_train_tasks(const ax_frame *frame) { return frame->train_tasks; }

ax_status ax_frame_at_end(ax_frame *frame, ax_frame_end_fn *fn, void *user)
{
    ax_frame_end_fn *before = frame->at_end_user == user ? NULL : frame->at_end;
    void *before_user = frame->at_end_user;
    frame->at_end = fn;
    frame->at_end_user = user;
    return before ? before(before_user) : AX_OK;
}

static ax_status set_name(ax_frame *frame, const char *name)
{
    AX_CHECK(strlen(name) < sizeof frame->name, AX_ERR_INTERNAL,
             "the name of task \"%s\" is too long: it may have at most %zu bytes", name,
             sizeof frame->name - 1);
    memcpy(frame->name, name, strlen(name) + 1);
    return AX_OK;
}

ax_status ax_frame_next_part(ax_frame *frame, const char *name)
{
    AX_TRY(ax_frame_at_end(frame, NULL, NULL));
    AX_CHECK(frame->part < AX_FRAME_PARTS - 1, AX_ERR_INTERNAL,
             "ax_frame_next_part: part \"%s\" is one too many; a task of a frame has at most %d parts", name,
             AX_FRAME_PARTS);
    AX_TRY(set_name(frame, name));
    if (frame->recording) {
        frame->task->end[frame->part].allocs = frame->next;
        frame->task->end[frame->part].clock = frame->clock;
        frame->task->ends = ax_max(frame->task->ends, frame->part + 1);
    }
    frame->part++;
    return AX_OK;
}

/* ---- deferred contractions ----------------------------------------------------------------------- */

void ax_frame_set_deferring(ax_frame *frame, bool defers) { frame->defers = defers; }
bool ax_frame_defers(const ax_frame *frame) { return frame->defers; }

ax_status ax_frame_defer(ax_frame *frame, ax_frame_deferred_fn *fn, int n, void *const *user,
                         const char *spec, const ax_tensor *a, const ax_tensor *b)
{
    AX_ASSERT(n <= AX_BESIDE);
    if (frame->n_deferred == frame->deferred_capacity) {
        int capacity = frame->deferred_capacity ? 2 * frame->deferred_capacity : 64;
        ax_frame_deferred *deferred = realloc(frame->deferred, (size_t)capacity * sizeof *deferred);
        AX_CHECK(deferred, AX_ERR_MEMORY, "not enough memory for %d deferred contractions of a frame",
                 capacity);
        frame->deferred = deferred;
        frame->deferred_capacity = capacity;
    }
    ax_frame_deferred *d = &frame->deferred[frame->n_deferred++];
    *d = (ax_frame_deferred){.fn = fn, .n = n, .spec = spec, .b = *b};
    memcpy(d->user, user, 2 * (size_t)n * sizeof *user);
    memcpy(d->a, a, (size_t)n * sizeof *a);
    return AX_OK;
}

ax_status ax_frame_run_deferred(ax_frame *frame)
{
    frame->defers = false;
    for (int i = 0; i < frame->n_deferred; i++) {
        const ax_frame_deferred *d = &frame->deferred[i];
        AX_TRY(d->fn(frame, d->n, d->user, d->spec, d->a, &d->b));
    }
    frame->n_deferred = 0;
    return AX_OK;
}

/* ---- tasks --------------------------------------------------------------------------------------- */

static ax_frame_task *find_task(ax_frame_task *tasks, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(tasks[i].name, name))
            return &tasks[i];
    return NULL;
}

static ax_status begin_record(ax_frame *frame, const char *name)
{
    frame->clock = 0;
    frame->task = find_task(frame->recorded, frame->tasks, name);
    if (frame->task)
        return AX_OK;
    ax_frame_task *tasks = realloc(frame->recorded, (size_t)(frame->tasks + 1) * sizeof *tasks);
    AX_CHECK(tasks, AX_ERR_MEMORY, "not enough memory to record task \"%s\" of a frame", name);
    frame->recorded = tasks;
    frame->task = &tasks[frame->tasks++];
    *frame->task = (ax_frame_task){0};
    memcpy(frame->task->name, name, strlen(name) + 1);
    return AX_OK;
}

bool ax_frame_runs(const ax_frame *frame, const char *task)
{
    const ax_frame_task *planned =
        frame->planned ? find_task(frame->planned->task, frame->planned->tasks, task) : NULL;
    return !frame->planned || (planned && planned->kept_bytes <= frame->slot_bytes);
}

ax_status ax_frame_begin(ax_frame *frame, const char *task, ax_mode mode, const ax_batch *batch)
{
    if (frame->at_end)
        AX_TRY(ax_frame_at_end(frame, NULL, NULL));
    AX_TRY(set_name(frame, task));
    frame->top = 0;
    frame->next = 0;
    frame->host_used = 0;
    frame->depth = 0;
    frame->part = 0;
    frame->defers = false;
    frame->n_deferred = 0;
    frame->training = mode == AX_MODE_TRAIN;
    frame->run = (ax_frame_run){.saving = frame->training};
    frame->segments = NULL;
    frame->train_tasks += frame->training;
    frame->batch = batch;
    if (frame->recording)
        return begin_record(frame, task);
    if (frame->planned) {
        frame->task = find_task(frame->planned->task, frame->planned->tasks, task);
        AX_CHECK(frame->task, AX_ERR_INTERNAL,
                 "the frame's plan has no task \"%s\": run the task in the dry run too", task);
        AX_CHECK(frame->task->kept_bytes <= frame->slot_bytes, AX_ERR_INTERNAL,
                 "task \"%s\" keeps %zu bytes in its slot, which has %zu: by its plan the slot does not run "
                 "this task",
                 task, frame->task->kept_bytes, frame->slot_bytes);
    }
    return AX_OK;
}

/* Records an allocation of a frame on the dry device (record mode). If an earlier run of the task had an
 * allocation with the same number, checks that both have the same size. */
static ax_status record(ax_frame *frame, size_t bytes)
{
    ax_frame_task *task = frame->task;
    AX_CHECK(task, AX_ERR_INTERNAL,
             "memory of a frame can be allocated only in a task: call ax_frame_begin first");
    if (frame->next < task->n) {
        AX_CHECK(task->alloc[frame->next].bytes == bytes, AX_ERR_INTERNAL,
                 "allocation %d of task \"%s\" has %zu bytes and had %zu in an earlier run: a task must "
                 "allocate the same sizes in each run",
                 frame->next, task->name, bytes, task->alloc[frame->next].bytes);
    } else {
        if (task->n == task->capacity) {
            int capacity = task->capacity ? 2 * task->capacity : 64;
            ax_frame_alloc_record *alloc = realloc(task->alloc, (size_t)capacity * sizeof *alloc);
            AX_CHECK(alloc, AX_ERR_MEMORY,
                     "not enough memory to record allocation %d of task \"%s\" of a frame", task->n,
                     task->name);
            task->alloc = alloc;
            task->capacity = capacity;
        }
        task->alloc[task->n++] = (ax_frame_alloc_record){
            .bytes = bytes, .offset = frame->top, .birth = frame->clock, .last = frame->clock};
    }
    frame->next++;
    return AX_OK;
}

static ax_status allocate(ax_frame *frame, size_t bytes, void **out)
{
    size_t padded = (size_t)ax_round_up((int64_t)(bytes ? bytes : 1), AX_FRAME_ALIGN), offset = frame->top;
    char *block = frame->block;
    if (frame->recording)
        AX_TRY(record(frame, padded));
    if (frame->planned) {
        const ax_frame_task *task = frame->task;
        AX_CHECK(task && frame->next < task->n && task->alloc[frame->next].bytes == padded, AX_ERR_INTERNAL,
                 "allocation %d of task \"%s\" has %zu bytes, but the task's memory plan has no allocation "
                 "with this number and size: the dry run has made other allocations",
                 frame->next, task ? task->name : "none", padded);
        const ax_frame_alloc_record *planned = &task->alloc[frame->next++];
        offset = planned->offset;
        block = planned->kept ? frame->slot : block;
    } else {
        char need[32], have[32];
        AX_CHECK(padded <= frame->bytes - offset, AX_ERR_MEMORY,
                 "a frame of %s is too small to allocate another %s: create it with more bytes",
                 ax_format_bytes((double)frame->bytes, have), ax_format_bytes((double)padded, need));
        frame->top += padded;
    }
    frame->high_water = (size_t)ax_max((int64_t)frame->high_water, (int64_t)(offset + padded));
    *out = block + offset;
    ax_device *dev = frame->ctx->dev;
    if (dev->ops.poison)
        dev->ops.poison(dev, *out, bytes);
    return AX_OK;
}

ax_status ax_frame_scratch(ax_frame *frame, ax_dtype dtype, int64_t count, void **out)
{
    AX_CHECK(count >= 0 && count <= AX_TENSOR_MAX, AX_ERR_USAGE,
             "ax_frame_scratch: count is %lld; it must be from 0 to 2^48", (long long)count);
    return allocate(frame, (size_t)count * ax_dtype_size(dtype), out);
}

ax_status ax_frame_alloc(ax_frame *frame, const ax_tensor *like, ax_tensor *out)
{
    ax_tensor result = *like;
    AX_TRY(ax_tensor_check(like));
    AX_TRY(allocate(frame, (size_t)ax_tensor_bytes(frame->ctx->grid, like), &result.data));
    *out = result;
    return AX_OK;
}

ax_status ax_frame_alloc_beside(ax_frame *frame, int n, const ax_tensor *like, ax_tensor *out)
{
    const ax_grid *grid = frame->ctx->grid;
    const int64_t size = (int64_t)ax_dtype_size(like->dtype);
    int64_t rows = 1, cols = 0;
    char *data;
    for (int i = 0; i < n; i++) {
        AX_TRY(ax_tensor_check(&like[i]));
        cols += ax_tensor_extent(grid, &like[i], like[i].ndim - 1);
    }
    for (int d = 0; d + 1 < like->ndim; d++)
        rows *= ax_tensor_extent(grid, like, d);
    AX_CHECK(cols * size <= UINT32_MAX, AX_ERR_USAGE,
             "tensors beside each other in a frame would have joint rows of %lld elements; a joint row has "
             "at most 4 GiB: allocate them separately",
             (long long)cols);
    AX_TRY(ax_frame_scratch(frame, like->dtype, rows * cols, (void **)&data));
    for (int i = 0; i < n; i++) {
        out[i] = like[i];
        out[i].align = (uint32_t)(cols * size);
        out[i].data = data;
        data += ax_tensor_extent(grid, &like[i], like[i].ndim - 1) * size;
    }
    return AX_OK;
}

/* Adds a block of host memory to the frame. realloc moves only the list of blocks, never a block, because
 * callers hold addresses in the blocks. */
static ax_status add_host_block(ax_frame *frame)
{
    char **host = realloc(frame->host, (size_t)(frame->host_blocks + 1) * sizeof *host);
    AX_CHECK(host, AX_ERR_MEMORY,
             "not enough memory to list another block of a frame's host memory (%d so far)",
             frame->host_blocks);
    frame->host = host;
    AX_TRY(ax_calloc(AX_FRAME_HOST, 1, &host[frame->host_blocks]));
    frame->host_blocks++;
    return AX_OK;
}

ax_status ax_frame_host(ax_frame *frame, size_t bytes, void **out)
{
    size_t padded = (size_t)ax_round_up((int64_t)bytes, _Alignof(max_align_t)), used = frame->host_used;
    AX_ASSERT(padded <= AX_FRAME_HOST);
    if (used % AX_FRAME_HOST + padded > AX_FRAME_HOST)
        used = (size_t)ax_round_up((int64_t)used, AX_FRAME_HOST);
    if (used / AX_FRAME_HOST == (size_t)frame->host_blocks)
        AX_TRY(add_host_block(frame));
    *out = frame->host[used / AX_FRAME_HOST] + used % AX_FRAME_HOST;
    memset(*out, 0, bytes);
    frame->host_used = used + padded;
    return AX_OK;
}

ax_status ax_frame_save(ax_frame *frame, const ax_tensor *tensor)
{
    if (!frame->run.saving)
        return AX_OK;
    if (frame->depth == frame->stack_capacity) {
        int capacity = frame->stack_capacity ? 2 * frame->stack_capacity : 64;
        ax_tensor *stack = realloc(frame->stack, (size_t)capacity * sizeof *stack);
        AX_CHECK(stack, AX_ERR_MEMORY, "not enough memory for %d tensors on the stack of a frame", capacity);
        frame->stack = stack;
        frame->stack_capacity = capacity;
    }
    frame->stack[frame->depth++] = *tensor;
    return AX_OK;
}

ax_status ax_frame_restore(ax_frame *frame, ax_tensor *out)
{
    AX_CHECK(frame->depth > 0, AX_ERR_INTERNAL,
             "backward restores more tensors than forward saved: run forward in training mode on this frame");
    *out = frame->stack[--frame->depth];
    return AX_OK;
}
