/* Direct connections between the devices of a communicator's ranks, for instance by NCCL. A link (ax_link) is
 * one rank's handle of such a connection. The ranks use collectives on host memory to find out whether their
 * devices can be connected. Each collective over the link has a work handle; ax_wait on this handle makes the
 * device's stream wait. The host waits only if launches are timed. */
#include "comm/link.h"
#include "comm/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HANDLES = 64 };

typedef struct handle {
    ax_work work;
    struct handle *next; /* next in the list of free handles */
    struct ax_comm_link *owner;
    int64_t ticket;
} handle;

/* A block of work handles. Each collective in flight uses one handle, which ax_wait returns to the list of
 * free handles; blocks are freed with the link. The number of handles grows to the largest number of
 * collectives in flight, so after the first few training steps no more handles are allocated. */
typedef struct block {
    struct block *next;
    handle handle[HANDLES];
} block;

struct ax_comm_link {
    ax_stream stream; /* refers to the device's compute stream (impl NULL) */
    ax_link *link;
    handle *free;
    block *blocks;
};

/* ---- running ------------------------------------------------------------------------------------- */

static ax_status more_handles(struct ax_comm_link *l)
{
    block *b;
    AX_TRY(ax_calloc(1, sizeof *b, &b));
    b->next = l->blocks;
    l->blocks = b;
    for (int i = 0; i < HANDLES; i++) {
        b->handle[i].owner = l;
        b->handle[i].next = l->free;
        l->free = &b->handle[i];
    }
    return AX_OK;
}

/* Waits for a collective over the link (ax_wait): makes work that is enqueued on the device's stream later
 * wait for the collective. The host waits too if launches are timed: without this wait the collective's time
 * would be counted as time of the kernels after it. */
static ax_status link_wait(ax_work *work)
{
    handle *h = (handle *)work;
    struct ax_comm_link *l = h->owner;
    ax_device *dev = l->stream.dev;
    h->next = l->free;
    l->free = h;
    AX_TRY(ax_replay_cut(&l->stream));
    AX_TRY(dev->ops.links->await(l->link, h->ticket));
    return dev->heard & (AX_ON_TIME | AX_ON_ACTIVITY) ? ax_stream_wait(&l->stream) : AX_OK;
}

#ifndef NDEBUG
static bool same_call(const ax_coll_args *a, const ax_coll_args *b)
{
    return a->coll == b->coll && a->count == b->count && a->dtype == b->dtype && a->op == b->op &&
           a->root == b->root;
}

/* Checks that all ranks call the same collective, in builds with assertions: all-gathers the arguments of the
 * calls in host memory and compares them. NCCL has no such check. */
static ax_status compare_calls(ax_comm *comm, const ax_coll_args *args)
{
    ax_work *work = NULL;
    ax_coll_args mine, *all;
    char one[96], other[96];
    memset(&mine, 0, sizeof mine); /* padding bytes are sent too */
    mine.coll = args->coll, mine.count = args->count, mine.dtype = args->dtype;
    mine.op = args->op, mine.root = args->root;
    AX_TRY(ax_calloc((size_t)comm->size, sizeof *all, &all));
    ax_coll_args gather = {AX_ALL_GATHER, &mine, all, (int64_t)sizeof mine, AX_U8, AX_SUM, 0};
    ax_status status = comm->ops->run(comm, NULL, &gather, &work);
    if (status == AX_OK && work)
        status = work->wait(work);
    if (status != AX_OK) {
        ax_coll_describe(args, one, sizeof one);
        ax_error_context("the ranks' calls could not be compared before %s", one);
    }
    for (int r = 1; r < comm->size && status == AX_OK; r++)
        if (!same_call(&all[0], &all[r])) {
            ax_coll_describe(&all[r], one, sizeof one);
            ax_coll_describe(&all[0], other, sizeof other);
            status = ax_fail(AX_ERR_COMM,
                             "rank %d called %s where rank 0 called %s: all ranks must make the same calls "
                             "in the same order",
                             r, one, other);
        }
    free(all);
    return status;
}
#else
static ax_status compare_calls(ax_comm *comm, const ax_coll_args *args)
{
    (void)comm;
    (void)args;
    return AX_OK;
}
#endif

ax_status ax_comm_link_run(ax_comm *comm, ax_stream *stream, const ax_coll_args *args, ax_work **work)
{
    struct ax_comm_link *l = comm->link;
    AX_TRY(compare_calls(comm, args));
    if (!args->count)
        return AX_OK;
    if (!l->free)
        AX_TRY(more_handles(l));
    handle *h = l->free;
    AX_TRY(ax_replay_cut(stream));
    AX_TRY(stream->dev->ops.links->start(l->link, args, &h->ticket));
    l->free = h->next;
    h->work = (ax_work){.wait = link_wait};
    *work = &h->work;
    return AX_OK;
}

/* ---- connecting ---------------------------------------------------------------------------------- */

/* A rank's device, as described to the other ranks. `host` identifies the machine, `place` the device in it.
 * `absent`: why the device cannot be connected; empty if it can. */
typedef struct card {
    uint64_t host;
    char place[AX_LINK_PLACE], absent[160];
} card;

static void write_card(ax_device *dev, card *out)
{
    const ax_link_ops *links = dev->ops.links;
    const char *why = links ? links->absent(dev) : "this device has no direct connections to other devices";
    memset(out, 0, sizeof *out);
    out->host = ax_host_key();
    snprintf(out->absent, sizeof out->absent, "%s", why ? why : "");
    if (!why)
        links->place(dev, out->place);
}

/* Writes to `why` what prevents a connection of the n devices, or an empty text if nothing does. All ranks
 * get the same text. */
static void find_obstacle(const card *all, int n, char *why, size_t size)
{
    *why = 0;
    for (int r = 0; r < n && !*why; r++)
        if (*all[r].absent)
            snprintf(why, size, "%s (rank %d of %d)", all[r].absent, r, n);
    for (int r = 1; r < n && !*why; r++)
        for (int q = 0; q < r && !*why; q++)
            if (all[q].host == all[r].host && !strcmp(all[q].place, all[r].place))
                snprintf(why, size,
                         "ranks %d and %d of %d share the device at %s: start only one rank for each GPU", q,
                         r, n, all[r].place);
}

static ax_status exchange_cards(ax_comm *comm, ax_device *dev, char *why, size_t size)
{
    card mine, *all;
    ax_work *work;
    write_card(dev, &mine);
    AX_TRY(ax_calloc((size_t)comm->size, sizeof *all, &all));
    ax_status status = ax_all_gather(comm, NULL, &mine, all, sizeof mine, AX_U8, &work);
    if (status == AX_OK)
        status = ax_wait(&work);
    if (status == AX_OK)
        find_obstacle(all, comm->size, why, size);
    free(all);
    return status;
}

static const char *world_failed(void *comm)
{
    ax_comm *c = comm;
    return c->ops->failed ? c->ops->failed(c) : NULL;
}

/* Connects the devices of all ranks. Returns the same status on all ranks, unless the world fails. */
static ax_status open_link(ax_comm *comm, ax_device *dev, const char *name, ax_link **out)
{
    char unique_id[AX_LINK_UNIQUE_ID] = "";
    ax_work *work;
    const ax_link_ops *links = dev->ops.links;
    ax_link_group group = {name, unique_id, comm->rank, comm->size, world_failed, comm};
    AX_TRY(ax_comm_agree(comm, comm->rank ? AX_OK : links->unique_id(unique_id)));
    AX_TRY(ax_broadcast(comm, NULL, unique_id, sizeof unique_id, AX_U8, 0, &work));
    AX_TRY(ax_wait(&work));
    ax_status status = ax_comm_agree(comm, links->open(dev, &group, out));
    if (status != AX_OK && *out)
        links->close(out);
    return status;
}

static ax_status connect(ax_comm *comm, ax_device *dev, const char *name, char *why, size_t size)
{
    struct ax_comm_link *l;
    ax_link *link = NULL;
    ax_status status = open_link(comm, dev, name, &link);
    if (status != AX_OK && world_failed(comm))
        return status;
    if (status != AX_OK) {
        snprintf(why, size, "%s", ax_error_message());
        return AX_OK;
    }
    status = ax_calloc(1, sizeof *l, &l);
    if (status != AX_OK) {
        dev->ops.links->close(&link);
        return status;
    }
    l->stream.dev = dev;
    l->link = link;
    comm->link = l;
    return AX_OK;
}

ax_status ax_comm_connect(ax_comm *comm, ax_device *dev, const char *name, char why[AX_COMM_WHY])
{
    *why = 0;
    if (!dev->ops.discrete_memory || comm->size == 1 || comm->link)
        return AX_OK;
    AX_TRY(exchange_cards(comm, dev, why, AX_COMM_WHY));
    return *why ? AX_OK : connect(comm, dev, name, why, AX_COMM_WHY);
}

void ax_comm_disconnect(ax_comm *comm)
{
    struct ax_comm_link *l = comm->link;
    ax_comm_free_carriers(comm);
    if (!l)
        return;
    l->stream.dev->ops.links->close(&l->link);
    for (block *next; l->blocks; l->blocks = next) {
        next = l->blocks->next;
        free(l->blocks);
    }
    free(l);
    comm->link = NULL;
}
