/* How the ranks of a communicator of a dry run lie on nodes. */
#ifndef AXONN_COMM_PLACE_H
#define AXONN_COMM_PLACE_H

#include "axonn/comm.h"

/* The ranks of a communicator, by their numbers in a world whose nodes have equally many ranks with
 * successive numbers. */
typedef struct ax_placed {
    int size, rank, world; /* world: number of ranks of the world */
    const int *number;     /* [size]; NULL: 0, 1, … */
    const int *rising;     /* [size]: the same in rising order; NULL: 0, 1, … */
} ax_placed;

/* Returns the number of rank `rank` in the world. */
int ax_placed_number(const ax_placed *p, int rank);
/* Returns what ax_comm_place_of says of the communicator, on nodes of `node` ranks. */
ax_comm_place ax_placed_find(const ax_placed *p, int node);
/* Does what ax_comm_dry_mark says, and returns that, on nodes of `node` ranks. */
bool ax_placed_mark(const ax_placed *p, int node, uint64_t *key);

#endif
