/* Private header of src/dev: the registry of backends, the table of kernels, replays, and the memory
 * functions of backends that compute on the host. Read axonn/dev.h first. */
#ifndef AXONN_DEV_BACKEND_H
#define AXONN_DEV_BACKEND_H

#include "axonn/dev.h"

#define AX_BACKEND(id) extern const ax_device_ops ax_backend_##id;
#include "dev/backends.def"
#undef AX_BACKEND

/* Returns the function table of the backend `name`, or NULL if there is none. */
const ax_device_ops *ax_device_find(const char *name);

/* Returns the number of bytes from the start of the kernel's argument struct to the end of its last field.
 * These bytes contain no padding, so memcmp can compare them. */
size_t ax_kernel_args_used(ax_kernel kernel);

/* Checks the arguments of a kernel, such as its dtypes. AX_ERR_USAGE if the kernel does not support them. */
ax_status ax_kernel_check(ax_kernel kernel, const void *args);

/* Runs or enqueues a kernel, without the argument check, the listeners and the timing of ax_launch. */
ax_status ax_device_run(ax_stream *stream, ax_kernel kernel, const void *args);

/* Launches a kernel between ax_replay_begin and ax_replay_end: runs the kernel, or defers it (replay.c). */
ax_status ax_replay_launch(ax_stream *stream, ax_kernel kernel, const void *args);

/* Runs the launches that the device's replay has deferred, if a replay has begun (ax_device.replay): they
 * equal recorded launches and have not run yet. If one of them fails, the next ax_replay_cut or ax_replay_end
 * returns the error. */
void ax_replay_cut_keep_error(ax_device *dev);

/* Tells listeners that a copy is about to be enqueued, which accesses `bytes` bytes of the device at `at`. */
void ax_device_tell_copy(const ax_device *dev, const void *at, size_t bytes, ax_access access);

/* Memory functions for backends that compute on the host: allocation of zeroed pages between guard pages, and
 * copies by memcpy. */
ax_status ax_host_alloc(ax_device *dev, size_t bytes, void **out);
void ax_host_free(ax_device *dev, void *memory, size_t bytes);
ax_status ax_host_copy_in(ax_stream *stream, void *device, const void *host, size_t bytes);
ax_status ax_host_copy_out(ax_stream *stream, void *host, const void *device, size_t bytes);

#endif
