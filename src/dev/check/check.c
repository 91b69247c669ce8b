/* The check backends: the kernels of another backend, on memory that host code must not access itself.
 *
 * Device memory is accessible only between `enter` and `leave` (ax_device_ops). The library calls them around
 * launches, copies, collectives and its other accesses to device memory. Host code that dereferences a device
 * pointer faults, because on a GPU that is an error. New memory is filled with 0xFF bytes, which are NaN in
 * every float type, and `poison` fills memory with these bytes again. So reading memory that was not written
 * makes the results NaN. */
#include "dev/backend.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { POISON = 0xFF };

typedef struct block {
    struct block *next;
    ax_region region;
} block;

/* The state of the device's memory (ax_device.memory). Invariant, when the mutex is free: every block is
 * accessible if depth > 0, and inaccessible if depth is 0. */
typedef struct checked_memory {
    pthread_mutex_t mutex;
    int depth; /* number of calls of `enter` minus calls of `leave`, over all threads */
    block *blocks;
} checked_memory;

static ax_status check_open(ax_device *dev)
{
    checked_memory *memory;
    AX_TRY(ax_calloc(1, sizeof *memory, &memory));
    pthread_mutex_init(&memory->mutex, NULL);
    dev->memory = memory;
    return AX_OK;
}

static void block_destroy(block *b)
{
    ax_region_destroy(&b->region);
    free(b);
}

static void check_close(ax_device *dev)
{
    checked_memory *memory = dev->memory;
    if (memory->blocks)
        ax_log(AX_LOG_WARN,
               "device %s is closed while some of its memory is not freed: call ax_device_free for it first",
               dev->ops.name);
    for (block *b = memory->blocks, *next; b; b = next) {
        next = b->next;
        block_destroy(b);
    }
    pthread_mutex_destroy(&memory->mutex);
    free(memory);
    dev->memory = NULL;
}

/* Sets the protection of a block. A failure is only logged, because it is noticed elsewhere: if a block stays
 * inaccessible, a kernel faults; if a block stays accessible, tests/dev/test_check.c fails. */
static void protect(const block *b, int protection)
{
    if (mprotect(b->region.base, b->region.bytes, protection))
        ax_log(AX_LOG_ERROR,
               "cannot change the access to %zu bytes of memory of the device that checks accesses "
               "(mprotect): %s",
               b->region.bytes, strerror(errno));
}

static void check_enter(ax_device *dev)
{
    checked_memory *memory = dev->memory;
    pthread_mutex_lock(&memory->mutex);
    if (memory->depth++ == 0)
        for (const block *b = memory->blocks; b; b = b->next)
            protect(b, PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&memory->mutex);
}

static void check_leave(ax_device *dev)
{
    checked_memory *memory = dev->memory;
    pthread_mutex_lock(&memory->mutex);
    AX_ASSERT(memory->depth > 0);
    if (--memory->depth == 0)
        for (const block *b = memory->blocks; b; b = b->next)
            protect(b, PROT_NONE);
    pthread_mutex_unlock(&memory->mutex);
}

static ax_status check_alloc(ax_device *dev, size_t bytes, void **out)
{
    checked_memory *memory = dev->memory;
    block *b;
    AX_TRY(ax_calloc(1, sizeof *b, &b));
    ax_status status = ax_region_create(bytes, &b->region);
    if (status != AX_OK) {
        free(b);
        return status;
    }
    memset(b->region.base, POISON, b->region.bytes);
    pthread_mutex_lock(&memory->mutex);
    b->next = memory->blocks;
    memory->blocks = b;
    if (memory->depth == 0)
        protect(b, PROT_NONE);
    pthread_mutex_unlock(&memory->mutex);
    *out = b->region.base;
    return AX_OK;
}

static void check_free(ax_device *dev, void *address, size_t bytes)
{
    (void)bytes;
    checked_memory *memory = dev->memory;
    pthread_mutex_lock(&memory->mutex);
    block **link = &memory->blocks;
    while (*link && (*link)->region.base != address)
        link = &(*link)->next;
    block *b = *link;
    if (b)
        *link = b->next;
    pthread_mutex_unlock(&memory->mutex);
    if (b)
        block_destroy(b);
    else
        ax_log(AX_LOG_ERROR,
               "device %s: ax_device_free got %p, which was not allocated on this device or is freed already",
               dev->ops.name, address);
}

static void check_poison(ax_device *dev, void *address, size_t bytes)
{
    check_enter(dev);
    memset(address, POISON, bytes);
    check_leave(dev);
}

#define CHECKED(id, title, computing)                                                                        \
    const ax_device_ops ax_backend_##id = {                                                                  \
        .name = title,                                                                                       \
        .help = "for tests: the kernels of " computing                                                       \
                " on memory full of NaN that faults when the host touches it",                               \
        .delegate = computing,                                                                               \
        .open = check_open,                                                                                  \
        .close = check_close,                                                                                \
        .alloc = check_alloc,                                                                                \
        .free = check_free,                                                                                  \
        .poison = check_poison,                                                                              \
        .enter = check_enter,                                                                                \
        .leave = check_leave,                                                                                \
    }

CHECKED(check, "check", "ref");
CHECKED(check_cpu, "check:cpu", "cpu");
