/* What a group of a node's ranks shares, and the moves of its collectives: between node_group.c, which has
 * the order of things, and node_move.c, which has the data. */
#ifndef AXONN_COMM_NODE_GROUP_H
#define AXONN_COMM_NODE_GROUP_H

#include "comm/node.h"

#include <stdatomic.h>

enum {
    LINE = 64,
    RING = 4,     /* rounds of a channel in flight */
    BOX = 8 << 10 /* bytes that a rank can post inline */
};

/* What a rank calls, and where its buffers are in its heap: -1, not there. */
typedef struct post {
    int64_t count, send, recv;
    int32_t coll, dtype, op, root;
} post;

/* Rounds: all ranks post, each moves its share, all have moved. Counters only grow, and wrap. */
typedef struct channel {
    _Alignas(LINE) _Atomic uint32_t posted;
    _Atomic uint32_t moved;
    post post[RING];
} channel;

/* Operations begin in FIRST, each with one round. What takes more rounds continues in MORE, one operation at
 * a time, so that the order of rounds in each channel is the same on all ranks. */
enum { FIRST, MORE, CHANNELS };

/* One rank's part of what a group shares: in its heap, written by it alone. */
typedef struct place {
    channel channel[CHANNELS];
    _Alignas(LINE) char box[RING][BOX];
} place;

struct ax_node_group {
    ax_node *node;
    ax_node_map map;
    int *rank_of;
    int rank;
    int *member;
    place **place; /* of each rank of the group */
    const ax_node_outer *outer;
    int64_t part_bytes; /* of what a rank sends and receives in one part */
    char *stage;        /* in the heap: carries parts of buffers that are not */
    int step;           /* from a rank to its like on the next node, if that is the same for all; else 0 */
    uint32_t started, entered, ended; /* operations: begun, in their first round, complete */
    /* Each rank's buffers in this round, as this process sees them. */
    const char **send;
    char **recv;
    const void **src; /* lists for a reduction */
    void **dst;
    char *columns; /* with several nodes: exchanged outside where no buffer has it, a block per node */
};

/* The part of each counted extent that a move covers: elements [first, first + n), where blocks of different
 * ranks are `stride` apart. */
typedef struct ax_node_part {
    int64_t first, n, stride;
} ax_node_part;

/* How the ranks of a group move their shares of a collective. */
typedef enum ax_node_move {
    MOVE_WHOLE,  /* each rank makes its own result; sources are small, or only read */
    MOVE_SHARED, /* an all-reduce: each rank reduces a slice and writes all copies */
    MOVE_IN,     /* several nodes: reduce to what this rank carries outside */
    MOVE_OUT     /* several nodes: what the ranks brought from outside, to all */
} ax_node_move;

/* Runs this rank's move with the buffers in group->send and group->recv. */
void ax_node_do(const ax_node_group *group, const ax_coll_args *args, ax_node_part part, ax_node_move move);

/* Elements [*lo, *hi) of `count`: the slice of an all-reduce that `rank` reduces. */
void ax_node_slice(const ax_node_group *group, const ax_coll_args *args, int64_t count, int rank, int64_t *lo,
                   int64_t *hi);

#endif
