/* The shared-memory path of collectives: data move through memory that the ranks of a node share (node.h). If
 * a group spans nodes, data between nodes move by messages between the ranks that have the same index on
 * their nodes (a "column"). Read mpi.h first.
 *
 * When the world is created, all its ranks agree whether there is shared memory. When a communicator is
 * created, its ranks agree whether it uses this memory. So a collective takes the same path on all its
 * ranks. */
#include "comm/mpi.h"

#include "axonn/runtime.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of the buffer for the value of runtime.shared_memory. More than the bytes of ax_node_card.path, so
 * that a value that is cut off to WHERE bytes is still rejected as too long by ax_node_create. */
enum { WHERE = AX_NODE_PATH + 4 };

/* State of one communicator for collectives through shared memory. */
typedef struct state {
    ax_node_group *group;
    ax_node_outer outer;
    ax_mpi_comm *column; /* communicator of the ranks with this rank's index on their nodes, one per node;
                            NULL: there is one node */
    ax_mpi_op exchange;  /* the exchange with other nodes that is in flight, on `column` */
    int64_t wire;        /* bytes that the current operation has sent to other nodes, on `column` */
} state;

/* ---- the world ----------------------------------------------------------------------------------- */

/* Sets *all to whether `mine` is true on every rank (logical AND). */
static ax_status all_agree(MPI_Comm comm, bool mine, bool *all)
{
    int yes = mine;
    AX_MPI(MPI_Allreduce(MPI_IN_PLACE, &yes, 1, MPI_INT, MPI_MIN, comm));
    *all = yes;
    return AX_OK;
}

static ax_status exchange_cards(ax_mpi_world *w, MPI_Comm local, const ax_node_card *mine, bool *attached)
{
    int size;
    ax_node_card *cards;
    AX_MPI(MPI_Comm_size(local, &size));
    AX_TRY(ax_calloc((size_t)size, sizeof *cards, &cards));
    ax_status status = ax_mpi_check(
        MPI_Allgather(mine, sizeof *mine, MPI_BYTE, cards, sizeof *mine, MPI_BYTE, local), "MPI_Allgather");
    if (status == AX_OK && w->shared)
        *attached = ax_node_attach(w->shared, cards) == AX_OK;
    free(cards);
    return status;
}

/* Creates the ranks' heaps (their shared memory) as files in `dir`, or as memfds if `dir` is NULL. If any
 * rank of the world fails, w->shared is NULL on all ranks. A rank that fails stores the reason in *why. */
static ax_status create_heaps(ax_mpi_world *w, MPI_Comm local, const char *dir, char **why)
{
    int rank, size;
    ax_node_card card;
    bool attached = false, all;
    AX_MPI(MPI_Comm_rank(local, &rank));
    AX_MPI(MPI_Comm_size(local, &size));
    attached = ax_node_create(rank, size, dir, 0, &w->shared, &card) == AX_OK;
    if (attached)
        AX_TRY(exchange_cards(w, local, &card, &attached));
    else
        AX_TRY(exchange_cards(w, local, &card, &(bool){false}));
    if (!attached) {
        free(*why);
        AX_TRY(ax_strdup(ax_error_message(), why));
    }
    AX_TRY(all_agree(MPI_COMM_WORLD, attached, &all));
    if (w->shared)
        ax_node_seal(w->shared);
    if (!all)
        ax_node_destroy(&w->shared);
    return AX_OK;
}

/* Logs one warning for the whole world, with the `why` of the lowest rank whose `why` is not NULL. */
static ax_status warn_not_shared(const char *why)
{
    int rank, first;
    AX_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    first = why ? rank : INT_MAX;
    AX_MPI(MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD));
    if (first == rank)
        ax_log(
            AX_LOG_WARN,
            "the ranks of a node cannot share memory (%s): collectives between them use MPI messages, which "
            "is several times slower; runtime.shared_memory=DIR shares memory through files in DIR (a tmpfs)",
            why);
    return AX_OK;
}

/* Sets `where` on all ranks to rank 0's value of runtime.shared_memory. Launchers do not pass every
 * environment variable to every host, and ranks with different values would make different MPI calls. */
static ax_status shared_memory_setting(char where[WHERE])
{
    const char *text;
    ax_status status = ax_runtime_get(AX_RUNTIME_SHARED_MEMORY, &text);
    snprintf(where, WHERE, "%s", text);
    AX_MPI(MPI_Bcast(where, WHERE, MPI_CHAR, 0, MPI_COMM_WORLD));
    return status; /* the ranks need not agree on the status: any text is a legal value, so no rank fails
                      alone */
}

ax_status ax_mpi_node_create(ax_mpi_world *w)
{
    char where[WHERE];
    AX_TRY(shared_memory_setting(where));
    if (!strcmp(where, "off"))
        return AX_OK;
    int rank, alone;
    bool all_alone;
    char *why = NULL;
    MPI_Comm local;
    AX_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    AX_MPI(MPI_Comm_split(MPI_COMM_WORLD, w->node[rank], rank, &local));
    AX_MPI(MPI_Comm_size(local, &alone));
    ax_status status = all_agree(MPI_COMM_WORLD, alone == 1, &all_alone);
    bool automatic = !strcmp(where, "auto");
    if (status == AX_OK && !all_alone)
        status = create_heaps(w, local, automatic ? NULL : where, &why);
    /* If ranks are in separate PID namespaces (containers), /proc/PID/fd of another rank is inaccessible, but
     * a named file in /dev/shm can be opened if they share /dev/shm. */
    if (status == AX_OK && !all_alone && !w->shared && automatic)
        status = create_heaps(w, local, "/dev/shm", &why);
    if (status == AX_OK && !all_alone && !w->shared)
        status = warn_not_shared(why);
    free(why);
    MPI_Comm_free(&local);
    return status;
}

ax_status ax_mpi_node_alloc(ax_comm *comm, size_t bytes, void **out)
{
    ax_mpi_world *w = ((ax_mpi_comm *)comm->impl)->world;
    if (!w->shared || ax_node_alloc(w->shared, bytes, out) == AX_OK)
        return AX_OK;
    if (!atomic_exchange(&w->said_full, true))
        ax_log(AX_LOG_WARN,
               "%s: collectives have to copy some buffers of this rank, which takes several times longer; "
               "if a tmpfs is full, enlarge it (mount -o remount,size=…, docker run --shm-size) or try "
               "runtime.shared_memory=auto",
               ax_error_message());
    return AX_OK;
}

bool ax_mpi_node_free(ax_comm *comm, void *memory)
{
    const ax_mpi_world *w = ((ax_mpi_comm *)comm->impl)->world;
    bool ours = w->shared && ax_node_offset(w->shared, memory, 1) >= 0;
    if (ours)
        ax_node_free(w->shared, memory);
    return ours;
}

int64_t ax_mpi_node_foreign(const ax_comm *comm)
{
    const ax_mpi_world *w = ((const ax_mpi_comm *)comm->impl)->world;
    return w->shared ? ax_node_foreign(w->shared) : 0;
}

void ax_mpi_node_destroy(ax_mpi_world *w) { ax_node_destroy(&w->shared); }

/* ---- exchanges between nodes --------------------------------------------------------------------- */

static ax_status outer_start(void *user, const ax_coll_args *args, int64_t stride)
{
    state *s = user;
    s->exchange = (ax_mpi_op){.c = s->column, .args = *args, .stride = stride};
    return ax_mpi_flat.start(&s->exchange);
}

static ax_status outer_test(void *user, bool *done)
{
    state *s = user;
    AX_TRY(ax_mpi_flat.test(&s->exchange, done));
    s->wire += *done ? s->exchange.wire : 0;
    return AX_OK;
}

/* ---- communicators ------------------------------------------------------------------------------- */

int ax_mpi_local_number(const ax_mpi_world *w, int world_rank)
{
    int number = 0;
    for (int r = 0; r < world_rank; r++)
        number += w->node[r] == w->node[world_rank];
    return number;
}

static ax_status join_group(ax_mpi_comm *c, const ax_wire_place *place, state *s, const int64_t *mailboxes)
{
    const ax_node_map *map = &place->map;
    int n = map->size, *member;
    int64_t *mailbox;
    AX_TRY(ax_calloc((size_t)n, sizeof *member, &member));
    AX_TRY(ax_calloc((size_t)n, sizeof *mailbox, &mailbox));
    for (int i = 0; i < n; i++) {
        int r = map->rank_of[map->node * n + i];
        member[i] = ax_mpi_local_number(c->world, c->world_rank[r]);
        mailbox[i] = mailboxes[r];
    }
    s->outer = (ax_node_outer){outer_start, outer_test, s};
    ax_node_group_join(s->group, member, mailbox, &s->outer);
    free(member);
    free(mailbox);
    if (map->nodes == 1)
        return AX_OK;
    MPI_Comm column;
    AX_MPI(MPI_Comm_split(c->mpi, place->at, map->node, &column));
    return ax_mpi_comm_make(c->world, column, ax_rng_key(c->id, "column", 0), &s->column);
}

static void free_state(state *s)
{
    if (s->column)
        ax_mpi_comm_free(s->column);
    ax_node_group_destroy(&s->group);
    free(s);
}

/* Creates the group of the communicator's ranks on this node. If this fails on one rank, the communicator
 * does not use the shared-memory path on any rank. */
static ax_status create_group(ax_mpi_comm *c, const ax_wire_place *place)
{
    state *s;
    int64_t mailbox = -1, *mailboxes;
    AX_TRY(ax_calloc(1, sizeof *s, &s));
    AX_TRY(ax_calloc((size_t)c->comm.size, sizeof *mailboxes, &mailboxes));
    if (ax_node_group_create(c->world->shared, &place->map, place->at, &s->group, &mailbox) != AX_OK) {
        ax_log(AX_LOG_WARN,
               "%s: a communicator of %d ranks uses MPI messages instead of shared memory, which is slower",
               ax_error_message(), c->comm.size);
        mailbox = -1;
    }
    AX_MPI(MPI_Allgather(&mailbox, 1, MPI_INT64_T, mailboxes, 1, MPI_INT64_T, c->mpi));
    bool all = true;
    for (int r = 0; r < c->comm.size; r++)
        all &= mailboxes[r] >= 0;
    ax_status status = all ? join_group(c, place, s, mailboxes) : AX_OK;
    free(mailboxes);
    if (all && status == AX_OK)
        c->path_state = s;
    else
        free_state(s);
    return status;
}

static ax_status node_attach(ax_mpi_comm *c)
{
    if (!c->world->shared || c->comm.size == 1)
        return AX_OK;
    ax_wire_place place = {.size = 0};
    int *node;
    bool shared;
    AX_TRY(ax_calloc((size_t)c->comm.size, sizeof *node, &node));
    c->comm.ops->nodes(&c->comm, node, &shared);
    ax_status status = ax_wire_find(c->comm.size, c->comm.rank, node, shared, &place);
    if (status == AX_OK && place.map.size)
        status = create_group(c, &place);
    ax_wire_place_fini(&place);
    free(node);
    return status;
}

static void node_detach(ax_mpi_comm *c)
{
    state *s = c->path_state;
    if (!s)
        return;
    MPI_Barrier(c->mpi); /* wait until no rank reads another rank's mailbox (shared memory) any more */
    free_state(s);
    c->path_state = NULL;
}

ax_status ax_mpi_node_reserve(ax_mpi_comm *c, const ax_comm_buffers *buffers)
{
    const state *s = c->path_state;
    if (!s || !s->column)
        return AX_OK;
    AX_TRY(ax_node_group_reserve(s->group, buffers->columns));
    return ax_mpi_flat_reserve(s->column, buffers->exchange);
}

void ax_mpi_node_reserved(const ax_mpi_comm *c, ax_comm_buffers *out)
{
    const state *s = c->path_state;
    if (!s || !s->column)
        return;
    out->columns = ax_node_group_reserved(s->group);
    ax_mpi_flat_reserved(s->column, out->exchange);
}

/* ---- operations ---------------------------------------------------------------------------------- */

static bool node_takes(const ax_mpi_comm *c, const ax_coll_args *args)
{
    const state *s = c->path_state;
    return s && ax_node_takes(s->group, args);
}

static ax_status node_start(ax_mpi_op *op)
{
    const state *s = op->c->path_state;
    ax_node_start(s->group, &op->args, &op->node);
    return AX_OK;
}

static ax_status node_test(ax_mpi_op *op, bool *done)
{
    state *s = op->c->path_state;
    int phase = op->node.phase;
    AX_TRY(ax_node_test(&op->node, done));
    op->c->world->progress += op->node.phase != phase;
    if (*done) {
        op->wire = s->wire;
        s->wire = 0;
    }
    return AX_OK;
}

const ax_mpi_path ax_mpi_node = {.name = "node",
                                 .attach = node_attach,
                                 .detach = node_detach,
                                 .takes = node_takes,
                                 .start = node_start,
                                 .test = node_test};
