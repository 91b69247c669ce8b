/* The dry backend: no memory and no arithmetic. Allocation returns addresses that cannot be accessed.
 * Launches and copies pass their operands to the device's observer, and ax_launch counts the work of
 * launches. The memory planner runs the real training step on this device to learn which memory is used when,
 * and how much work there is. */
#include "dev/backend.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096 };

/* The first address that is handed out. From this address on, programs have no memory on x86-64 (except by
 * explicit request with five-level paging) and on AArch64 (which ignores bits 56 to 63), so an access
 * faults. */
static const uint64_t first_address = UINT64_C(1) << 55;

typedef struct dry_memory {
    _Atomic uint64_t next;
    /* The operands (memory that is read or written) of the current kernel launch, collected for the device's
     * observer (a callback). */
    ax_operand *operand;
    int64_t operands, room;
    bool full; /* there was not enough memory for the list of operands, so an operand is missing */
} dry_memory;

static ax_status dry_open(ax_device *dev)
{
    dry_memory *memory;
    AX_TRY(ax_calloc(1, sizeof *memory, &memory));
    atomic_init(&memory->next, first_address);
    dev->memory = memory;
    return AX_OK;
}

static void dry_close(ax_device *dev)
{
    dry_memory *memory = dev->memory;
    free(memory->operand);
    free(memory);
    dev->memory = NULL;
}

/* Returns the workspace of the cpu backend, because memory plans that are made on this device are for the
 * host. */
static size_t dry_workspace(int threads)
{
    const ax_device_ops *cpu = ax_device_find("cpu");
    return cpu && cpu->workspace ? cpu->workspace(threads) : 0;
}

/* Allocates addresses. Allocations are at least a page apart, so that the end of one allocation is not the
 * address of the next. */
static ax_status dry_alloc(ax_device *dev, size_t bytes, void **out)
{
    dry_memory *memory = dev->memory;
    uint64_t span = (uint64_t)ax_round_up((int64_t)bytes, PAGE) + PAGE;
    *out = (void *)(uintptr_t)atomic_fetch_add(&memory->next, span);
    return AX_OK;
}

static void dry_free(ax_device *dev, void *memory, size_t bytes)
{
    (void)dev;
    (void)memory;
    (void)bytes;
}

static void observe_copy(const ax_device *dev, const void *device, size_t bytes, ax_access access)
{
    if (dev->observe)
        dev->observe(dev->observe_user, &(ax_operand){device, (int64_t)bytes, (int64_t)bytes, AX_U8, access},
                     1);
}

static ax_status dry_copy_in(ax_stream *stream, void *device, const void *host, size_t bytes)
{
    (void)host;
    observe_copy(stream->dev, device, bytes, AX_WRITE);
    return AX_OK;
}

/* Writes zeros to the host memory in place of the result (a loss, a norm, a token), because nothing was
 * computed. */
static ax_status dry_copy_out(ax_stream *stream, void *host, const void *device, size_t bytes)
{
    observe_copy(stream->dev, device, bytes, AX_READ);
    if (bytes && (uint64_t)(uintptr_t)host < first_address) /* an address of this device is no memory */
        memset(host, 0, bytes);
    return AX_OK;
}

static void collect_operand(void *user, const ax_operand *operand)
{
    dry_memory *memory = user;
    if (memory->operands == memory->room) {
        int64_t room = memory->room ? 2 * memory->room : 16;
        ax_operand *more = realloc(memory->operand, (size_t)room * sizeof *more);
        memory->full = memory->full || !more;
        if (!more)
            return;
        memory->operand = more;
        memory->room = room;
    }
    memory->operand[memory->operands++] = *operand;
}

static ax_status dry_launch(ax_stream *stream, ax_kernel kernel, const void *args)
{
    const ax_device *dev = stream->dev;
    dry_memory *memory = dev->memory;
    if (!dev->observe)
        return AX_OK;
    memory->operands = 0;
    ax_kernel_operands(kernel, args, collect_operand, memory);
    AX_CHECK(!memory->full, AX_ERR_MEMORY,
             "not enough memory to list the operands of kernel %s in the dry run", ax_kernel_name(kernel));
    dev->observe(dev->observe_user, memory->operand, memory->operands);
    return AX_OK;
}

const ax_device_ops ax_backend_dry = {
    .name = "dry",
    .help =
        "allocates and computes nothing: counts work, and tells the memory planner when each array is used",
    .open = dry_open,
    .close = dry_close,
    .imaginary = true,
    .workspace = dry_workspace,
    .alloc = dry_alloc,
    .free = dry_free,
    .copy_in = dry_copy_in,
    .copy_out = dry_copy_out,
    .launch = dry_launch,
};
