/* Listeners: who is told what happens on a device (dev.h). */
#include "dev/backend.h"

static void find_heard(ax_device *dev)
{
    dev->heard = 0;
    for (const ax_listener *l = dev->listener; l; l = l->next)
        dev->heard |= l->kinds;
}

void ax_device_listen(ax_device *dev, ax_listener *listener)
{
    if (!listener->kinds)
        return;
    listener->next = dev->listener;
    dev->listener = listener;
    find_heard(dev);
}

void ax_device_unlisten(ax_device *dev, ax_listener *listener)
{
    ax_listener **at = &dev->listener;
    if (!listener->kinds)
        return;
    while (*at && *at != listener)
        at = &(*at)->next;
    if (*at)
        *at = listener->next;
    find_heard(dev);
}

void ax_device_tell(const ax_device *dev, const ax_device_event *event)
{
    for (const ax_listener *l = dev->listener; l; l = l->next)
        if (l->kinds & event->kind)
            l->tell(l->user, event);
}

double ax_device_event_bytes(const ax_device_event *event)
{
    double most = 0;
    for (int i = 0; i < event->operands; i++) {
        const double bytes = (double)event->operand[i].count * (double)ax_dtype_size(event->operand[i].dtype);
        most = bytes > most ? bytes : most;
    }
    return most;
}

void ax_device_event_operands(const ax_device_event *event, ax_operand_fn *each, void *user)
{
    if (event->kind == AX_ON_KERNEL)
        ax_kernel_operands(event->kernel, event->args, each, user);
    for (int i = 0; i < event->operands; i++)
        each(user, &event->operand[i]);
}

void ax_device_tell_copy(const ax_device *dev, const void *at, size_t bytes, ax_access access)
{
    const ax_operand operand = {at, (int64_t)bytes, (int64_t)bytes, AX_U8, access};
    if (dev->heard & AX_ON_COPY)
        ax_device_tell(dev,
                       &(ax_device_event){AX_ON_COPY, .name = "copy", .operand = &operand, .operands = 1});
}

double ax_device_now(const ax_device *dev) { return dev && dev->now ? *dev->now : ax_now(); }

double ax_activity_begin(const ax_device *dev)
{
    return dev->heard & AX_ON_ACTIVITY ? ax_device_now(dev) : 0;
}

void ax_activity_end(const ax_device *dev, const char *activity, const char *name, double begin,
                     int64_t value)
{
    if (dev->heard & AX_ON_ACTIVITY)
        ax_device_tell(dev, &(ax_device_event){AX_ON_ACTIVITY, .name = name, .activity = activity,
                                               .begin = begin, .end = ax_device_now(dev), .value = value});
}

/* ---- listeners of this room ---------------------------------------------------------------------- */

static void add_to_total(void *user, const ax_device_event *e)
{
    ax_kernel_total *t = (ax_kernel_total *)user + e->kernel;
    if (e->kind == AX_ON_TIME) {
        t->seconds += e->end - e->begin;
        return;
    }
    double flops, bytes;
    ax_kernel_cost(e->kernel, e->args, &flops, &bytes);
    *t = (ax_kernel_total){t->calls + 1, t->seconds, t->flops + flops, t->bytes + bytes};
}

ax_listener ax_kernel_totals(ax_kernel_total *total)
{
    return (ax_listener){total ? AX_ON_KERNEL | AX_ON_TIME : 0, add_to_total, total, NULL};
}

static void add_to_ring(void *user, const ax_device_event *e)
{
    ax_event_add(user, e->activity, e->name, e->begin, e->end, e->value);
}

ax_listener ax_ring_listener(ax_event_ring *ring)
{
    return (ax_listener){ring ? AX_ON_ACTIVITY : 0, add_to_ring, ring, NULL};
}
