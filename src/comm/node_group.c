/* Collectives among the ranks of a node: the state machine that synchronises the ranks. Read node.h and
 * node_group.h first.
 *
 * A round has three steps. Every rank posts its call and the offsets of its buffers: it writes them into its
 * mailbox. Once all have posted, each rank moves its share of the data. Once all have moved, the callers may
 * use their buffers again. There are four kinds of operations:
 *
 *   - small: one round. The data are in the mailboxes beside the posts, so no rank waits until the others
 *     have moved.
 *   - shared: one round on the ranks' own buffers.
 *   - staged: the posts of the first round show that some buffers are not in heaps. Then the buffers are cut
 *     into parts, and each part has a round of its own, in the staging buffers.
 *   - across nodes: a first round without data. Then for each part of the buffers: a round that reduces
 *     within the node, the exchange with the other nodes, and a round that gathers within the node. A
 *     reduce-scatter needs no last round, an all-gather no round before the exchange.
 *
 * All ranks of a node read the same posts, so they all choose the same kind. Rounds form two sequences, the
 * channels: FIRST has the first round of every operation, MORE all further rounds. */
#include "comm/node_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum phase {
    POST,  /* wait for this operation's turn, and for room in the ring channel.post; write this rank's call */
    MEET,  /* wait until all ranks have written their calls; move the data if one round is enough */
    LEAVE, /* wait until all ranks have moved their data */
    TURN,  /* wait until all earlier operations of the group are complete */
    PART,  /* prepare the next part, or end the operation */
    PART_POST,      /* wait until the ring of calls has room; write this rank's call for the part */
    PART_MEET,      /* wait until all ranks have written their calls for the part; move the data */
    START_EXCHANGE, /* start the exchange with the other nodes */
    TEST_EXCHANGE,  /* wait until the exchange is complete */
    PART_LEAVE,     /* wait until all ranks have moved their data; finish the part */
    END
} phase;

/* ---- groups -------------------------------------------------------------------------------------- */

static int total(const ax_node_group *g) { return g->map.nodes * g->map.size; }

/* Allocates the staging buffer (for data outside shared memory), unless the group has one. If all ranks are
 * on one node, ax_node_group_create calls this function in advance, because callers have buffers outside
 * their heaps when the heaps are full, and a full heap has no room for a staging buffer. */
static ax_status need_stage(ax_node_group *g)
{
    return g->stage ? AX_OK : ax_node_alloc(g->node, (size_t)g->part_bytes + 2 * LINE, (void **)&g->stage);
}

/* Returns true if the exchange with other nodes uses the buffer g->columns. */
static bool needs_columns(const ax_node_group *g, const ax_coll_args *a)
{
    return ax_wire_has_columns(a, g->map.nodes, g->step);
}

ax_status ax_node_group_reserve(ax_node_group *g, size_t bytes)
{
    if (bytes == g->columns_bytes)
        return AX_OK;
    free(g->columns);
    g->columns = NULL;
    g->columns_bytes = 0;
    if (bytes)
        AX_TRY(ax_wire_alloc(bytes, &g->columns));
    g->columns_bytes = bytes;
    return AX_OK;
}

size_t ax_node_group_reserved(const ax_node_group *g) { return g->columns_bytes; }

static ax_status init_group(ax_node_group *g, const ax_node_map *map, int64_t *offset)
{
    size_t n = (size_t)map->size, all = (size_t)map->nodes * n;
    AX_TRY(ax_calloc(all, sizeof *g->rank_of, &g->rank_of));
    memcpy(g->rank_of, map->rank_of, all * sizeof *g->rank_of);
    g->map.rank_of = g->rank_of;
    AX_TRY(ax_calloc(n, sizeof *g->member, &g->member));
    AX_TRY(ax_calloc(n, sizeof(mailbox *), &g->mailbox));
    AX_TRY(ax_calloc(n, sizeof(char *), &g->send));
    AX_TRY(ax_calloc(n, sizeof(char *), &g->recv));
    AX_TRY(ax_calloc(n, sizeof(void *), &g->src));
    AX_TRY(ax_calloc(n, sizeof(void *), &g->dst));
    void *mine;
    AX_TRY(ax_node_alloc(g->node, sizeof(mailbox), &mine));
    g->mailbox[g->rank] = mine;
    *offset = ax_node_offset(g->node, mine, 1);
    g->part_bytes = ax_wire_part_bytes(map->nodes, map->size);
    g->step = ax_wire_step(map->nodes, map->size, map->rank_of);
    return map->nodes > 1 ? AX_OK : need_stage(g);
}

ax_status ax_node_group_create(ax_node *node, const ax_node_map *map, int rank, ax_node_group **out,
                               int64_t *offset)
{
    *out = NULL;
    ax_node_group *g;
    AX_TRY(ax_calloc(1, sizeof *g, &g));
    g->node = node;
    g->map = *map;
    g->rank = rank;
    ax_status status = init_group(g, map, offset);
    if (status != AX_OK)
        ax_node_group_destroy(&g);
    *out = g;
    return status;
}

void ax_node_group_join(ax_node_group *group, const int *member, const int64_t *offset,
                        const ax_node_outer *outer)
{
    for (int r = 0; r < group->map.size; r++) {
        group->member[r] = member[r];
        group->mailbox[r] = ax_node_at(group->node, member[r], offset[r]);
    }
    group->outer = outer;
}

void ax_node_group_destroy(ax_node_group **group)
{
    ax_node_group *g = *group;
    if (!g)
        return;
    if (g->mailbox)
        ax_node_free(g->node, g->mailbox[g->rank]);
    ax_node_free(g->node, g->stage);
    free(g->columns);
    free(g->dst);
    free(g->src);
    free(g->recv);
    free(g->send);
    free(g->mailbox);
    free(g->member);
    free(g->rank_of);
    free(g);
    *group = NULL;
}

/* ---- sizes of buffers ---------------------------------------------------------------------------- */

static int blocks_sent(const ax_node_group *g, const ax_coll_args *a)
{
    return ax_wire_blocks_sent(a->coll, total(g));
}

static int blocks_received(const ax_node_group *g, const ax_coll_args *a)
{
    return ax_wire_blocks_received(a->coll, total(g));
}

static size_t bytes_sent(const ax_node_group *g, const ax_coll_args *a)
{
    return (size_t)blocks_sent(g, a) * (size_t)a->count * ax_dtype_size(a->dtype);
}

static bool is_small(const ax_node_group *g, const ax_coll_args *a)
{
    return g->map.nodes == 1 && bytes_sent(g, a) <= BOX;
}

bool ax_node_takes(const ax_node_group *group, const ax_coll_args *args)
{
    return ax_wire_in_nodes(&group->map, args);
}

/* ---- rounds -------------------------------------------------------------------------------------- */

/* Returns true if every rank has posted its calls for at least n rounds of channel c. The counters wrap
 * around, so their difference is compared, as a signed number. */
static bool all_posted(const ax_node_group *g, int c, uint32_t n)
{
    for (int r = 0; r < g->map.size; r++)
        if ((int32_t)(atomic_load_explicit(&g->mailbox[r]->channel[c].posted, memory_order_acquire) - n) < 0)
            return false;
    return true;
}

static bool all_moved(const ax_node_group *g, int c, uint32_t n)
{
    for (int r = 0; r < g->map.size; r++)
        if ((int32_t)(atomic_load_explicit(&g->mailbox[r]->channel[c].moved, memory_order_acquire) - n) < 0)
            return false;
    return true;
}

/* Returns true if op may post its call (write it into this rank's mailbox). In the phase POST, op must wait
 * for its turn: operations post their first rounds in the order in which they were started. */
static bool may_post(const ax_node_op *op)
{
    return op->phase == PART_POST || op->group->entered == op->turn;
}

/* Returns true once all ranks have posted their calls for op's round of channel c, and this rank has moved
 * its data in all earlier rounds. Without the second condition op could overtake an earlier operation. This
 * would happen if the last rank to post posted its calls for both operations after this rank's test of the
 * earlier operation and before this rank's test of op. */
static bool may_move(const ax_node_op *op, int c)
{
    const ax_node_group *g = op->group;
    const channel *mine = &g->mailbox[g->rank]->channel[c];
    return atomic_load_explicit(&mine->moved, memory_order_relaxed) == op->round &&
           all_posted(g, c, op->round + 1);
}

/* Posts the call *p for the next round of channel c: writes it into this rank's mailbox. Does nothing if some
 * rank may still read this rank's call from RING rounds ago, which the new call overwrites. Returns true if
 * the call was posted. */
static bool try_post(ax_node_op *op, int c, const post *p)
{
    ax_node_group *g = op->group;
    channel *mine = &g->mailbox[g->rank]->channel[c];
    uint32_t round = atomic_load_explicit(&mine->posted, memory_order_relaxed);
    if (!all_moved(g, c, round + 1 - RING))
        return false;
    mine->post[round % RING] = *p;
    if (c == FIRST && is_small(g, &op->args) && bytes_sent(g, &op->args))
        memcpy(g->mailbox[g->rank]->box[round % RING], op->args.send, bytes_sent(g, &op->args));
    op->round = round;
    atomic_store_explicit(&mine->posted, round + 1, memory_order_release);
    return true;
}

static void mark_moved(const ax_node_op *op, int c)
{
    const ax_node_group *g = op->group;
    atomic_store_explicit(&g->mailbox[g->rank]->channel[c].moved, op->round + 1, memory_order_release);
}

static const post *post_of(const ax_node_op *op, int c, int rank)
{
    return &op->group->mailbox[rank]->channel[c].post[op->round % RING];
}

static void describe(const post *p, char out[96])
{
    ax_coll_args args = {.coll = (ax_coll)p->coll,
                         .count = p->count,
                         .dtype = (ax_dtype)p->dtype,
                         .op = (ax_reduce_op)p->op,
                         .root = p->root};
    ax_coll_describe(&args, out, 96);
}

static ax_status check_agreement(const ax_node_op *op, int c)
{
    const ax_node_group *g = op->group;
    const post *a = post_of(op, c, 0);
    for (int r = 1; r < g->map.size; r++) {
        const post *b = post_of(op, c, r);
        if (a->coll == b->coll && a->count == b->count && a->dtype == b->dtype && a->op == b->op &&
            a->root == b->root)
            continue;
        char one[96], other[96];
        describe(b, one);
        describe(a, other);
        const int *rank_of = g->rank_of + g->map.node * g->map.size;
        return ax_fail(
            AX_ERR_COMM,
            "rank %d called %s where rank %d called %s: all ranks must make the same calls in the same order",
            rank_of[r], one, rank_of[0], other);
    }
    return AX_OK;
}

/* ---- buffers ------------------------------------------------------------------------------------- */

/* Returns true if all buffers that other ranks read are in heaps. Other ranks read the send buffers.
 * Exception: in an all-gather across nodes they read the receive buffers, into which the exchange between
 * nodes writes. */
static bool can_share(const ax_node_op *op)
{
    const ax_node_group *g = op->group;
    bool outside = g->map.nodes > 1 && op->args.coll == AX_ALL_GATHER;
    for (int r = 0; r < g->map.size; r++) {
        const post *p = post_of(op, FIRST, r);
        bool read = op->args.coll != AX_BROADCAST || r == op->args.root;
        if (read && (outside ? p->recv : p->send) < 0)
            return false;
    }
    return true;
}

/* part_send and part_recv return the buffers that this rank sends from and receives into: the caller's
 * buffers, or the staging buffer, where the part to receive follows the part to send. */
static const char *part_send(const ax_node_op *op) { return op->staged ? op->group->stage : op->args.send; }

static char *part_recv(const ax_node_op *op)
{
    const ax_node_group *g = op->group;
    if (!op->staged)
        return op->args.recv;
    int64_t sent = blocks_sent(g, &op->args) * op->n * (int64_t)ax_dtype_size(op->args.dtype);
    return g->stage + (ax_wire_in_place(op->args.coll) ? 0 : ax_round_up(sent, LINE));
}

static post own_post(const ax_node_op *op)
{
    const ax_node_group *g = op->group;
    const ax_coll_args *a = &op->args;
    size_t received = (size_t)blocks_received(g, a) * (size_t)a->count * ax_dtype_size(a->dtype);
    return (post){.count = a->count,
                  .send = ax_node_offset(g->node, part_send(op), op->staged ? 1 : bytes_sent(g, a)),
                  .recv = ax_node_offset(g->node, part_recv(op), op->staged ? 1 : received),
                  .coll = (int32_t)a->coll,
                  .dtype = (int32_t)a->dtype,
                  .op = (int32_t)a->op,
                  .root = a->root};
}

/* Sets g->send and g->recv to the addresses, in this process, of all ranks' buffers in this round. This
 * rank's own buffers are taken from op, because a buffer that no other rank accesses need not be in the
 * heap. */
static void find_buffers(const ax_node_op *op, int c)
{
    const ax_node_group *g = op->group;
    for (int r = 0; r < g->map.size; r++) {
        const post *p = post_of(op, c, r);
        g->send[r] = ax_node_at(g->node, g->member[r], p->send);
        g->recv[r] = ax_node_at(g->node, g->member[r], p->recv);
    }
    g->send[g->rank] = part_send(op);
    g->recv[g->rank] = part_recv(op);
}

static void find_boxes(const ax_node_op *op)
{
    const ax_node_group *g = op->group;
    for (int r = 0; r < g->map.size; r++)
        g->send[r] = g->mailbox[r]->box[op->round % RING];
    g->recv[g->rank] = op->args.recv;
}

static void copy_blocks(char *to, int64_t to_stride, const char *from, int64_t from_stride, int blocks,
                        size_t bytes)
{
    for (int b = 0; b < blocks && bytes; b++)
        memcpy(to + b * to_stride, from + b * from_stride, bytes);
}

static void pack(const ax_node_op *op)
{
    const ax_node_group *g = op->group;
    const ax_coll_args *a = &op->args;
    int64_t size = (int64_t)ax_dtype_size(a->dtype);
    if (a->coll != AX_BROADCAST || g->rank == a->root)
        copy_blocks(g->stage, op->n * size, (const char *)a->send + op->first * size, a->count * size,
                    blocks_sent(g, a), (size_t)(op->n * size));
}

static void unpack(const ax_node_op *op)
{
    const ax_node_group *g = op->group;
    const ax_coll_args *a = &op->args;
    int64_t size = (int64_t)ax_dtype_size(a->dtype);
    copy_blocks((char *)a->recv + op->first * size, a->count * size, part_recv(op), op->n * size,
                blocks_received(g, a), (size_t)(op->n * size));
}

static ax_node_part part_of(const ax_node_op *op)
{
    return op->staged ? (ax_node_part){0, op->n, op->n} : (ax_node_part){op->first, op->n, op->args.count};
}

/* ---- exchange between nodes ---------------------------------------------------------------------- */

/* Returns the arguments of this rank's exchange with its column: the ranks that have the same index on their
 * nodes, one rank per node. An all-reduce exchanges this rank's slice of the node's sum; other collectives
 * exchange blocks that are *stride elements apart, in g->columns or in this rank's receive buffer. */
static ax_coll_args exchange_args(const ax_node_op *op, int64_t *stride)
{
    const ax_node_group *g = op->group;
    ax_coll_args a = op->args;
    ax_node_part p = part_of(op);
    size_t size = ax_dtype_size(a.dtype);
    int64_t lo = 0, hi = p.n;
    if (a.coll == AX_ALL_REDUCE)
        ax_wire_slice(&a, p.n, g->map.size, g->rank, &lo, &hi);
    if (a.coll == AX_ALL_GATHER)
        lo = g->rank_of[g->rank] * p.stride;
    *stride = needs_columns(g, &a) ? p.n : g->step * p.stride;
    a.count = hi - (a.coll == AX_ALL_REDUCE ? lo : 0);
    a.recv = part_recv(op) + (size_t)(p.first + lo) * size;
    a.send = a.coll == AX_ALL_GATHER ? part_send(op) + (size_t)p.first * size : a.recv;
    if (needs_columns(g, &a) && a.coll == AX_ALL_GATHER)
        a.recv = g->columns;
    else if (needs_columns(g, &a))
        a.send = g->columns;
    return a;
}

/* Copies the gathered blocks from g->columns to this rank's receive buffer, which the other ranks read. */
static void copy_columns(const ax_node_op *op)
{
    const ax_node_group *g = op->group;
    ax_node_part p = part_of(op);
    size_t size = ax_dtype_size(op->args.dtype);
    char *recv = part_recv(op);
    for (int m = 0; m < g->map.nodes; m++)
        memcpy(recv + (size_t)(g->rank_of[m * g->map.size + g->rank] * p.stride + p.first) * size,
               g->columns + (size_t)(m * p.n) * size, (size_t)p.n * size);
}

/* ---- the state machine --------------------------------------------------------------------------- */

/* Runs when all ranks have posted their calls. Moves the data of operations that need one round only: those
 * on one node with small data or with buffers in shared memory. */
static ax_status first_round(ax_node_op *op)
{
    ax_node_group *g = op->group;
    AX_TRY(check_agreement(op, FIRST));
    bool small = is_small(g, &op->args);
    op->staged = !small && !can_share(op);
    bool now = g->map.nodes == 1 && !op->staged;
    if (now) {
        if (small)
            find_boxes(op);
        else
            find_buffers(op, FIRST);
        ax_node_part whole = {0, op->args.count, op->args.count};
        ax_node_do(g, &op->args, whole, small || op->args.coll != AX_ALL_REDUCE ? MOVE_WHOLE : MOVE_SHARED);
    }
    mark_moved(op, FIRST);
    op->chunk = ax_wire_part(&op->args, g->map.nodes, g->map.size, g->step); /* the same on all nodes */
    op->first = now ? op->args.count : 0;
    op->phase = now && !small ? LEAVE : TURN;
    return AX_OK;
}

static ax_status next_part(ax_node_op *op)
{
    ax_node_group *g = op->group;
    op->n = ax_min(op->chunk, op->args.count - op->first);
    if (op->n == 0) {
        g->ended++;
        op->phase = END;
        return AX_OK;
    }
    if (op->staged) {
        AX_TRY(need_stage(g));
        pack(op);
    }
    const size_t columns = (size_t)(g->map.nodes * op->n) * ax_dtype_size(op->args.dtype);
    if (needs_columns(g, &op->args) && columns > g->columns_bytes)
        AX_TRY(ax_node_group_reserve(g, columns));
    op->out = g->map.nodes > 1 && op->args.coll == AX_ALL_GATHER;
    op->phase = op->out ? START_EXCHANGE : PART_POST;
    return AX_OK;
}

/* Runs when all ranks have posted their calls for one part of the buffers: moves the data of this part. */
static ax_status part_round(ax_node_op *op)
{
    ax_node_group *g = op->group;
    AX_TRY(check_agreement(op, MORE));
    find_buffers(op, MORE);
    ax_node_move alone = op->args.coll == AX_ALL_REDUCE ? MOVE_SHARED : MOVE_WHOLE;
    ax_node_do(g, &op->args, part_of(op), op->out ? MOVE_OUT : g->map.nodes > 1 ? MOVE_IN : alone);
    mark_moved(op, MORE);
    op->phase = g->map.nodes > 1 && !op->out ? START_EXCHANGE : PART_LEAVE;
    return AX_OK;
}

static ax_status finish_exchange(ax_node_op *op)
{
    if (op->args.coll == AX_ALL_GATHER && needs_columns(op->group, &op->args))
        copy_columns(op);
    op->out = true;
    op->phase = op->args.coll == AX_REDUCE_SCATTER ? PART_LEAVE : PART_POST;
    return AX_OK;
}

static void leave_part(ax_node_op *op)
{
    if (op->staged)
        unpack(op);
    op->first += op->n;
    op->phase = PART;
}

static ax_status test_exchange(ax_node_op *op, bool *go)
{
    const ax_node_outer *outer = op->group->outer;
    *go = true;
    if (op->exchanged)
        AX_TRY(outer->test(outer->user, go));
    return *go ? finish_exchange(op) : AX_OK;
}

static ax_status start_exchange(ax_node_op *op)
{
    const ax_node_outer *outer = op->group->outer;
    int64_t stride;
    ax_coll_args args = exchange_args(op, &stride);
    op->exchanged = args.count > 0; /* the same on all nodes */
    op->phase = TEST_EXCHANGE;
    return op->exchanged ? outer->start(outer->user, &args, stride) : AX_OK;
}

/* Runs the current phase of the operation; *go is set to false if the phase has to wait, or if the operation
 * is complete. */
static ax_status run_phase(ax_node_op *op, bool *go)
{
    ax_node_group *g = op->group;
    post p;
    *go = true;
    switch ((phase)op->phase) {
    case POST:
    case PART_POST:
        p = own_post(op);
        *go = may_post(op) && try_post(op, op->phase == POST ? FIRST : MORE, &p);
        g->entered += *go && op->phase == POST;
        op->phase += *go;
        return AX_OK;
    case MEET:
        *go = may_move(op, FIRST);
        return *go ? first_round(op) : AX_OK;
    case LEAVE:
        *go = all_moved(g, FIRST, op->round + 1);
        op->phase = *go ? TURN : LEAVE;
        return AX_OK;
    case TURN:
        *go = g->ended == op->turn;
        op->phase = *go ? PART : TURN;
        return AX_OK;
    case PART:
        return next_part(op);
    case PART_MEET:
        *go = may_move(op, MORE);
        return *go ? part_round(op) : AX_OK;
    case START_EXCHANGE:
        return start_exchange(op);
    case TEST_EXCHANGE:
        return test_exchange(op, go);
    case PART_LEAVE:
        *go = all_moved(g, MORE, op->round + 1);
        if (*go)
            leave_part(op);
        return AX_OK;
    case END:
        *go = false;
    }
    return AX_OK;
}

void ax_node_start(ax_node_group *group, const ax_coll_args *args, ax_node_op *op)
{
    *op = (ax_node_op){.group = group, .args = *args, .phase = POST, .turn = group->started++};
}

ax_status ax_node_test(ax_node_op *op, bool *done)
{
    for (bool go = true; go;)
        AX_TRY(run_phase(op, &go));
    *done = op->phase == END;
    return AX_OK;
}
