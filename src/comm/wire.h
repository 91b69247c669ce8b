/* How collectives over MPI are cut, at which sizes they change their algorithm, what each algorithm sends to
 * other nodes, and which buffers it needs: the same functions serve the ranks of a run and the plan of it. */
#ifndef AXONN_COMM_WIRE_H
#define AXONN_COMM_WIRE_H

#include "axonn/comm.h"

enum {
    WIRE_SMALL = 16 << 10, /* largest size of all ranks' data together, in bytes, of a gather or all-reduce in
                              log2 g rounds (mpi_flat.c) */
    WIRE_LINE = 64         /* bytes of a cache line */
};

/* Allocates a buffer of collectives, freed by free(), whose pages are resident at once, so that memory that
 * is planned does not come later. AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_wire_alloc(size_t bytes, char **out);

/* ---- by messages alone (mpi_flat.c) ---------------------------------------------------------------- */

/* Returns true for a gather or an all-reduce of little data among `size` ranks, which takes log2 `size`
 * rounds. */
bool ax_wire_is_small(const ax_coll_args *args, int size);
/* Returns the largest count of a piece: a collective among `size` ranks runs in pieces of so many elements of
 * each rank's block, of an all-reduce or a broadcast of the buffer. */
int64_t ax_wire_cut(const ax_coll_args *args, int size);
/* Returns the bytes of scratch that a piece of `count` elements needs; 0: none. */
size_t ax_wire_scratch(const ax_coll_args *args, int size, int64_t count);

/* ---- within nodes and between them (node_group.c) -------------------------------------------------- */

/* Placement of a communicator's ranks on nodes that have equally many: `size` ranks on each of `nodes` nodes.
 * This rank is on the node with index `node`. rank_of[n·size + i] is the communicator rank of the i-th rank
 * on node n. */
typedef struct ax_node_map {
    int nodes, node, size;
    const int *rank_of;
} ax_node_map;

/* Returns true if a collective leaves its result in the buffer that it sends from. */
bool ax_wire_in_place(ax_coll coll);
/* Return the number of blocks of `count` elements in the send and in the receive buffer of a collective among
 * `size` ranks: 1, or the number of ranks. */
int ax_wire_blocks_sent(ax_coll coll, int size);
int ax_wire_blocks_received(ax_coll coll, int size);
/* Returns true if a collective runs through the memory that the ranks of a node share: on one node always, on
 * several, between which it then goes by messages, if that is faster than messages alone. */
bool ax_wire_in_nodes(const ax_node_map *map, const ax_coll_args *args);
/* The most bytes that a rank sends and receives together in one part of an operation, among `size` ranks on
 * each of `nodes` nodes. */
int64_t ax_wire_part_bytes(int nodes, int size);
/* Returns true if the exchange between nodes has a buffer of its own: in a reduce-scatter for the blocks to
 * send; in an all-gather for the received blocks, unless their places in the caller's buffer are a constant
 * number of blocks apart (`step`; 0: they are not). */
bool ax_wire_has_columns(const ax_coll_args *args, int nodes, int step);
/* Returns the number of elements of each block in one part of an operation (the last may have fewer). */
int64_t ax_wire_part(const ax_coll_args *args, int nodes, int size, int step);
/* Sets [*lo, *hi) to the slice of the `count` elements of a part that the i-th of the `size` ranks of a node
 * reduces in an all-reduce. Slices begin and end at multiples of a cache line, so that no two ranks write to
 * the same line of a buffer that begins at a line. */
void ax_wire_slice(const ax_coll_args *args, int64_t count, int size, int i, int64_t *lo, int64_t *hi);
/* Returns the distance in ranks from the i-th rank on one node to the i-th on the next; 0 if there is one
 * node, or if the distance is not the same for all. rank_of[n·size + i]: the i-th rank on node n. */
int ax_wire_step(int nodes, int size, const int *rank_of);

/* ---- as one rank sees it --------------------------------------------------------------------------- */

/* How the ranks of a communicator lie on nodes, as one of them sees it. */
typedef struct ax_wire_place {
    int size, rank;
    int away;        /* ranks on other nodes */
    const int *node; /* [size] */
    ax_node_map map; /* size 0: collectives go by messages alone, because the ranks of a node share no memory,
                        nodes have different numbers of them, or each has one */
    int at;          /* with map: index of this rank among those of its node */
    int step;        /* with map: that of ax_wire_step */
    int *rank_of;    /* map.rank_of */
} ax_wire_place;

/* Sets *out to the place of rank `rank`; `node` [size] has the number of each rank's node, at least 0 and of
 * the size of the world, and is borrowed. `shared`: the ranks of a node share memory. The caller releases
 * *out with ax_wire_place_fini. AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_wire_find(int size, int rank, const int *node, bool shared, ax_wire_place *out);
void ax_wire_place_fini(ax_wire_place *place);

/* Returns the bytes that this rank sends to other nodes in a collective over MPI, up to the rounding of
 * slices (ax_comm_traffic.wire). */
int64_t ax_wire_bytes(const ax_wire_place *place, const ax_coll_args *args);

/* The buffers that a collective needs: scratch of `pieces` pieces in flight together, `bytes` for each but
 * the last, which needs `last`. `alone`: an exchange between nodes, of which a communicator has one in flight
 * at a time; it also needs `columns` bytes. */
typedef struct ax_wire_need {
    int64_t pieces;
    size_t bytes, last, columns;
    bool alone;
} ax_wire_need;
ax_wire_need ax_wire_need_of(const ax_wire_place *place, const ax_coll_args *args);
/* Enters the scratch of a collective into a list of the largest in flight together, from large to small. */
void ax_wire_enter(const ax_wire_need *need, size_t scratch[AX_COMM_PIECES]);
/* Raises each size of *most to that of `other`, if that is larger. */
void ax_wire_raise(ax_comm_buffers *most, const ax_comm_buffers *other);

#endif
