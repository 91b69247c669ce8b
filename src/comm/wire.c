/* What collectives over MPI send to other nodes, and the buffers that they need: the algorithms of mpi_flat.c
 * and node_group.c, without their messages. */
#include "comm/wire.h"

#include <stdlib.h>
#include <string.h>

enum {
    REDUCE_BYTES = 1 << 20,        /* a piece of a reduction among g ranks has at most max(REDUCE_BYTES, g ·
                                      REDUCE_BLOCK_BYTES) bytes, a piece of a broadcast REDUCE_BYTES */
    REDUCE_BLOCK_BYTES = 32 << 10, /* so in the largest pieces of a reduction each rank's slice has at least
                                      this many bytes, up to rounding */
    MOVE_BYTES = 4 << 20,          /* largest message, in bytes, of an all-gather or all-to-all */
    OUTSIDE = 64 << 10,            /* on several nodes: a collective that sends fewer bytes is faster by
                                      messages alone */
    PART_INSIDE = 1 << 20,         /* smallest part on one node, used for buffers outside shared memory */
    PART_OUTSIDE = 16 << 20,       /* smallest part on several nodes, used for all buffers */
    COLUMNS = 4 << 20              /* most bytes of the buffer for the exchange between nodes */
};

ax_status ax_wire_alloc(size_t bytes, char **out)
{
    enum { PAGE = 4096 };
    AX_TRY(ax_calloc(bytes, 1, out));
    for (size_t i = 0; i < bytes; i += PAGE)
        ((volatile char *)*out)[i] = 0;
    return AX_OK;
}

/* ---- sizes --------------------------------------------------------------------------------------- */

static int64_t element(const ax_coll_args *a) { return (int64_t)ax_dtype_size(a->dtype); }

bool ax_wire_is_small(const ax_coll_args *args, int size)
{
    const bool rounds = args->coll == AX_ALL_REDUCE || args->coll == AX_ALL_GATHER;
    return rounds && args->count * size <= WIRE_SMALL / element(args);
}

int64_t ax_wire_cut(const ax_coll_args *args, int size)
{
    const int64_t move = MOVE_BYTES / element(args),
                  sum = ax_max(REDUCE_BYTES, size * (int64_t)REDUCE_BLOCK_BYTES) / element(args);
    switch (args->coll) {
    case AX_ALL_REDUCE:
        return sum;
    case AX_REDUCE_SCATTER:
        return sum / size;
    case AX_ALL_GATHER:
    case AX_ALL_TO_ALL:
        return move;
    case AX_BROADCAST:
        return REDUCE_BYTES / element(args);
    case AX_BARRIER:
        break;
    }
    return 1;
}

/* The contributions of all ranks to what one of them adds, or the blocks of all ranks of a small gather. */
size_t ax_wire_scratch(const ax_coll_args *args, int size, int64_t count)
{
    int64_t each = 0; /* of one rank, in elements */
    if (args->coll == AX_REDUCE_SCATTER || ax_wire_is_small(args, size))
        each = count;
    else if (args->coll == AX_ALL_REDUCE)
        each = ax_ceil_div(count, size);
    return (size_t)(size * each * element(args));
}

bool ax_wire_in_place(ax_coll coll) { return coll == AX_ALL_REDUCE || coll == AX_BROADCAST; }

int ax_wire_blocks_sent(ax_coll coll, int size)
{
    return coll == AX_REDUCE_SCATTER || coll == AX_ALL_TO_ALL ? size : 1;
}

int ax_wire_blocks_received(ax_coll coll, int size)
{
    return coll == AX_ALL_GATHER || coll == AX_ALL_TO_ALL ? size : 1;
}

bool ax_wire_in_nodes(const ax_node_map *map, const ax_coll_args *args)
{
    const bool gains =
        args->coll == AX_ALL_REDUCE || args->coll == AX_REDUCE_SCATTER || args->coll == AX_ALL_GATHER;
    const int64_t blocks = ax_wire_blocks_sent(args->coll, map->nodes * map->size);
    return map->nodes == 1 || (gains && blocks * args->count * element(args) >= OUTSIDE);
}

/* One part has room at least for one 8-byte element per rank to send, and one to receive. */
int64_t ax_wire_part_bytes(int nodes, int size)
{
    return ax_max(nodes > 1 ? PART_OUTSIDE : PART_INSIDE, 16 * ((int64_t)nodes * size + 1));
}

bool ax_wire_has_columns(const ax_coll_args *args, int nodes, int step)
{
    return nodes > 1 && (args->coll == AX_REDUCE_SCATTER || (args->coll == AX_ALL_GATHER && !step));
}

int64_t ax_wire_part(const ax_coll_args *args, int nodes, int size, int step)
{
    const ax_coll c = args->coll;
    const int received = ax_wire_in_place(c) ? 0 : ax_wire_blocks_received(c, nodes * size),
              blocks = ax_wire_blocks_sent(c, nodes * size) + received;
    int64_t most = ax_wire_part_bytes(nodes, size) / (blocks * element(args));
    if (ax_wire_has_columns(args, nodes, step))
        most = ax_min(most, COLUMNS / (nodes * element(args)));
    return ax_min(args->count, most);
}

void ax_wire_slice(const ax_coll_args *args, int64_t count, int size, int i, int64_t *lo, int64_t *hi)
{
    const int64_t line = WIRE_LINE / element(args), lines = ax_ceil_div(count, line);
    *lo = ax_min(count, lines * i / size * line);
    *hi = ax_min(count, lines * (i + 1) / size * line);
}

int ax_wire_step(int nodes, int size, const int *rank_of)
{
    const int step = nodes > 1 ? rank_of[size] - rank_of[0] : 0;
    for (int i = size; i < nodes * size; i++)
        if (rank_of[i] - rank_of[i - size] != step)
            return 0;
    return step > 0 ? step : 0;
}

/* ---- places -------------------------------------------------------------------------------------- */

/* Sets the map, for nodes of `here` ranks each, which are in the order of their lowest ranks. `entered`, for
 * each node, is overwritten: 1 + where its next rank is entered; 0: none was. */
static ax_status make_map(ax_wire_place *out, int here, int *entered)
{
    ax_node_map *map = &out->map;
    AX_TRY(ax_calloc((size_t)out->size, sizeof *out->rank_of, &out->rank_of));
    for (int r = 0; r < out->size; r++)
        entered[out->node[r]] = 0;
    *map = (ax_node_map){.size = here, .rank_of = out->rank_of};
    for (int r = 0; r < out->size; r++) {
        int *next = &entered[out->node[r]];
        if (!*next)
            *next = 1 + map->nodes++ * here;
        if (r == out->rank) {
            map->node = (*next - 1) / here;
            out->at = (*next - 1) % here;
        }
        out->rank_of[(*next)++ - 1] = r;
    }
    out->step = ax_wire_step(map->nodes, here, out->rank_of);
    return AX_OK;
}

ax_status ax_wire_find(int size, int rank, const int *node, bool shared, ax_wire_place *out)
{
    int *count, numbers = 0;
    for (int r = 0; r < size; r++)
        numbers = ax_max(numbers, node[r] + 1);
    AX_TRY(ax_calloc((size_t)numbers, sizeof *count, &count));
    for (int r = 0; r < size; r++)
        count[node[r]]++;
    const int here = count[node[rank]];
    bool even = shared && here > 1;
    for (int r = 0; r < size; r++)
        even &= count[node[r]] == here;
    *out = (ax_wire_place){.size = size, .rank = rank, .away = size - here, .node = node};
    ax_status status = even ? make_map(out, here, count) : AX_OK;
    free(count);
    return status;
}

void ax_wire_place_fini(ax_wire_place *place)
{
    free(place->rank_of);
    *place = (ax_wire_place){.size = 0};
}

/* ---- what is sent -------------------------------------------------------------------------------- */

/* The ranks of a gather in rounds of 1, 2, 4, … blocks to which this rank sends on other nodes. */
static int64_t rounds(const ax_wire_place *p, int64_t bytes)
{
    int64_t sent = 0;
    for (int distance = 1; distance < p->size; distance *= 2) {
        const int to = (p->rank - distance + p->size) % p->size;
        if (p->node[to] != p->node[p->rank])
            sent += ax_min(distance, p->size - distance) * bytes;
    }
    return sent;
}

/* A broadcast goes along a binomial tree, in which ranks are counted from the root. */
static int64_t tree(const ax_wire_place *p, int root, int64_t bytes)
{
    const int me = (p->rank - root + p->size) % p->size;
    int64_t sent = 0;
    int low = 1;
    while (low < p->size && !(me & low))
        low *= 2;
    for (int child = low / 2; child; child /= 2)
        if (me + child < p->size)
            sent += p->node[(me + child + root) % p->size] != p->node[p->rank] ? bytes : 0;
    return sent;
}

/* By messages alone. */
static int64_t flat(const ax_wire_place *p, const ax_coll_args *a)
{
    const int64_t bytes = a->count * element(a);
    const bool small = ax_wire_is_small(a, p->size);
    switch (a->coll) {
    case AX_ALL_REDUCE:
        return small ? rounds(p, bytes) : 2 * bytes * p->away / p->size;
    case AX_ALL_GATHER:
        return small ? rounds(p, bytes) : bytes * p->away;
    case AX_REDUCE_SCATTER:
    case AX_ALL_TO_ALL:
        return bytes * p->away;
    case AX_BROADCAST:
        return tree(p, a->root, bytes);
    case AX_BARRIER:
        break;
    }
    return 0;
}

static bool runs_in_nodes(const ax_wire_place *place, const ax_coll_args *args)
{
    return place->map.size && ax_wire_in_nodes(&place->map, args);
}

/* Large reductions and gathers that run within the nodes go on among the ranks that have the same place on
 * their nodes: an all-reduce with a slice of the sum. */
int64_t ax_wire_bytes(const ax_wire_place *place, const ax_coll_args *args)
{
    const int64_t bytes = args->count * element(args);
    if (!runs_in_nodes(place, args))
        return flat(place, args);
    const int nodes = place->map.nodes;
    if (args->coll != AX_ALL_REDUCE)
        return bytes * (nodes - 1);
    const int64_t slice = bytes / place->map.size;
    return slice * nodes <= WIRE_SMALL ? slice * (nodes - 1) : 2 * slice * (nodes - 1) / nodes;
}

/* ---- what is needed ------------------------------------------------------------------------------ */

/* The scratch of a collective of `args->count` elements by messages alone among `size` ranks. */
static ax_wire_need need_of_pieces(const ax_coll_args *args, int size)
{
    const int64_t cut = ax_wire_cut(args, size), n = args->count / cut, rest = args->count % cut;
    ax_wire_need need = {.bytes = ax_wire_scratch(args, size, cut),
                         .last = ax_wire_scratch(args, size, rest ? rest : cut)};
    need.pieces = need.last ? n + (rest > 0) : 0; /* the first piece needs scratch if the last does */
    return need;
}

static size_t scratch_of(const ax_wire_need *need)
{
    return need->pieces ? (size_t)(need->pieces - 1) * need->bytes + need->last : 0;
}

/* The exchange among nodes of `n` elements of a part: of this rank's blocks, or of the slice of the rank of
 * its node that needs the most, so that all ranks have the same buffers. */
static ax_wire_need need_of_exchange(const ax_wire_place *place, const ax_coll_args *args, int64_t n)
{
    ax_coll_args exchange = *args;
    ax_wire_need most = {0};
    const int size = place->map.size, slices = args->coll == AX_ALL_REDUCE ? size : 1;
    for (int at = 0; at < slices; at++) {
        int64_t lo = 0, hi = n;
        if (slices > 1)
            ax_wire_slice(args, n, size, at, &lo, &hi);
        exchange.count = hi - lo;
        const ax_wire_need need =
            exchange.count ? need_of_pieces(&exchange, place->map.nodes) : (ax_wire_need){0};
        if (scratch_of(&need) > scratch_of(&most))
            most = need;
    }
    return most;
}

/* Of the parts of an operation all but the last are alike. The last of a gather may be small, and then needs
 * scratch that the others do not. */
ax_wire_need ax_wire_need_of(const ax_wire_place *place, const ax_coll_args *args)
{
    const int nodes = place->map.nodes;
    if (!args->count || nodes == 1)
        return (ax_wire_need){0};
    if (!runs_in_nodes(place, args))
        return need_of_pieces(args, place->size);
    const int64_t part = ax_wire_part(args, nodes, place->map.size, place->step), rest = args->count % part;
    ax_wire_need need = need_of_exchange(place, args, part);
    if (!need.pieces && rest)
        need = need_of_exchange(place, args, rest);
    need.alone = true;
    if (ax_wire_has_columns(args, nodes, place->step))
        need.columns = (size_t)(nodes * part * element(args));
    return need;
}

static void enter(size_t bytes, size_t scratch[AX_COMM_PIECES])
{
    int i = 0;
    while (i < AX_COMM_PIECES && scratch[i] >= bytes)
        i++;
    if (i == AX_COMM_PIECES)
        return;
    memmove(&scratch[i + 1], &scratch[i], (size_t)(AX_COMM_PIECES - 1 - i) * sizeof *scratch);
    scratch[i] = bytes;
}

void ax_wire_enter(const ax_wire_need *need, size_t scratch[AX_COMM_PIECES])
{
    for (int64_t i = 1; i < ax_min(need->pieces, AX_COMM_PIECES + 1); i++)
        enter(need->bytes, scratch);
    if (need->pieces)
        enter(need->last, scratch);
}

void ax_wire_raise(ax_comm_buffers *most, const ax_comm_buffers *other)
{
    for (int i = 0; i < AX_COMM_PIECES; i++) {
        most->piece[i] = ax_max(most->piece[i], other->piece[i]);
        most->exchange[i] = ax_max(most->exchange[i], other->exchange[i]);
    }
    most->columns = ax_max(most->columns, other->columns);
}
