/* The data movement of a node's collectives: every rank reads the other ranks' buffers directly, and in an
 * all-reduce on one node also writes to them. Each rank copies its own block first (unless the block is in
 * its place already), then the blocks of the next higher ranks, and after the block of the last rank those of
 * ranks 0, 1, … So the ranks do not all read the same buffer at once. Read node_group.h first. */
#include "comm/node_group.h"
#include "comm/reduce.h"

#include <string.h>

static void copy(void *to, const void *from, size_t bytes)
{
    if (to != from && bytes)
        memcpy(to, from, bytes);
}

/* Reduces the elements [offset, offset + n) of all ranks' send buffers, and writes the result to each of the
 * addresses g->dst[0] to g->dst[m - 1]. */
static void reduce(const ax_node_group *g, const ax_coll_args *a, int64_t offset, int64_t n, int m)
{
    for (int r = 0; r < g->map.size; r++)
        g->src[r] = g->send[r] + (size_t)offset * ax_dtype_size(a->dtype);
    if (n > 0)
        ax_reduce_for(a->dtype, a->op)(g->map.size, g->src, m, g->dst, n);
}

static void all_reduce(const ax_node_group *g, const ax_coll_args *a, ax_node_part p, ax_node_move move)
{
    size_t size = ax_dtype_size(a->dtype);
    int64_t lo = 0, hi = p.n;
    if (move != MOVE_WHOLE)
        ax_wire_slice(a, p.n, g->map.size, g->rank, &lo, &hi);
    size_t offset = (size_t)(p.first + lo) * size;
    g->dst[0] = g->recv[g->rank] + offset;
    for (int r = 0; r < g->map.size && move == MOVE_SHARED; r++)
        g->dst[r] = g->recv[r] + offset;
    reduce(g, a, p.first + lo, hi - lo, move == MOVE_SHARED ? g->map.size : 1);
}

static void gather_slices(const ax_node_group *g, const ax_coll_args *a, ax_node_part p)
{
    size_t size = ax_dtype_size(a->dtype);
    for (int k = 1; k < g->map.size; k++) {
        int r = (g->rank + k) % g->map.size;
        int64_t lo, hi;
        ax_wire_slice(a, p.n, g->map.size, r, &lo, &hi);
        size_t offset = (size_t)(p.first + lo) * size;
        copy(g->recv[g->rank] + offset, g->recv[r] + offset, (size_t)(hi - lo) * size);
    }
}

/* Returns the communicator rank of the r-th rank on `node`. */
static int64_t rank_of(const ax_node_group *g, int node, int r)
{
    return g->map.rank_of[node * g->map.size + r];
}

static void reduce_scatter(const ax_node_group *g, const ax_coll_args *a, ax_node_part p, ax_node_move move)
{
    size_t size = ax_dtype_size(a->dtype);
    for (int m = 0; m < g->map.nodes; m++) {
        g->dst[0] = move == MOVE_IN ? g->columns + (size_t)(m * p.n) * size
                                    : g->recv[g->rank] + (size_t)p.first * size;
        reduce(g, a, rank_of(g, m, g->rank) * p.stride + p.first, p.n, 1);
    }
}

static void all_gather(const ax_node_group *g, const ax_coll_args *a, ax_node_part p, ax_node_move move)
{
    size_t size = ax_dtype_size(a->dtype);
    for (int k = move == MOVE_OUT; k < g->map.size; k++) {
        int r = (g->rank + k) % g->map.size;
        for (int m = 0; m < g->map.nodes; m++) {
            size_t offset = (size_t)(rank_of(g, m, r) * p.stride + p.first) * size;
            const char *from = move == MOVE_OUT ? g->recv[r] + offset : g->send[r] + (size_t)p.first * size;
            copy(g->recv[g->rank] + offset, from, (size_t)p.n * size);
        }
    }
}

static void all_to_all(const ax_node_group *g, const ax_coll_args *a, ax_node_part p)
{
    size_t size = ax_dtype_size(a->dtype);
    for (int k = 0; k < g->map.size; k++) {
        int r = (g->rank + k) % g->map.size;
        copy(g->recv[g->rank] + (size_t)(r * p.stride + p.first) * size,
             g->send[r] + (size_t)(g->rank * p.stride + p.first) * size, (size_t)p.n * size);
    }
}

void ax_node_do(const ax_node_group *group, const ax_coll_args *args, ax_node_part part, ax_node_move move)
{
    size_t size = ax_dtype_size(args->dtype), offset = (size_t)part.first * size;
    switch (args->coll) {
    case AX_ALL_REDUCE:
        if (move == MOVE_OUT)
            gather_slices(group, args, part);
        else
            all_reduce(group, args, part, move);
        break;
    case AX_REDUCE_SCATTER:
        reduce_scatter(group, args, part, move);
        break;
    case AX_ALL_GATHER:
        all_gather(group, args, part, move);
        break;
    case AX_ALL_TO_ALL:
        all_to_all(group, args, part);
        break;
    case AX_BROADCAST:
        if (group->rank != args->root)
            copy(group->recv[group->rank] + offset, group->send[args->root] + offset, (size_t)part.n * size);
        break;
    case AX_BARRIER:
        break;
    }
}
