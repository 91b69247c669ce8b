/* The data that the ranks of a group share on one node, and the interface between node_group.c, which
 * synchronises the ranks, and node_move.c, which moves the data. */
#ifndef AXONN_COMM_NODE_GROUP_H
#define AXONN_COMM_NODE_GROUP_H

#include "comm/node.h"
#include "comm/wire.h"

#include <stdatomic.h>

enum {
    LINE = WIRE_LINE,
    RING = 4,     /* largest number of rounds (exchanges of calls and data) of a channel in flight */
    BOX = 8 << 10 /* bytes of data that a rank can put into its mailbox */
};

/* The arguments of a rank's call, for the other ranks. send, recv: offsets of the rank's buffers in its
 * heap; -1: the buffer is not in the heap. */
typedef struct post {
    int64_t count, send, recv;
    int32_t coll, dtype, op, root;
} post;

/* One rank's record of a sequence of rounds: two counters, and its posts of the last RING rounds. In a round
 * all ranks post their calls, then each rank moves its share of the data. `posted` counts the rounds in which
 * this rank has posted its call, `moved` the rounds in which it has moved its share. Both counters wrap
 * around. */
typedef struct channel {
    _Alignas(LINE) _Atomic uint32_t posted;
    _Atomic uint32_t moved;
    post post[RING];
} channel;

/* The channels (sequences of rounds) of a mailbox. Each operation has one round in channel FIRST. An
 * operation that needs more rounds continues in channel MORE, one operation at a time, so that all ranks have
 * the same order of rounds in each channel. */
enum { FIRST, MORE, CHANNELS };

/* One rank's channels of a group, and the data that it sends in small operations (box). The mailbox lies in
 * the rank's heap. All ranks of the group read it; only its owner writes it. */
typedef struct mailbox {
    channel channel[CHANNELS];
    _Alignas(LINE) char box[RING][BOX];
} mailbox;

struct ax_node_group {
    ax_node *node;
    ax_node_map map;
    int *rank_of;
    int rank;          /* this rank's index in the group */
    int *member;       /* member[r]: index of the group's rank r among the ranks of the node */
    mailbox **mailbox; /* mailbox[r]: the mailbox of the group's rank r */
    const ax_node_outer *outer;
    /* The most bytes that a rank sends and receives together in one part of an operation. */
    int64_t part_bytes;
    char *stage; /* staging buffer in shared memory, for callers' buffers that are not in shared memory */
    int step;    /* distance in communicator ranks from the i-th rank on one node to the i-th rank on the next
                    node; 0 if there is one node, or if this distance is not the same for all i and all nodes */
    /* Numbers of operations, on this rank. started: of all operations started; entered: of those that have
     * posted their call; ended: of those that are complete. */
    uint32_t started, entered, ended;
    /* Addresses, in this process, of each rank's send and receive buffer in the current round. */
    const char **send;
    char **recv;
    const void **src; /* source pointers of a reduction, one per rank */
    void **dst;
    char *columns; /* with several nodes: buffer for the exchange between nodes, one block per node; NULL: not
                      needed so far */
    size_t columns_bytes;
};

/* The elements [first, first + n) of each rank's block. The blocks of successive ranks begin `stride`
 * elements apart. */
typedef struct ax_node_part {
    int64_t first, n, stride;
} ax_node_part;

/* How the ranks of a group move their shares of a collective. */
typedef enum ax_node_move {
    MOVE_WHOLE,  /* one node: each rank computes all of its own result; for small data, and for collectives
                    other than all-reduce, in which no rank writes to memory that another rank reads */
    MOVE_SHARED, /* all-reduce on one node: each rank reduces one slice and writes the result to all ranks'
                    buffers */
    MOVE_IN,     /* several nodes, before the exchange between nodes: each rank reduces the data that it will
                    exchange */
    MOVE_OUT     /* several nodes, after the exchange between nodes: each rank copies the data that the other
                    ranks of its node have received */
} ax_node_move;

/* Copies or reduces this rank's share of the data among the buffers in group->send, recv and columns. */
void ax_node_do(const ax_node_group *group, const ax_coll_args *args, ax_node_part part, ax_node_move move);

#endif
