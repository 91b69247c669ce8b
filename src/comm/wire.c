/* What collectives over MPI send to other nodes: the algorithms of mpi_flat.c and mpi_node.c, without their
 * messages. */
#include "comm/wire.h"

/* The ranks of a gather in rounds of 1, 2, 4, … blocks to which this rank sends on other nodes. */
static int64_t rounds(const ax_wire_place *p, int64_t bytes)
{
    int64_t sent = 0;
    for (int distance = 1; distance < p->size; distance *= 2) {
        const int to = (p->rank - distance + p->size) % p->size;
        if (p->node[to] != p->node[p->rank])
            sent += ax_min(distance, p->size - distance) * bytes;
    }
    return sent;
}

/* A broadcast goes along a binomial tree, in which ranks are counted from the root. */
static int64_t tree(const ax_wire_place *p, int root, int64_t bytes)
{
    const int me = (p->rank - root + p->size) % p->size;
    int64_t sent = 0;
    int low = 1;
    while (low < p->size && !(me & low))
        low *= 2;
    for (int child = low / 2; child; child /= 2)
        if (me + child < p->size)
            sent += p->node[(me + child + root) % p->size] != p->node[p->rank] ? bytes : 0;
    return sent;
}

/* By messages alone. */
static int64_t flat(const ax_wire_place *p, const ax_coll_args *a)
{
    const int64_t bytes = a->count * (int64_t)ax_dtype_size(a->dtype);
    const bool small = bytes * p->size <= WIRE_SMALL;
    switch (a->coll) {
    case AX_ALL_REDUCE:
        return small ? rounds(p, bytes) : 2 * bytes * p->away / p->size;
    case AX_ALL_GATHER:
        return small ? rounds(p, bytes) : bytes * p->away;
    case AX_REDUCE_SCATTER:
    case AX_ALL_TO_ALL:
        return bytes * p->away;
    case AX_BROADCAST:
        return tree(p, a->root, bytes);
    case AX_BARRIER:
        break;
    }
    return 0;
}

/* With several ranks on each node, large reductions and gathers run within the nodes, and then among the
 * ranks that have the same place on their nodes: an all-reduce with a slice of the sum. */
int64_t ax_wire_bytes(const ax_wire_place *place, const ax_coll_args *args)
{
    const int64_t bytes = args->count * (int64_t)ax_dtype_size(args->dtype),
                  sent = args->coll == AX_REDUCE_SCATTER ? bytes * place->size : bytes;
    const bool in_nodes =
        args->coll == AX_ALL_REDUCE || args->coll == AX_REDUCE_SCATTER || args->coll == AX_ALL_GATHER;
    if (!in_nodes || place->in_node < 2 || sent < WIRE_OUTSIDE)
        return flat(place, args);
    const int nodes = place->size / place->in_node;
    if (args->coll != AX_ALL_REDUCE)
        return bytes * (nodes - 1);
    const int64_t slice = bytes / place->in_node;
    return slice * nodes <= WIRE_SMALL ? slice * (nodes - 1) : 2 * slice * (nodes - 1) / nodes;
}
