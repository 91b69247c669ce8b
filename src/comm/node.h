/* The ranks of one node: memory that they all see, and collectives that work directly in it.
 *
 * Each rank has a heap: address space of its own that the others map too, backed by a file without a name.
 * What ax_node_alloc gives out is found by a peer as (rank, offset), so a collective moves data between the
 * buffers themselves. Nothing here needs MPI: the caller carries the cards by which ranks find each other's
 * heaps, and the places of a group, by whatever means it has.
 *
 * Order of calls: ax_node_create on each rank; exchange of cards; ax_node_attach; agreement that all could;
 * ax_node_seal. Then for each communicator: ax_node_group_create; exchange of places; ax_node_group_join. */
#ifndef AXONN_COMM_NODE_H
#define AXONN_COMM_NODE_H

#include "axonn/comm.h"

typedef struct ax_node ax_node;
typedef struct ax_node_group ax_node_group;

/* What a rank tells the others of its heap. Plain bytes. */
typedef struct ax_node_card {
    char path[96];
    uint64_t token, bytes;
    int64_t pid; /* of whom it is, and where it lies there */
    uint64_t base;
} ax_node_card;

/* Makes this rank's heap of at most `bytes` (0: as much as the machine has memory): address space, of which
 * memory is taken as it is allocated. The file is anonymous memory of the system if `dir` is NULL, else a
 * file in that directory, which should be a memory file system. AX_ERR_MEMORY says why not. */
AX_MUST_CHECK ax_status ax_node_create(int rank, int size, const char *dir, size_t bytes, ax_node **out,
                                       ax_node_card *card);
/* Maps the heaps of all ranks, whose cards are in rank order; those of ranks in this process (threads of
 * tests) are where they are. AX_ERR_COMM says whose cannot be mapped. */
AX_MUST_CHECK ax_status ax_node_attach(ax_node *node, const ax_node_card *cards);
/* All ranks have attached: no other process needs to find this heap. */
void ax_node_seal(ax_node *node);
void ax_node_destroy(ax_node **node);

/* Zeroed memory of this rank's heap, page-aligned, between pages that fault. AX_ERR_MEMORY if the file cannot
 * grow, never a fault when it is used. Not collective; any thread. */
AX_MUST_CHECK ax_status ax_node_alloc(ax_node *node, size_t bytes, void **out);
void ax_node_free(ax_node *node, void *memory);
/* The offset of memory in this rank's heap, or -1 if not all of it is there. */
int64_t ax_node_offset(const ax_node *node, const void *memory, size_t bytes);
/* Resident bytes of this process that belong to other ranks' heaps. */
int64_t ax_node_foreign(ax_node *node);
/* Where this process sees an offset of a rank's heap. */
void *ax_node_at(const ax_node *node, int rank, int64_t offset);
int ax_node_size(const ax_node *node);

/* ---- groups -------------------------------------------------------------------------------------- */

/* How the ranks of a communicator that spans nodes exchange what each node has reduced: among the ranks that
 * have the same rank in their nodes' groups, one per node. At most one operation is in flight. */
typedef struct ax_node_outer {
    /* The blocks that an all-gather writes are `stride` elements apart. */
    ax_status (*start)(void *user, const ax_coll_args *args, int64_t stride);
    ax_status (*test)(void *user, bool *done);
    void *user;
} ax_node_outer;

/* Which ranks of a communicator are on which node: `size` on each of `nodes` nodes, and this one is number
 * `node`. rank_of[n·size + i] is the communicator's rank of rank i of node n's group. */
typedef struct ax_node_map {
    int nodes, node, size;
    const int *rank_of;
} ax_node_map;

/* The ranks of a communicator on this node, of which this is number `rank`. The caller makes *place known to
 * all of the group. */
AX_MUST_CHECK ax_status ax_node_group_create(ax_node *node, const ax_node_map *map, int rank,
                                             ax_node_group **out, int64_t *place);
/* member[i] and where[i]: the node's rank of group rank i, and its place. `outer` may be NULL with one node;
 * it is borrowed. */
void ax_node_group_join(ax_node_group *group, const int *member, const int64_t *where,
                        const ax_node_outer *outer);
/* After all ranks have ended their last operation. */
void ax_node_group_destroy(ax_node_group **group);

/* True if the group carries this collective: all of them on one node; on several those that gain. */
bool ax_node_takes(const ax_node_group *group, const ax_coll_args *args);

/* A collective in flight. The caller's storage; members belong to node_group.c. */
typedef struct ax_node_op {
    ax_node_group *group;
    ax_coll_args args;
    int phase;
    bool staged, out, exchanged;
    uint32_t turn;           /* number of this operation in the group */
    uint32_t round;          /* the round that it is in, of its channel */
    int64_t first, n, chunk; /* of the counted elements: the part at work, and the largest part */
} ax_node_op;

/* Begins a collective; drives it as far as it gets without waiting for another rank, and says whether it is
 * complete. Operations of a group are begun in the same order by all ranks and first tested in that order.
 * AX_ERR_COMM if ranks disagree in what they call, after which the group cannot be used. */
void ax_node_start(ax_node_group *group, const ax_coll_args *args, ax_node_op *op);
AX_MUST_CHECK ax_status ax_node_test(ax_node_op *op, bool *done);

#endif
