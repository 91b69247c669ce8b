/* The data that a group of a node's ranks shares, and the interface between node_group.c, which synchronises
 * the ranks, and node_move.c, which moves the data. */
#ifndef AXONN_COMM_NODE_GROUP_H
#define AXONN_COMM_NODE_GROUP_H

#include "comm/node.h"

#include <stdatomic.h>

enum {
    LINE = 64,
    RING = 4,     /* rounds of a channel in flight */
    BOX = 8 << 10 /* bytes that a rank can post inline */
};

/* A rank's call. send, recv: offsets of its buffers in its heap; -1: the buffer is not in the heap. */
typedef struct post {
    int64_t count, send, recv;
    int32_t coll, dtype, op, root;
} post;

/* A rank's counters and posts of a sequence of rounds. In a round all ranks post, then each moves its share
 * of the data. `posted` and `moved` count the rounds in which this rank has done so; they wrap around. */
typedef struct channel {
    _Alignas(LINE) _Atomic uint32_t posted;
    _Atomic uint32_t moved;
    post post[RING];
} channel;

/* Channels. Each operation has one round in FIRST. An operation that needs more rounds continues in MORE, one
 * operation at a time, so that all ranks have the same order of rounds in each channel. */
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
    mailbox **mailbox; /* of each rank of the group */
    const ax_node_outer *outer;
    int64_t part_bytes; /* largest number of bytes that a rank sends and receives in one part */
    char *stage;        /* staging buffer in the heap, for parts of buffers that are not in the heap */
    int step; /* communicator rank of the column's next member minus this one's, if constant; otherwise 0 */
    uint32_t started, entered, ended; /* number of operations: started, first round posted, complete */
    /* Addresses in this process of each rank's buffers in the current round. */
    const char **send;
    char **recv;
    const void **src; /* arguments of a reduction */
    void **dst;
    char *columns; /* with several nodes: buffer for the exchange between nodes, one block per node */
};

/* The part of a collective that a move covers: elements [first, first + n) of each block. The blocks of
 * different ranks are `stride` elements apart. */
typedef struct ax_node_part {
    int64_t first, n, stride;
} ax_node_part;

/* How the ranks of a group move their shares of a collective. */
typedef enum ax_node_move {
    MOVE_WHOLE,  /* each rank computes its whole result; the sources are small, or are only read */
    MOVE_SHARED, /* all-reduce: each rank reduces one slice and writes it to all ranks' buffers */
    MOVE_IN,     /* several nodes, before the exchange: reduce what this rank will exchange */
    MOVE_OUT     /* several nodes, after the exchange: gather what the node's ranks received */
} ax_node_move;

/* Runs this rank's move with the buffers in group->send and group->recv. */
void ax_node_do(const ax_node_group *group, const ax_coll_args *args, ax_node_part part, ax_node_move move);

/* Elements [*lo, *hi) of `count`: the slice of an all-reduce that `rank` reduces. */
void ax_node_slice(const ax_node_group *group, const ax_coll_args *args, int64_t count, int rank, int64_t *lo,
                   int64_t *hi);

#endif
