/* Shares the cores of a machine among its ranks. */
#ifndef AX_GRID_THREADS_H
#define AX_GRID_THREADS_H

#include "axonn/grid.h"

/* The data about one rank that all ranks exchange, so that the ranks of a machine can share the machine's
 * cores. */
typedef struct ax_threads_member {
    uint64_t host; /* equal on ranks of one machine */
    ax_cores cores;
    int64_t wanted;  /* number of threads that the user asks for; 0: the rank's share of the cores */
    int64_t threads; /* number of threads chosen */
    bool pin_off;    /* runtime.pin=off */
} ax_threads_member;

/* Finds the cores to which the threads of rank `rank` of `n` are bound. The result depends only on the
 * entries of `all` for ranks on the same machine, so all ranks of a machine compute the same assignment. */
void ax_threads_bind(const ax_threads_member *all, int n, int rank, ax_binding *out);

/* Finds this rank's index, from 0, among the ranks of its machine (its local rank). Collective along
 * world. */
AX_MUST_CHECK ax_status ax_threads_local_rank(ax_comm *world, int *out);

#endif
