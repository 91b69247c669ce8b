/* Shared memory of the ranks of one node, and collectives that work directly in it.
 *
 * Each rank has a heap: a shared mapping of a memfd, or of a file that is unlinked once the other ranks have
 * mapped it too. Another rank of the node (a peer) addresses memory of ax_node_alloc as (rank, offset), so a
 * collective copies directly from the sender's buffer to the receiver's. Nothing here uses MPI. The caller
 * sends two things between the ranks: the cards, which describe the heaps, and the heap offsets of a group's
 * mailboxes, through which the ranks synchronise.
 *
 * Order of calls: ax_node_create on each rank; exchange of cards; ax_node_attach; agreement that all ranks
 * attached; ax_node_seal. Then for each communicator: ax_node_group_create; exchange of mailboxes;
 * ax_node_group_join. */
#ifndef AXONN_COMM_NODE_H
#define AXONN_COMM_NODE_H

#include "comm/wire.h"

typedef struct ax_node ax_node;
typedef struct ax_node_group ax_node_group;

enum { AX_NODE_PATH = 4096 }; /* bytes of the longest path that Linux opens, with its NUL */

/* A rank's description of its heap (its shared memory), for the other ranks. The struct has no pointers, so
 * it can be sent. */
typedef struct ax_node_card {
    char path[AX_NODE_PATH]; /* where the other ranks open the heap's file */
    uint64_t token, bytes; /* token: random number, also in the heap's first page; bytes: size of the heap */
    int64_t pid;           /* the owner's process */
    uint64_t base;         /* the heap's address in the owner's process */
} ax_node_card;

/* Creates this rank's heap of `bytes` bytes, rounded up to a multiple of 2 MiB (0: the size of the
 * machine's memory, or less if the heaps of all ranks would not fit into the address space). `rank` is
 * this rank's index among the `size` ranks of the node. This function reserves only address space, except
 * for one page; ax_node_alloc reserves memory. If `dir` is NULL the file is a memfd, otherwise a file in
 * that directory, which should be a tmpfs. On failure *card is all zeros, and may still be sent.
 * AX_ERR_MEMORY; AX_ERR_USAGE if the name of `dir` is too long; AX_ERR_INTERNAL if the system gives no
 * random number. */
AX_MUST_CHECK ax_status ax_node_create(int rank, int size, const char *dir, size_t bytes, ax_node **out,
                                       ax_node_card *card);
/* Maps the heaps of all ranks of the node; `cards`, the descriptions of the heaps, is in rank order.
 * Memfds of ranks in this process (threads in tests) are used at their existing address. AX_ERR_COMM names
 * the rank whose heap cannot be mapped. */
AX_MUST_CHECK ax_status ax_node_attach(ax_node *node, const ax_node_card *cards);
/* Removes the name of the file of this rank's heap (a memfd has none). Call this function when all ranks of
 * the node have mapped the heap (ax_node_attach). */
void ax_node_seal(ax_node *node);
void ax_node_destroy(ax_node **node);

/* Allocates zeroed, page-aligned memory in this rank's heap, between guard pages. Reserves the file's blocks
 * at once, so that a later access never causes SIGBUS for lack of space; AX_ERR_MEMORY if they cannot be
 * reserved. Not collective; any thread may call it. */
AX_MUST_CHECK ax_status ax_node_alloc(ax_node *node, size_t bytes, void **out);
void ax_node_free(ax_node *node, void *memory);
/* Returns the offset of `memory` in this rank's heap, or -1 if not all of its `bytes` are in this heap. */
int64_t ax_node_offset(const ax_node *node, const void *memory, size_t bytes);
/* Estimates how many resident bytes of this process belong to other ranks' heaps. */
int64_t ax_node_foreign(ax_node *node);
/* Returns the address, in this process, of the byte at `offset` in the heap of `rank`. */
void *ax_node_at(const ax_node *node, int rank, int64_t offset);

/* ---- groups -------------------------------------------------------------------------------------- */

/* The functions by which the caller exchanges data between nodes, for a communicator that spans nodes. An
 * exchange is collective along a column: the ranks that have the same index in their nodes' groups, one rank
 * per node. At most one exchange is in flight. */
typedef struct ax_node_outer {
    /* stride: distance in elements between the beginnings of the blocks that an all-gather writes. */
    ax_status (*start)(void *user, const ax_coll_args *args, int64_t stride);
    ax_status (*test)(void *user, bool *done);
    void *user;
} ax_node_outer;

/* Creates a group: those ranks of a communicator that are on this node. `rank` is this rank's index among
 * them. The caller sends *mailbox to all ranks of the group: the offset, in this rank's heap, of the
 * mailbox where the rank writes its calls. */
AX_MUST_CHECK ax_status ax_node_group_create(ax_node *node, const ax_node_map *map, int rank,
                                             ax_node_group **out, int64_t *mailbox);
/* Connects the group's ranks. Rank i of the group has passed member[i] to ax_node_create as `rank`; the
 * mailbox of rank i, where it writes its calls, is at offset[i] in the heap of rank i. `outer` is
 * borrowed; NULL is allowed if there is one node. */
void ax_node_group_join(ax_node_group *group, const int *member, const int64_t *offset,
                        const ax_node_outer *outer);
/* Makes the buffer of a group on several nodes for the exchange between them `bytes` bytes large; none of the
 * group's operations is in flight. A collective that needs more enlarges it. ax_node_group_reserved returns
 * its size. AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_node_group_reserve(ax_node_group *group, size_t bytes);
size_t ax_node_group_reserved(const ax_node_group *group);
/* Destroys a group. Call this function only after all ranks of the group have completed their last
 * operation. */
void ax_node_group_destroy(ax_node_group **group);

/* Returns true if the group can run this collective: always on one node; on several nodes only if that is
 * faster than messages alone. */
bool ax_node_takes(const ax_node_group *group, const ax_coll_args *args);

/* A collective in flight, stored by the caller. The members are private to node_group.c. Data that one round
 * (one exchange of calls and data, node_group.c) cannot move are moved in parts, one after the other. */
typedef struct ax_node_op {
    ax_node_group *group;
    ax_coll_args args;
    int phase;
    /* staged: the data go through the ranks' staging buffers; out: the next round of the current part comes
     * after the part's exchange between nodes (MOVE_OUT); exchanged: the current part has data to exchange
     * between nodes. */
    bool staged, out, exchanged;
    uint32_t turn;           /* number of this operation in the group's sequence of operations */
    uint32_t round;          /* number of the current round (one exchange of calls and data) in its channel
                                (node_group.h) */
    int64_t first, n, chunk; /* in elements of each block: the current part is [first, first + n); chunk is
                                the size of the largest part */
} ax_node_op;

/* ax_node_start begins a collective. ax_node_test makes progress until it would have to wait for another
 * rank, and sets *done if the collective is complete. All ranks must start the operations of a group in the
 * same order. An operation waits until all earlier operations of the group have posted their calls, so all
 * operations in flight must be tested. AX_ERR_COMM if the ranks' calls differ; after this error the group
 * cannot be used any more. */
void ax_node_start(ax_node_group *group, const ax_coll_args *args, ax_node_op *op);
AX_MUST_CHECK ax_status ax_node_test(ax_node_op *op, bool *done);

#endif
