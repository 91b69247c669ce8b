/* The data that a group of a node's ranks shares, and the interface between node_group.c, which synchronises
 * the ranks, and node_move.c, which moves the data. */
#ifndef AXONN_COMM_NODE_GROUP_H
#define AXONN_COMM_NODE_GROUP_H

#include "comm/node.h"

#include <stdatomic.h>

enum {
    LINE = 64,
    RING = 4,     /* rounds of a channel in flight */
    BOX = 8 << 10 /* bytes of data that a rank can put into its mailbox */
};

/* A rank's call, as the other ranks read it. send, recv: offsets of the rank's buffers in its heap; -1: the
 * buffer is not in the heap. */
typedef struct post {
    int64_t count, send, recv;
    int32_t coll, dtype, op, root;
} post;

/* A sequence of rounds, as one rank writes it: counters, and the posts of the last RING rounds. In a round
 * all ranks post their calls, then each moves its share of the data. `posted` counts the rounds in which this
 * rank has posted, `moved` those in which it has moved; both counters wrap around. */
typedef struct channel {
    _Alignas(LINE) _Atomic uint32_t posted;
    _Atomic uint32_t moved;
    post post[RING];
} channel;

/* The channels of a mailbox. Each operation has one round in channel FIRST. An operation that needs more
 * rounds continues in channel MORE, one operation at a time, so that all ranks have the same order of rounds
 * in each channel. */
enum { FIRST, MORE, CHANNELS };

/* One rank's posts to a group: in its heap, read by all ranks of the group, written by this rank only. */
typedef struct mailbox {
    channel channel[CHANNELS];
    _Alignas(LINE) char box[RING][BOX];
} mailbox;

struct ax_node_group {
    ax_node *node;
    ax_node_map map;
    int *rank_of;
    int rank;
    int *member;
    mailbox **mailbox; /* mailbox[r]: that of rank r of the group */
    const ax_node_outer *outer;
    int64_t part_bytes; /* largest number of bytes that a rank sends and receives in one part */
    char *stage;        /* staging buffer in the heap, for parts of buffers that are not in the heap */
    int step; /* distance between the communicator ranks of successive members of this rank's column, if
                 constant; otherwise 0 */
    uint32_t started, entered,
        ended; /* number of operations that were started, that posted their first round, that are complete */
    /* Addresses in this process of each rank's buffers in the current round. */
    const char **send;
    char **recv;
    const void **src; /* source pointers of a reduction, one per rank */
    void **dst;
    char *columns; /* with several nodes: buffer for the exchange between nodes, one block per node */
};

/* The elements [first, first + n) of each rank's block. The blocks of successive ranks begin `stride`
 * elements apart. */
typedef struct ax_node_part {
    int64_t first, n, stride;
} ax_node_part;

/* How the ranks of a group move their shares of a collective. */
typedef enum ax_node_move {
    MOVE_WHOLE,  /* each rank computes its whole result; for small data, and if no rank overwrites the sources
                  */
    MOVE_SHARED, /* all-reduce: each rank reduces one slice and writes it to all ranks' buffers */
    MOVE_IN,     /* several nodes, before the exchange: reduce the part that this rank will exchange */
    MOVE_OUT     /* several nodes, after the exchange: gather the parts that the node's ranks received */
} ax_node_move;

/* Moves this rank's share of the data between the buffers in group->send and group->recv. */
void ax_node_do(const ax_node_group *group, const ax_coll_args *args, ax_node_part part, ax_node_move move);

/* Sets [*lo, *hi) to the slice of the `count` elements that `rank` reduces in an all-reduce. */
void ax_node_slice(const ax_node_group *group, const ax_coll_args *args, int64_t count, int rank, int64_t *lo,
                   int64_t *hi);

#endif
