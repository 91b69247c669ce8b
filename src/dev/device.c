/* The registry of backends, the opening of devices, and public functions such as ax_launch and ax_copy_in,
 * which call the functions of the device's backend. */
#include "dev/backend.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define AX_BACKEND(id) &ax_backend_##id,
static const ax_device_ops *const backends[] = {
#include "dev/backends.def"
};
#undef AX_BACKEND

int ax_device_count(void) { return (int)AX_COUNT(backends); }

const ax_device_ops *ax_device_backend(int index)
{
    return index >= 0 && index < ax_device_count() ? backends[index] : NULL;
}

const ax_device_ops *ax_device_find(const char *name)
{
    for (size_t i = 0; name && i < AX_COUNT(backends); i++)
        if (!strcmp(backends[i]->name, name))
            return backends[i];
    return NULL;
}

/* Returns the function table of the backend from which `ops` inherits its NULL entries; NULL if there is
 * none, or if it is in a plugin that cannot be loaded. */
static const ax_device_ops *delegate_of(const ax_device_ops *ops)
{
    return ops->plugin ? ops->plugin() : ax_device_find(ops->delegate);
}

enum {
    INHERITED = offsetof(ax_device_ops, links)
}; /* offset in ax_device_ops of the first entry that can be inherited; it and all entries after it are
      pointers */
_Static_assert((sizeof(ax_device_ops) - INHERITED) % sizeof(ax_kernel_fn *) == 0 &&
                   sizeof(ax_kernel_fn *) == sizeof(void *),
               "an entry after `links` is not a pointer");

static void inherit(ax_device_ops *ops, const ax_device_ops *from)
{
    for (size_t at = INHERITED; at < sizeof *ops; at += sizeof(ax_kernel_fn *)) {
        ax_kernel_fn *entry;
        memcpy(&entry, (char *)ops + at, sizeof entry);
        if (!entry)
            memcpy((char *)ops + at, (const char *)from + at, sizeof entry);
    }
    ops->discrete_memory = ops->discrete_memory || from->discrete_memory;
}

/* Fills the NULL entries of `ops` with those of its delegate (the backend from which it inherits), then with
 * those of the delegate's delegate, and so on. */
static void resolve(ax_device_ops *ops)
{
    for (const ax_device_ops *from = delegate_of(ops); from; from = delegate_of(from))
        inherit(ops, from);
}

static const char *why_absent(const ax_device_ops *ops)
{
    for (; ops; ops = delegate_of(ops)) {
        const char *why = ops->absent ? ops->absent() : NULL;
        if (why)
            return why;
    }
    return NULL;
}

const char *ax_device_absent(const char *name)
{
    const ax_device_ops *ops = ax_device_find(name);
    return ops ? why_absent(ops) : "no device has this name";
}

static void close_chain(ax_device *dev, const ax_device_ops *ops)
{
    for (; ops; ops = delegate_of(ops))
        if (ops->close)
            ops->close(dev);
}

/* Calls the `open` functions of the delegates of `ops`, the last delegate first, then ops->open. If one of
 * them fails, the backends opened before it are closed. `close` is not called for the backend that failed. */
static ax_status open_chain(ax_device *dev, const ax_device_ops *ops)
{
    const ax_device_ops *delegate = delegate_of(ops);
    if (delegate)
        AX_TRY(open_chain(dev, delegate));
    ax_status status = ops->open ? ops->open(dev) : AX_OK;
    if (status != AX_OK)
        close_chain(dev, delegate);
    return status;
}

static ax_status fail_device_name(const char *name, const ax_device_ops *ops)
{
    ax_buf names = {0};
    for (int i = 0; i < ax_device_count(); i++)
        if (!why_absent(backends[i]))
            AX_TRY(ax_buf_printf(&names, "%s%s", names.size ? ", " : "", backends[i]->name));
    ax_status status =
        ops ? ax_fail(AX_ERR_USAGE, "device \"%s\" cannot be used here: %s; usable devices: %s", name,
                      why_absent(ops), names.data)
            : ax_fail(AX_ERR_USAGE, "no device is named \"%s\"; usable devices: %s", name, names.data);
    ax_buf_fini(&names);
    return status;
}

ax_status ax_device_open(const char *name, int threads, ax_device **out)
{
    return ax_device_open_bound(name, threads, NULL, out);
}

ax_status ax_device_open_bound(const char *name, int threads, const ax_binding *binding, ax_device **out)
{
    *out = NULL;
    const ax_device_ops *ops = ax_device_find(name);
    if (!ops || why_absent(ops))
        return fail_device_name(name ? name : "", ops);
    AX_CHECK(threads >= 0, AX_ERR_USAGE, "device %s: threads must be 0 (all cores) or more, not %d", name,
             threads);
    ax_device *dev;
    AX_TRY(ax_calloc(1, sizeof *dev, &dev));
    dev->ops = *ops;
    resolve(&dev->ops);
    dev->threads = threads ? threads : ax_cores_usable();
    dev->binding = binding;
    ax_status status = open_chain(dev, ops);
    dev->binding = NULL;
    if (status != AX_OK)
        free(dev);
    else
        *out = dev;
    return status;
}

/* Sets *out to the function table of backend `name`, whose NULL entries are replaced by inherited ones. */
static ax_status resolve_name(const char *name, ax_device_ops *out)
{
    const ax_device_ops *ops = ax_device_find(name);
    *out = (ax_device_ops){.name = NULL};
    if (!ops)
        return fail_device_name(name ? name : "", NULL);
    *out = *ops;
    resolve(out);
    return AX_OK;
}

ax_status ax_device_workspace(const char *name, int threads, size_t *bytes)
{
    ax_device_ops ops;
    AX_TRY(resolve_name(name, &ops));
    *bytes = ops.workspace ? ops.workspace(threads ? threads : ax_cores_usable()) : 0;
    return AX_OK;
}

static bool has_host_access(const ax_device_ops *ops) { return !ops->discrete_memory && !ops->enter; }

bool ax_device_host_access(const ax_device *dev) { return has_host_access(&dev->ops); }

ax_status ax_device_name_host_access(const char *name, bool *yes)
{
    ax_device_ops ops;
    AX_TRY(resolve_name(name, &ops));
    *yes = has_host_access(&ops);
    return AX_OK;
}

void ax_device_close(ax_device **dev)
{
    if (!*dev)
        return;
    close_chain(*dev, ax_device_find((*dev)->ops.name));
    free(*dev);
    *dev = NULL;
}

ax_status ax_device_alloc(ax_device *dev, size_t bytes, void **out)
{
    *out = NULL;
    return dev->ops.alloc(dev, bytes, out);
}

void ax_device_free(ax_device *dev, void *memory, size_t bytes)
{
    ax_replay_cut_keep_error(dev); /* runs the replay's deferred launches, which may use this memory */
    if (memory)
        dev->ops.free(dev, memory, bytes);
}

int64_t ax_device_available(const char *name, int local_rank, int *place)
{
    const ax_device_ops *ops = ax_device_find(name);
    ax_device_ops resolved = {0};
    if (ops && !why_absent(ops)) {
        resolved = *ops;
        resolve(&resolved);
    }
    *place = 0;
    return resolved.available ? resolved.available(local_rank, place) : ax_memory_available();
}

int64_t ax_device_held(ax_device *dev) { return dev->ops.held ? dev->ops.held(dev) : ax_memory_peak(); }

ax_status ax_device_describe(const char *name, char *out, size_t size)
{
    const ax_device_ops *ops = ax_device_find(name);
    ax_device *dev;
    out[0] = 0;
    for (; ops && !ops->describe; ops = delegate_of(ops)) {
    }
    if (!ops)
        return AX_OK;
    ax_status status = ax_device_open(name, 1, &dev);
    if (dev)
        dev->ops.describe(dev, out, size);
    ax_device_close(&dev);
    return status;
}

bool ax_device_uses_host_memory(const ax_device *dev) { return dev->ops.alloc == ax_host_alloc; }

ax_status ax_device_keep_plans(ax_device *dev, const char *dir, const char *from, bool *kept)
{
    *kept = false;
    return dev->ops.keep_plans ? dev->ops.keep_plans(dev, dir, from, kept) : AX_OK;
}

static void enter(ax_device *dev)
{
    if (dev->ops.enter)
        dev->ops.enter(dev);
}

static void leave(ax_device *dev)
{
    if (dev->ops.leave)
        dev->ops.leave(dev);
}

void ax_device_touch(ax_device *dev, void *memory, size_t bytes)
{
    enter(dev);
    if (dev->ops.touch)
        dev->ops.touch(dev, memory, bytes);
    leave(dev);
}

void ax_device_parallel(ax_device *dev, int parts, ax_host_work_fn *work, void *user)
{
    if (dev->ops.parallel)
        dev->ops.parallel(dev, parts, work, user);
    else
        for (int part = 0; part < parts; part++)
            work(user, part);
}

int ax_device_workers(const ax_device *dev) { return dev->ops.parallel ? dev->threads : 1; }

double ax_device_read(ax_device *dev, const ax_span *span, int64_t n, double seconds)
{
    enter(dev);
    double rate = dev->ops.read ? dev->ops.read(dev, span, n, seconds) : 0;
    leave(dev);
    return rate;
}

ax_status ax_device_run(ax_stream *stream, ax_kernel kernel, const void *args)
{
    enter(stream->dev);
    ax_status status = stream->dev->ops.kernel[kernel](stream, args);
    leave(stream->dev);
    return status;
}

enum { TIMED = AX_EVENTS / 2 };

/* Tells listeners the times of the `n` oldest launches in the ring dev->timed, and removes these launches
 * from the ring. */
static ax_status tell_times(ax_stream *stream, int n)
{
    ax_device *dev = stream->dev;
    for (int i = 0; i < n; i++) {
        int at = dev->timed.first;
        double seconds = 0;
        AX_TRY(dev->ops.event_elapsed(stream, 2 * at, 2 * at + 1, &seconds));
        ax_device_tell(dev, &(ax_device_event){AX_ON_TIME, .kernel = dev->timed.kernel[at], .end = seconds});
        dev->timed.first = (at + 1) % TIMED;
        dev->timed.n--;
    }
    return AX_OK;
}

static ax_status record_event(ax_stream *stream, int event)
{
    enter(stream->dev);
    ax_status status = stream->dev->ops.event_record(stream, event);
    leave(stream->dev);
    return status;
}

/* Launches a kernel between two events. When the ring dev->timed is full, the host waits only for the older
 * half of its launches and removes them, so that the device stays busy with the newer half. */
static ax_status run_timed(ax_stream *stream, ax_kernel kernel, const void *args)
{
    ax_device *dev = stream->dev;
    AX_TRY(ax_replay_cut(stream));
    if (dev->timed.n == TIMED)
        AX_TRY(tell_times(stream, TIMED / 2));
    int at = (dev->timed.first + dev->timed.n) % TIMED;
    AX_TRY(record_event(stream, 2 * at));
    AX_TRY(ax_device_run(stream, kernel, args));
    AX_TRY(record_event(stream, 2 * at + 1));
    dev->timed.kernel[at] = kernel;
    dev->timed.n++;
    return AX_OK;
}

static ax_status launch(ax_stream *stream, ax_kernel kernel, const void *args)
{
    return stream->dev->replay ? ax_replay_launch(stream, kernel, args) : ax_device_run(stream, kernel, args);
}

/* Launches a kernel and waits for it, so that the host's clock times the kernel and not only the launch. On
 * the device's own clock, kernels run while listeners are told of them: since `told`. */
static ax_status launch_waiting(ax_stream *stream, ax_kernel kernel, const void *args, double told)
{
    const ax_device *dev = stream->dev;
    const bool traced = dev->heard & AX_ON_ACTIVITY;
    const double cpu = traced ? ax_cpu_now() : 0, begin = dev->now ? told : ax_now();
    AX_TRY(launch(stream, kernel, args));
    AX_TRY(ax_stream_wait(stream));
    const double end = ax_device_now(dev);
    ax_device_tell(dev, &(ax_device_event){AX_ON_TIME, .kernel = kernel, .begin = begin, .end = end});
    if (traced)
        ax_activity_end(dev, "kernel", ax_kernel_name(kernel), begin, (int64_t)((ax_cpu_now() - cpu) * 1e9));
    return AX_OK;
}

ax_status ax_launch(ax_stream *stream, ax_kernel kernel, const void *args)
{
    const ax_device *dev = stream->dev;
    AX_TRY(ax_kernel_check(kernel, args));
    if (!dev->heard)
        return launch(stream, kernel, args);
    const bool times = dev->heard & AX_ON_TIME;
    const double told = dev->now ? *dev->now : 0;
    ax_device_tell(dev, &(ax_device_event){AX_ON_KERNEL, .name = ax_kernel_name(kernel), .kernel = kernel,
                                           .args = args});
    return dev->heard & AX_ON_ACTIVITY || (times && !dev->ops.event_record)
               ? launch_waiting(stream, kernel, args, told)
           : times ? run_timed(stream, kernel, args)
                   : launch(stream, kernel, args);
}

ax_status ax_stream_wait(ax_stream *stream)
{
    AX_TRY(ax_replay_cut(stream));
    AX_TRY(stream->dev->ops.wait ? stream->dev->ops.wait(stream) : AX_OK);
    return tell_times(stream, stream->dev->timed.n);
}

ax_status ax_copy_in(ax_stream *stream, void *device, const void *host, size_t bytes)
{
    AX_TRY(ax_replay_cut(stream));
    ax_device_tell_copy(stream->dev, device, bytes, AX_WRITE);
    enter(stream->dev);
    ax_status status = stream->dev->ops.copy_in(stream, device, host, bytes);
    leave(stream->dev);
    return status;
}

ax_status ax_copy_out(ax_stream *stream, void *host, const void *device, size_t bytes)
{
    AX_TRY(ax_replay_cut(stream));
    ax_device_tell_copy(stream->dev, device, bytes, AX_READ);
    enter(stream->dev);
    ax_status status = stream->dev->ops.copy_out(stream, host, device, bytes);
    leave(stream->dev);
    return status;
}
