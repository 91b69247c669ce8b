/* The backend of dry runs: this process acts as one rank, and the other ranks do not exist. The buffers of
 * collectives and messages are on the device `dry`, which has no memory, so nothing is moved. Every operation
 * is in flight until ax_wait. In a world of ax_comm_alone_create, buffers may also be in host memory, for
 * collectives. */
#include "comm/place.h"
#include "comm/wire.h"

#include <stdlib.h>
#include <string.h>

/* A work handle, which is used for one operation (collective or message) at a time. */
typedef struct handle {
    ax_work work;
    struct handle *next;
    bool busy; /* ax_wait has not been called for the handle's operation */
    ax_wire_need need;
} handle;

typedef struct dry_comm {
    ax_comm comm;
    handle *handles;
    int *
        ranks; /* [2, size]: numbers of the ranks in the world, and the same in rising order; NULL: 0, 1, … */
    int world;  /* number of ranks of the world */
    bool alone; /* of ax_comm_alone_create */
    int node;   /* the ranks_per_node of `place`; 0: none yet */
    ax_comm_place place;
    int *node_of; /* [size]: the node of each rank, below the number of ranks of the world; NULL: not known,
                     and neither `wire` nor buffers are counted */
    int per_node; /* with ax_comm_dry_nodes: ranks of a node; else 0 */
    bool shared;  /* the ranks of a node share memory */
    ax_wire_place on_wire; /* with node_of; size 0: not needed so far */
    ax_comm_buffers most;  /* what operations have needed so far */
} dry_comm;

static dry_comm *dry_of(ax_comm *comm) { return comm->impl; }

static ax_status dry_end(ax_work *work)
{
    ((handle *)work)->busy = false;
    return AX_OK;
}

static bool dry_done(const ax_work *work)
{
    (void)work;
    return true;
}

/* Finds a handle that is free, or adds one to the communicator's list. */
static ax_status find_handle(dry_comm *dry, handle **out)
{
    for (*out = dry->handles; *out; *out = (*out)->next)
        if (!(*out)->busy)
            return AX_OK;
    AX_TRY(ax_calloc(1, sizeof **out, out));
    (*out)->next = dry->handles;
    dry->handles = *out;
    return AX_OK;
}

/* Starts an operation on memory of `dev` (NULL: host memory), which needs buffers. */
static ax_status start(ax_comm *comm, const ax_device *dev, const ax_wire_need *need, ax_work **work)
{
    handle *h;
    AX_CHECK(
        dev, AX_ERR_INTERNAL,
        "a dry run has no other ranks, so host memory cannot be sent to them or received: use buffers of "
        "the dry device");
    AX_TRY(find_handle(dry_of(comm), &h));
    h->work = (ax_work){.wait = dry_end, .done = dry_done};
    h->busy = true;
    h->need = *need;
    *work = &h->work;
    return AX_OK;
}

/* Runs a collective on host memory as rank 0, without the other ranks: what it gives of the operand to itself
 * is the result, and the rest of the result is zeros. */
static void run_alone(const ax_coll_args *args, const ax_operand operand[2])
{
    size_t size = ax_dtype_size(args->dtype), sent = (size_t)operand[0].count * size,
           received = (size_t)operand[1].count * size, mine = ax_min(sent, received);
    if (args->coll == AX_ALL_TO_ALL)
        mine = (size_t)args->count * size;
    if (mine)
        memmove(args->recv, args->send, mine);
    if (received > mine)
        memset((char *)args->recv + mine, 0, received - mine);
}

static ax_placed placed(const dry_comm *dry)
{
    const int n = dry->comm.size, *ranks = dry->ranks;
    return (ax_placed){n, dry->comm.rank, dry->world, ranks, ranks ? ranks + n : NULL};
}

/* Counts the buffers that a collective needs beside those in flight. */
static void count_buffers(dry_comm *dry, const ax_wire_need *need)
{
    ax_comm_buffers now = {.columns = need->columns};
    if (!need->pieces && !need->columns)
        return;
    ax_wire_enter(need, need->alone ? now.exchange : now.piece);
    for (const handle *h = dry->handles; h && !need->alone; h = h->next)
        if (h->busy && !h->need.alone)
            ax_wire_enter(&h->need, now.piece);
    ax_wire_raise(&dry->most, &now);
}

/* Counts what the collective sends to other nodes, and the buffers that it needs. */
static ax_status count(ax_comm *comm, const ax_coll_args *args, ax_wire_need *need)
{
    dry_comm *dry = dry_of(comm);
    *need = (ax_wire_need){0};
    if (!dry->node_of || comm->size == 1)
        return AX_OK;
    if (!dry->on_wire.size)
        AX_TRY(ax_wire_find(comm->size, comm->rank, dry->node_of, dry->shared, &dry->on_wire));
    comm->traffic.wire += ax_wire_bytes(&dry->on_wire, args);
    *need = ax_wire_need_of(&dry->on_wire, args);
    count_buffers(dry, need);
    return AX_OK;
}

static ax_status dry_run(ax_comm *comm, ax_stream *stream, const ax_coll_args *args, ax_work **work)
{
    ax_operand operand[2];
    ax_wire_need need;
    AX_TRY(count(comm, args, &need));
    if (stream || !dry_of(comm)->alone)
        return start(comm, stream ? stream->dev : NULL, &need, work);
    ax_coll_operands(args, comm->size, operand);
    run_alone(args, operand);
    return AX_OK;
}

static ax_status dry_message(ax_comm *comm, const ax_message_args *args, ax_work **work)
{
    const int *node_of = dry_of(comm)->node_of;
    if (node_of && args->sends && node_of[args->peer] != node_of[comm->rank])
        comm->traffic.wire += (int64_t)args->bytes;
    return start(comm, args->dev, &(ax_wire_need){0}, work);
}

static ax_status dry_split(ax_comm *comm, int color, int key, ax_comm **out)
{
    (void)comm, (void)color, (void)key, (void)out;
    return ax_fail(AX_ERR_INTERNAL,
                   "a dry run has no other ranks, so their colors in a split are unknown: list the "
                   "ranks of the group (ax_comm_group)");
}

static ax_status create(int rank, int size, bool alone, ax_comm **out);

int ax_comm_world_rank(const ax_comm *comm, int rank)
{
    const dry_comm *dry = comm->impl;
    AX_ASSERT(ax_comm_is_dry(comm));
    const ax_placed p = placed(dry);
    return ax_placed_number(&p, rank);
}

static int compare_ints(const void *a, const void *b)
{
    const int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

/* Numbers the ranks of `dry`: rank i is rank of[i] of `in`, or, if `in` is NULL, number of[i] in the world.
 */
static ax_status number(dry_comm *dry, const ax_comm *in, const int *of)
{
    const int n = dry->comm.size;
    int *ranks;
    AX_TRY(ax_calloc(2 * (size_t)n, sizeof *ranks, &ranks));
    for (int i = 0; i < n; i++)
        ranks[i] = ranks[n + i] = in ? ax_comm_world_rank(in, of[i]) : of[i];
    qsort(ranks + n, (size_t)n, sizeof *ranks, compare_ints);
    free(dry->ranks);
    dry->ranks = ranks;
    return AX_OK;
}

ax_status ax_comm_dry_number(ax_comm *world, const int *ranks)
{
    AX_ASSERT(ax_comm_is_dry(world));
    return number(dry_of(world), NULL, ranks);
}

static ax_status make_nodes(dry_comm *dry, bool shared)
{
    free(dry->node_of);
    dry->shared = shared;
    ax_wire_place_fini(&dry->on_wire);
    return ax_calloc((size_t)dry->comm.size, sizeof *dry->node_of, &dry->node_of);
}

ax_status ax_comm_dry_nodes(ax_comm *world, int ranks_per_node, bool shared)
{
    AX_ASSERT(ax_comm_is_dry(world));
    if (!ranks_per_node)
        return AX_OK;
    AX_TRY(make_nodes(dry_of(world), shared));
    dry_of(world)->per_node = ranks_per_node;
    for (int r = 0; r < world->size; r++)
        dry_of(world)->node_of[r] = ax_comm_world_rank(world, r) / ranks_per_node;
    return AX_OK;
}

ax_status ax_comm_dry_nodes_of(ax_comm *world, const ax_comm *real)
{
    AX_ASSERT(ax_comm_is_dry(world) && world->size == real->size);
    if (!real->ops->nodes)
        return AX_OK;
    AX_TRY(make_nodes(dry_of(world), false));
    real->ops->nodes(real, dry_of(world)->node_of, &dry_of(world)->shared);
    return AX_OK;
}

bool ax_comm_dry_has_nodes(const ax_comm *comm)
{
    AX_ASSERT(ax_comm_is_dry(comm));
    return ((const dry_comm *)comm->impl)->node_of;
}

bool ax_comm_dry_mark(const ax_comm *comm, uint64_t *key)
{
    const dry_comm *dry = comm->impl;
    const ax_placed p = placed(dry);
    AX_ASSERT(ax_comm_is_dry(comm));
    return dry->per_node && ax_placed_mark(&p, dry->per_node, key);
}

static ax_comm_buffers dry_buffers(ax_comm *comm) { return dry_of(comm)->most; }

static ax_status dry_group(ax_comm *comm, const int *ranks, int n, ax_comm **out)
{
    int rank = 0;
    while (ranks[rank] != comm->rank)
        rank++;
    AX_TRY(create(rank, n, dry_of(comm)->alone && !rank, out));
    dry_of(*out)->world = dry_of(comm)->world;
    dry_of(*out)->per_node = dry_of(comm)->per_node;
    ax_status status = number(dry_of(*out), comm, ranks);
    if (status == AX_OK && dry_of(comm)->node_of)
        status = make_nodes(dry_of(*out), dry_of(comm)->shared);
    for (int i = 0; i < n && status == AX_OK && dry_of(comm)->node_of; i++)
        dry_of(*out)->node_of[i] = dry_of(comm)->node_of[ranks[i]];
    if (status != AX_OK)
        ax_comm_destroy(out);
    return status;
}

ax_comm_place ax_comm_place_of(const ax_comm *comm, int ranks_per_node)
{
    dry_comm *dry = comm->impl;
    AX_ASSERT(ax_comm_is_dry(comm));
    const ax_placed p = placed(dry);
    if (dry->node != ranks_per_node)
        dry->place = ax_placed_find(&p, ranks_per_node);
    dry->node = ranks_per_node;
    return dry->place;
}

static void dry_abort(ax_comm *comm, ax_status status, const char *message)
{
    (void)comm, (void)status, (void)message;
}

/* Frees also the handles for which ax_wait has not been called because this rank has failed. */
static void dry_destroy(ax_comm *comm)
{
    dry_comm *dry = dry_of(comm);
    for (handle *next; dry->handles; dry->handles = next) {
        next = dry->handles->next;
        free(dry->handles);
    }
    ax_wire_place_fini(&dry->on_wire);
    free(dry->ranks);
    free(dry->node_of);
    free(dry);
}

static ax_status create(int rank, int size, bool alone, ax_comm **out)
{
    static const ax_comm_ops ops = {.name = "dry",
                                    .run = dry_run,
                                    .split = dry_split,
                                    .group = dry_group,
                                    .abort = dry_abort,
                                    .message = dry_message,
                                    .buffers = dry_buffers,
                                    .destroy = dry_destroy};
    dry_comm *dry;
    *out = NULL;
    AX_CHECK(rank >= 0 && rank < size, AX_ERR_USAGE, "a dry run of %d ranks has no rank %d", size, rank);
    AX_TRY(ax_calloc(1, sizeof *dry, &dry));
    dry->comm = (ax_comm){.ops = &ops, .rank = rank, .size = size, .impl = dry};
    dry->world = size;
    dry->alone = alone;
    *out = &dry->comm;
    return AX_OK;
}

ax_status ax_comm_dry_create(int rank, int size, ax_comm **out) { return create(rank, size, false, out); }

ax_status ax_comm_alone_create(int size, ax_comm **out) { return create(0, size, true, out); }

bool ax_comm_is_dry(const ax_comm *comm) { return comm->ops->run == dry_run; }
