/* Private header of the room dev: the registry of backends, kernel rows, replays, and host memory as device
 * memory. Read axonn/dev.h first. */
#ifndef AXONN_DEV_BACKEND_H
#define AXONN_DEV_BACKEND_H

#include "axonn/dev.h"

#define AX_BACKEND(id) extern const ax_device_ops ax_backend_##id;
#include "dev/backends.def"
#undef AX_BACKEND

/* Returns the table of the backend with this name, or NULL. */
const ax_device_ops *ax_device_find(const char *name);

/* Returns the number of bytes from the start of the kernel's argument struct to the end of its last field.
 * There is no padding among them. */
size_t ax_kernel_args_used(ax_kernel kernel);

/* Returns the floating-point operations of a call, *flops of ax_kernel_cost. It is faster than
 * ax_kernel_cost, which also counts bytes and needs the list of operands for that. */
double ax_kernel_flops(ax_kernel kernel, const void *args);

/* Checks the arguments of a kernel, such as its dtypes. AX_ERR_USAGE if the kernel does not support them. */
ax_status ax_kernel_check(ax_kernel kernel, const void *args);

/* Runs or enqueues a kernel, without the checks, counts and times of ax_launch. */
ax_status ax_device_run(ax_stream *stream, ax_kernel kernel, const void *args);

/* Launches a kernel while a replay has begun: runs it, or defers it. */
ax_status ax_replay_launch(ax_stream *stream, ax_kernel kernel, const void *args);

/* Runs the deferred launches of a replay. If one fails, the next ax_replay_cut or ax_replay_end returns the
 * error. */
void ax_replay_cut_keep_error(ax_device *dev);

/* Memory functions for backends that compute on the host: zeroed pages between guard pages, and memcpy. */
ax_status ax_host_alloc(ax_device *dev, size_t bytes, void **out);
void ax_host_free(ax_device *dev, void *memory, size_t bytes);
ax_status ax_host_copy_in(ax_stream *stream, void *device, const void *host, size_t bytes);
ax_status ax_host_copy_out(ax_stream *stream, void *host, const void *device, size_t bytes);

#endif
