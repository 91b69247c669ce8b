/* The dry backend: no memory and no arithmetic. Allocation returns addresses that cannot be accessed, and
 * kernels and copies do nothing. The memory planner runs the real training step on this device; as a listener
 * of the device it learns which memory is used when, and how much work there is. */
#include "dev/backend.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096 };

/* The first address that is handed out. From this address on, programs have no memory on x86-64 (except by
 * explicit request with five-level paging) and on AArch64 (which ignores bits 56 to 63), so an access
 * faults. */
static const uint64_t first_address = UINT64_C(1) << 55;

static ax_status dry_open(ax_device *dev)
{
    _Atomic uint64_t *next;
    AX_TRY(ax_calloc(1, sizeof *next, &next));
    atomic_init(next, first_address);
    dev->memory = next;
    return AX_OK;
}

static void dry_close(ax_device *dev)
{
    free(dev->memory);
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
    _Atomic uint64_t *next = dev->memory;
    uint64_t span = (uint64_t)ax_round_up((int64_t)bytes, PAGE) + PAGE;
    *out = (void *)(uintptr_t)atomic_fetch_add(next, span);
    return AX_OK;
}

static void dry_free(ax_device *dev, void *memory, size_t bytes) { (void)dev, (void)memory, (void)bytes; }

static ax_status dry_copy_in(ax_stream *stream, void *device, const void *host, size_t bytes)
{
    (void)stream, (void)device, (void)host, (void)bytes;
    return AX_OK;
}

/* Writes zeros to the host memory in place of the result (a loss, a norm, a token), because nothing was
 * computed. */
static ax_status dry_copy_out(ax_stream *stream, void *host, const void *device, size_t bytes)
{
    (void)stream, (void)device;
    if (bytes && (uint64_t)(uintptr_t)host < first_address) /* an address of this device is no memory */
        memset(host, 0, bytes);
    return AX_OK;
}

static ax_status dry_kernel(ax_stream *stream, const void *args)
{
    (void)stream, (void)args;
    return AX_OK;
}

#define AX_DRY_KERNEL(name) [AX_K_##name] = dry_kernel,
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
    .kernel = {AX_KERNELS(AX_DRY_KERNEL)},
};
