/* See on_device.h. */
#include "support/on_device.h"

#include <stdlib.h>
#include <string.h>

typedef struct on_device {
    ax_comm comm;
    ax_comm *inner;
    ax_stream stream;
    const char *path;
    bool owned; /* `inner` was made by a split, and the wrapper destroys it */
} on_device;

typedef struct operation {
    ax_work work;
    on_device *on;
    ax_work *inner;
    char *memory;
    size_t bytes, at, back; /* `bytes`: size of `memory`; the result is `back` bytes at offset `at` */
    void *to;
} operation;

static ax_status operation_wait(ax_work *work)
{
    operation *o = (operation *)work;
    ax_status status = ax_wait(&o->inner);
    if (status == AX_OK)
        status = ax_copy_out(&o->on->stream, o->to, o->memory + o->at, o->back);
    ax_device_free(o->on->stream.dev, o->memory, o->bytes);
    free(o);
    return status;
}

static ax_status call(on_device *a, const ax_coll_args *c, const void *send, void *recv, ax_work **work)
{
    switch (c->coll) {
    case AX_ALL_REDUCE:
        return ax_all_reduce(a->inner, &a->stream, recv, c->count, c->dtype, c->op, work);
    case AX_ALL_GATHER:
        return ax_all_gather(a->inner, &a->stream, send, recv, c->count, c->dtype, work);
    case AX_REDUCE_SCATTER:
        return ax_reduce_scatter(a->inner, &a->stream, send, recv, c->count, c->dtype, c->op, work);
    case AX_ALL_TO_ALL:
        return ax_all_to_all(a->inner, &a->stream, send, recv, c->count, c->dtype, work);
    default:
        return ax_broadcast(a->inner, &a->stream, recv, c->count, c->dtype, c->root, work);
    }
}

/* Runs a collective on copies of the buffers in device memory. A send buffer that lies inside the receive
 * buffer has the same place in the copy; any other send buffer follows the receive buffer. */
static ax_status on_device_run(ax_comm *comm, ax_stream *stream, const ax_coll_args *args, ax_work **work)
{
    on_device *a = comm->impl;
    operation *o;
    (void)stream;
    if (args->coll == AX_BARRIER)
        return ax_barrier(a->inner);
    size_t one = (size_t)args->count * ax_dtype_size(args->dtype), all = one * (size_t)comm->size;
    bool parts = args->coll == AX_REDUCE_SCATTER || args->coll == AX_ALL_TO_ALL;
    size_t out = parts ? all : one,
           back = args->coll == AX_ALL_GATHER || args->coll == AX_ALL_TO_ALL ? all : one;
    size_t offset = (size_t)((uintptr_t)args->send - (uintptr_t)args->recv);
    bool inside = offset < back || args->send == args->recv;
    AX_TRY(ax_calloc(1, sizeof *o, &o));
    *o = (operation){.work = {.wait = operation_wait}, .on = a, .back = back, .to = args->recv};
    o->bytes = back + (inside ? 0 : out) + 1;
    size_t from = inside ? offset : back;
    ax_status status = ax_device_alloc(a->stream.dev, o->bytes, (void **)&o->memory);
    if (status == AX_OK)
        status = ax_copy_in(&a->stream, o->memory + from, args->send, out);
    if (status == AX_OK)
        status = call(a, args, o->memory + from, o->memory, &o->inner);
    if (status == AX_OK) {
        *work = &o->work;
        return AX_OK;
    }
    ax_device_free(a->stream.dev, o->memory, o->bytes);
    free(o);
    return status;
}

static const ax_comm_ops on_device_ops;

static ax_status wrap(ax_comm *inner, ax_device *dev, const char *path, bool owned, ax_comm **out)
{
    static const ax_coll_args any = {.coll = AX_ALL_REDUCE, .count = 1, .dtype = AX_F32};
    char why[AX_COMM_WHY];
    on_device *a;
    *out = NULL;
    AX_TRY(ax_calloc(1, sizeof *a, &a));
    *a = (on_device){.comm = {.ops = &on_device_ops, .rank = inner->rank, .size = inner->size, .impl = a},
                     .inner = inner,
                     .stream = {dev, NULL},
                     .path = path,
                     .owned = owned};
    *out = &a->comm;
    AX_TRY(ax_comm_connect(inner, dev, "test", why));
    AX_CHECK(inner->size == 1 || !strcmp(ax_comm_path(inner, &a->stream, &any), path), AX_ERR_INTERNAL,
             "the path is %s, not %s: %s", ax_comm_path(inner, &a->stream, &any), path, why);
    return AX_OK;
}

static ax_status on_device_split(ax_comm *comm, int color, int key, ax_comm **out)
{
    on_device *a = comm->impl;
    ax_comm *inner;
    AX_TRY(ax_comm_split(a->inner, color, key, &inner));
    return inner ? wrap(inner, a->stream.dev, a->path, true, out) : AX_OK;
}

static ax_status on_device_group(ax_comm *comm, const int *ranks, int n, ax_comm **out)
{
    on_device *a = comm->impl;
    ax_comm *inner;
    *out = NULL;
    AX_TRY(ax_comm_group(a->inner, ranks, n, &inner));
    return wrap(inner, a->stream.dev, a->path, true, out);
}

static void on_device_abort(ax_comm *comm, ax_status status, const char *message)
{
    ax_comm_abort(((on_device *)comm->impl)->inner, status, message);
}

static void on_device_destroy(ax_comm *comm)
{
    on_device *a = comm->impl;
    if (a->owned)
        ax_comm_destroy(&a->inner);
    else
        ax_comm_disconnect(a->inner);
    free(a);
}

static const ax_comm_ops on_device_ops = {.name = "on_device",
                                          .run = on_device_run,
                                          .split = on_device_split,
                                          .group = on_device_group,
                                          .abort = on_device_abort,
                                          .destroy = on_device_destroy};

ax_status on_device_create(ax_comm *inner, ax_device *dev, const char *path, ax_comm **out)
{
    return wrap(inner, dev, path, false, out);
}
