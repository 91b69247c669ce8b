/* How the ranks of a machine share its cores. */
#ifndef AX_GRID_THREADS_H
#define AX_GRID_THREADS_H

#include "axonn/grid.h"

/* What a rank tells the others of itself. */
typedef struct ax_threads_member {
    uint64_t host;
    ax_cores cores;
    int64_t wanted;  /* threads; 0: its share */
    int64_t threads; /* that it takes */
    bool free;       /* its user wants no thread bound */
} ax_threads_member;

/* The cores to which the threads of rank `rank` of `n` are bound. Depends on the ranks of its machine alone,
 * which all find the same. */
void ax_threads_bind(const ax_threads_member *all, int n, int rank, ax_binding *out);

/* The rank's number among those of its machine. Collective along world. */
AX_MUST_CHECK ax_status ax_threads_neighbour(ax_comm *world, int *out);

#endif
