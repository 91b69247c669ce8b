/* Copies that run beside kernels: pinned memory, copy streams and events (dev.h). If the backend has no such
 * copies, every copy is done when the call returns, so all streams are the compute stream, and events are
 * always complete. */
#include "dev/backend.h"

#include <stdlib.h>

struct ax_stream_event {
    ax_device *dev;
    void *impl; /* the backend's event; NULL: the backend has no ax_copy_ops */
};

ax_status ax_pinned_alloc(ax_device *dev, size_t bytes, void **out)
{
    *out = NULL;
    return dev->ops.copies ? dev->ops.copies->alloc(dev, bytes, out) : ax_host_alloc(dev, bytes, out);
}

void ax_pinned_free(ax_device *dev, void *memory, size_t bytes)
{
    if (memory && dev->ops.copies)
        dev->ops.copies->free(dev, memory);
    else if (memory)
        ax_host_free(dev, memory, bytes);
}

ax_stream ax_copy_stream(ax_device *dev, ax_copy_direction direction)
{
    return (ax_stream){dev, dev->ops.copies ? dev->ops.copies->stream(dev, direction) : NULL};
}

/* Called before something other than a kernel launch is enqueued. While a recorded sequence of launches is
 * replayed (ax_replay_begin), launches on the compute stream may be deferred; this function runs the deferred
 * ones, so that the order stays right. Copy streams have no launches. */
static ax_status cut(ax_stream *stream) { return stream->impl ? AX_OK : ax_replay_cut(stream); }

ax_status ax_copy_in_async(ax_stream *stream, void *device, const void *host, size_t bytes)
{
    const ax_copy_ops *ops = stream->dev->ops.copies;
    if (!ops)
        return ax_copy_in(stream, device, host, bytes);
    AX_TRY(cut(stream));
    ax_device_tell_copy(stream->dev, device, bytes, AX_WRITE);
    return ops->copy(stream, device, host, bytes, AX_TO_DEVICE);
}

ax_status ax_copy_out_async(ax_stream *stream, void *host, const void *device, size_t bytes)
{
    const ax_copy_ops *ops = stream->dev->ops.copies;
    if (!ops)
        return ax_copy_out(stream, host, device, bytes);
    AX_TRY(cut(stream));
    ax_device_tell_copy(stream->dev, device, bytes, AX_READ);
    return ops->copy(stream, host, device, bytes, AX_TO_HOST);
}

ax_status ax_stream_event_create(ax_device *dev, ax_stream_event **out)
{
    ax_stream_event *e;
    *out = NULL;
    AX_TRY(ax_calloc(1, sizeof *e, &e));
    e->dev = dev;
    ax_status status = dev->ops.copies ? dev->ops.copies->event_create(dev, &e->impl) : AX_OK;
    if (status != AX_OK)
        free(e);
    else
        *out = e;
    return status;
}

void ax_stream_event_destroy(ax_stream_event **event)
{
    ax_stream_event *e = *event;
    if (e && e->impl)
        e->dev->ops.copies->event_destroy(e->dev, e->impl);
    free(e);
    *event = NULL;
}

ax_status ax_stream_record(ax_stream *stream, ax_stream_event *event)
{
    AX_TRY(cut(stream));
    return event->impl ? stream->dev->ops.copies->record(stream, event->impl) : AX_OK;
}

ax_status ax_stream_await(ax_stream *stream, const ax_stream_event *event)
{
    AX_TRY(cut(stream));
    return event->impl ? stream->dev->ops.copies->await(stream, event->impl) : AX_OK;
}

ax_status ax_stream_event_done(const ax_stream_event *event, bool *done)
{
    *done = true;
    return event->impl ? event->dev->ops.copies->done(event->dev, event->impl, done) : AX_OK;
}

ax_status ax_device_check_links(ax_device *dev)
{
    return dev->ops.links ? dev->ops.links->check(dev) : AX_OK;
}

ax_status ax_stream_event_wait(const ax_stream_event *event)
{
    return event->impl ? event->dev->ops.copies->wait(event->dev, event->impl) : AX_OK;
}
