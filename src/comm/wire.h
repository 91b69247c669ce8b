/* Sizes at which collectives over MPI change their algorithm, and what each algorithm sends to other nodes.
 */
#ifndef AXONN_COMM_WIRE_H
#define AXONN_COMM_WIRE_H

#include "axonn/comm.h"

enum {
    WIRE_SMALL = 16 << 10, /* largest size of all ranks' data together, in bytes, of a gather or all-reduce in
                              log2 g rounds (mpi_flat.c) */
    WIRE_OUTSIDE = 64 << 10 /* on several nodes: a collective that sends fewer bytes is faster by messages
                               alone (mpi_node.c) */
};

/* How the ranks of a communicator lie on nodes, as one of them sees it. */
typedef struct ax_wire_place {
    int size, rank;
    int away;        /* ranks on other nodes */
    int in_node;     /* ranks of each node; 0: nodes have different numbers of them */
    const int *node; /* [size] */
} ax_wire_place;

/* Returns the bytes that this rank sends to other nodes in a collective over MPI, up to the rounding of
 * slices (ax_comm_traffic.wire). */
int64_t ax_wire_bytes(const ax_wire_place *place, const ax_coll_args *args);

#endif
