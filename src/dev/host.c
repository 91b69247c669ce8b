/* Host memory as device memory, for the backends that compute on the host. */
#include "dev/backend.h"

#include <string.h>

ax_status ax_host_alloc(ax_device *dev, size_t bytes, void **out)
{
    (void)dev;
    ax_region region;
    AX_TRY(ax_region_create(bytes, &region));
    *out = region.base;
    return AX_OK;
}

void ax_host_free(ax_device *dev, void *memory, size_t bytes)
{
    (void)dev;
    ax_region region = {memory, (size_t)ax_round_up((int64_t)(bytes ? bytes : 1), 4096)};
    ax_region_destroy(&region);
}

ax_status ax_host_copy_in(ax_stream *stream, void *device, const void *host, size_t bytes)
{
    (void)stream;
    if (bytes)
        memcpy(device, host, bytes);
    return AX_OK;
}

ax_status ax_host_copy_out(ax_stream *stream, void *host, const void *device, size_t bytes)
{
    (void)stream;
    if (bytes)
        memcpy(host, device, bytes);
    return AX_OK;
}
