/* The backend of one rank: a collective copies `send` to `recv`, unless the two are the same buffer. */
#include "axonn/comm.h"

#include <stdlib.h>
#include <string.h>

/* A communicator that was split from another one belongs to the same
 * world: its world_aborted points to `aborted` of the world's first communicator, which must be destroyed
 * last. */
typedef struct self_comm {
    ax_comm comm;
    bool aborted;
    bool *world_aborted;
} self_comm;

static self_comm *self_of(ax_comm *comm) { return comm->impl; }

static ax_status self_check(ax_comm *comm)
{
    AX_CHECK(!*self_of(comm)->world_aborted, AX_ERR_COMM,
             "this rank has called ax_comm_abort, so it can make no more collective calls");
    return AX_OK;
}

static ax_status self_run(ax_comm *comm, ax_stream *stream, const ax_coll_args *args, ax_work **work)
{
    (void)stream;
    (void)work;
    AX_TRY(self_check(comm));
    size_t bytes = (size_t)args->count * ax_dtype_size(args->dtype);
    if (args->send != args->recv && bytes)
        memcpy(args->recv, args->send, bytes);
    return AX_OK;
}

static ax_status self_split(ax_comm *comm, int color, int key, ax_comm **out)
{
    (void)key;
    AX_TRY(self_check(comm));
    if (color < 0)
        return AX_OK;
    AX_TRY(ax_comm_self_create(out));
    self_of(*out)->world_aborted = self_of(comm)->world_aborted;
    return AX_OK;
}

static ax_status self_group(ax_comm *comm, const int *ranks, int n, ax_comm **out)
{
    (void)ranks;
    (void)n;
    return self_split(comm, 0, 0, out);
}

static void self_abort(ax_comm *comm, ax_status status, const char *message)
{
    (void)status;
    (void)message;
    *self_of(comm)->world_aborted = true;
}

static void self_destroy(ax_comm *comm) { free(self_of(comm)); }

ax_status ax_comm_self_create(ax_comm **out)
{
    static const ax_comm_ops ops = {.name = "self",
                                    .run = self_run,
                                    .split = self_split,
                                    .group = self_group,
                                    .abort = self_abort,
                                    .destroy = self_destroy};
    *out = NULL;
    self_comm *self;
    AX_TRY(ax_calloc(1, sizeof *self, &self));
    self->comm = (ax_comm){.ops = &ops, .rank = 0, .size = 1, .impl = self};
    self->world_aborted = &self->aborted;
    *out = &self->comm;
    return AX_OK;
}
