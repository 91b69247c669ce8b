/* What backends share: the registry's tables and the memory of the host. Read axonn/dev.h first. */
#ifndef AXONN_DEV_BACKEND_H
#define AXONN_DEV_BACKEND_H

#include "axonn/dev.h"

#define AX_BACKEND(id) extern const ax_device_ops ax_backend_##id;
#include "dev/backends.def"
#undef AX_BACKEND

/* The backend of that name, or NULL. */
const ax_device_ops *ax_device_find(const char *name);

/* Bytes of the kernel's arguments without the padding behind the last, which is all the padding there is. */
size_t ax_kernel_args_used(ax_kernel kernel);

/* What ax_kernel_cost says, without the bytes: those take as long as to list the operands. */
double ax_kernel_flops(ax_kernel kernel, const void *args);

/* Refuses an element type that the kernel does not take. AX_ERR_USAGE. */
ax_status ax_kernel_check(ax_kernel kernel, const void *args);

/* Runs a kernel or gives it to the device, and nothing else: what ax_launch ends in. */
ax_status ax_device_run(ax_stream *stream, ax_kernel kernel, const void *args);

/* A launch while the device has a replay: runs it, or puts it off. */
ax_status ax_replay_launch(ax_stream *stream, ax_kernel kernel, const void *args);

/* Launches what a replay has put off; if that fails, the next cut or the end says so. */
void ax_replay_settle(ax_device *dev);

/* Host memory as device memory: zeroed pages between guard pages, and plain copies. */
ax_status ax_host_alloc(ax_device *dev, size_t bytes, void **out);
void ax_host_free(ax_device *dev, void *memory, size_t bytes);
ax_status ax_host_copy_in(ax_stream *stream, void *device, const void *host, size_t bytes);
ax_status ax_host_copy_out(ax_stream *stream, void *host, const void *device, size_t bytes);

#endif
