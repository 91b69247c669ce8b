/* Collectives by point-to-point messages between all ranks of a group, on one node or on several.
 *
 * An operation is cut into pieces. Each piece makes progress by itself: it posts a few messages and, when
 * these are complete, the next few. Several pieces are in flight together, so that the messages of one piece
 * travel while another piece is reduced. A piece exchanges data with the ranks rank + 1, rank + 2, … in this
 * order, PARTNERS at a time. So different ranks send to different receivers, and in such an exchange a rank
 * sends no more bytes than with ring algorithms. A small gather or all-reduce among g ranks takes only log2 g
 * rounds, rounded up, each of which at most doubles the data that a rank has (Bruck et al., 1997). A
 * broadcast runs along a binomial tree.
 *
 * In a reduction each rank receives all ranks' contributions to one slice of the result (to all of a small
 * result) and adds them, or takes their maximum, in rank order. The result has the same bits as with backend
 * threads, which MPI's own reductions do not guarantee (docs/decisions/0006). What they send is received in
 * scratch buffers, which a communicator has had since its set-up (ax_mpi_flat_reserve), or which pieces take
 * as they need them; wire.h says how much that is. A piece whose scratch is in use starts later, and all
 * after it.
 *
 * Read mpi.h first. Everything here runs on the communication thread. */
#include "comm/mpi.h"
#include "comm/reduce.h"
#include "comm/wire.h"

#include <stdlib.h>
#include <string.h>

enum {
    PIECES = AX_COMM_PIECES, /* largest number of pieces in flight */
    PARTNERS = 8,            /* number of ranks with which a piece exchanges data at a time */
    PHASES = 4,              /* number of different phases of messages (first_phase) */
    TAGS = 4096 /* number of different tag numbers of pieces (parts of operations); after TAGS pieces they
                   repeat */
};
_Static_assert(TAGS *PHASES <= AX_MPI_MESSAGE_TAG, "tags of collectives must be below those of messages");

/* A scratch buffer, for one piece at a time. */
typedef struct scratch {
    char *data;
    size_t bytes;
    bool busy;
} scratch;

typedef struct piece {
    ax_mpi_op *op; /* NULL: this struct is free */
    int tag, step, phase;
    int64_t first, count; /* the piece is elements [first, first + count) of each rank's block; in an
                             all-reduce or a broadcast, of the whole buffer */
    int requests;
    MPI_Request request[2 * PARTNERS];
    scratch *from; /* the piece's scratch buffer; NULL: it needs none */
    char *scratch; /* the memory of this buffer */
} piece;

struct ax_mpi_flat_state {
    const void **src; /* source pointers of a reduction, one per rank */
    piece piece[PIECES];
    scratch scratch[PIECES];
    char nothing; /* where pieces without scratch send and receive 0 bytes */
};

ax_status ax_mpi_flat_create(int size, ax_mpi_flat_state **out)
{
    AX_TRY(ax_calloc(1, sizeof **out, out));
    return ax_calloc((size_t)size, sizeof *(*out)->src, &(*out)->src);
}

void ax_mpi_flat_destroy(ax_mpi_flat_state **flat)
{
    ax_mpi_flat_state *f = *flat;
    if (!f)
        return;
    for (int i = 0; i < PIECES; i++)
        free(f->scratch[i].data);
    free(f->src);
    free(f);
    *flat = NULL;
}

/* ---- scratch ------------------------------------------------------------------------------------- */

/* Makes a buffer that is not busy `bytes` bytes large. */
static ax_status resize(scratch *s, size_t bytes)
{
    if (bytes == s->bytes)
        return AX_OK;
    free(s->data);
    *s = (scratch){.data = NULL};
    if (bytes)
        AX_TRY(ax_wire_alloc(bytes, &s->data));
    s->bytes = bytes;
    return AX_OK;
}

ax_status ax_mpi_flat_reserve(ax_mpi_comm *c, const size_t bytes[AX_COMM_PIECES])
{
    c->reserved = true;
    for (int i = 0; i < PIECES; i++) {
        AX_ASSERT(!c->flat->scratch[i].busy);
        AX_TRY(resize(&c->flat->scratch[i], bytes[i]));
    }
    return AX_OK;
}

/* Enters the sizes of all buffers, from large to small. */
void ax_mpi_flat_reserved(const ax_mpi_comm *c, size_t bytes[AX_COMM_PIECES])
{
    for (int i = 0; i < PIECES; i++)
        ax_wire_enter(&(ax_wire_need){.pieces = 1, .last = c->flat->scratch[i].bytes}, bytes);
}

/* Sets *out to a buffer of at least `bytes` bytes that is not busy: the smallest one. If there is none, the
 * largest is enlarged, unless buffers are reserved and a busy one is large enough: then *out is NULL, and the
 * piece waits. */
static ax_status find_scratch(ax_mpi_comm *c, size_t bytes, scratch **out)
{
    scratch *fits = NULL, *largest = NULL;
    bool waits = false;
    for (scratch *s = c->flat->scratch; s < c->flat->scratch + PIECES; s++) {
        waits |= c->reserved && s->busy && s->bytes >= bytes;
        if (s->busy)
            continue;
        if (s->bytes >= bytes && (!fits || s->bytes < fits->bytes))
            fits = s;
        if (!largest || s->bytes > largest->bytes)
            largest = s;
    }
    *out = fits ? fits : waits ? NULL : largest;
    return *out && !fits ? resize(*out, bytes) : AX_OK;
}

/* ---- messages ------------------------------------------------------------------------------------ */

/* Converts a rank of c to a rank of its MPI communicator c->mpi. The two ranks differ only in the temporary
 * communicator that mpi_group makes (mpi.c), which uses the world's MPI communicator. */
static int peer_of(const ax_mpi_comm *c, int rank)
{
    return c->mpi == c->world->comm->mpi ? c->world_rank[rank] : rank;
}

static ax_status post_recv(piece *p, void *to, int64_t bytes, int from)
{
    ax_mpi_comm *c = p->op->c;
    return ax_mpi_check(MPI_Irecv(to, (int)bytes, MPI_BYTE, peer_of(c, from), p->tag + p->phase, c->mpi,
                                  &p->request[p->requests++]),
                        "MPI_Irecv");
}

static ax_status post_send(piece *p, const void *from, int64_t bytes, int to)
{
    ax_mpi_comm *c = p->op->c;
    if (!ax_mpi_same_node(c, to))
        p->op->wire += bytes;
    return ax_mpi_check(MPI_Isend(from, (int)bytes, MPI_BYTE, peer_of(c, to), p->tag + p->phase, c->mpi,
                                  &p->request[p->requests++]),
                        "MPI_Isend");
}

/* ---- one block for each rank --------------------------------------------------------------------- */

/* The blocks that a piece sends to all ranks or receives from them. Rank r's block is at base + r·stride and
 * has `bytes` bytes. If `whole` is not 0, the blocks are instead slices of an array of `whole` elements at
 * base, one slice for each rank, of equal size up to rounding; an element has `element` bytes. */
typedef struct blocks {
    char *base;
    int64_t stride, bytes;
    int64_t whole;
    int64_t element;
} blocks;

static int64_t slice_begin(const blocks *b, int rank, int size)
{
    return b->whole * rank / size * b->element;
}

static char *block_at(const blocks *b, int rank, int size)
{
    return b->base + (b->whole ? slice_begin(b, rank, size) : rank * b->stride);
}

static int64_t block_bytes(const blocks *b, int rank, int size)
{
    return b->whole ? slice_begin(b, rank + 1, size) - slice_begin(b, rank, size) : b->bytes;
}

/* Posts sends of blocks of `out` to the next PARTNERS ranks with which the piece exchanges data, and
 * receives of blocks of `in`. If the piece has already done so with all ranks, posts nothing and sets *met
 * to true. */
static ax_status post_exchange(piece *p, blocks out, blocks in, bool *met)
{
    int g = p->op->c->comm.size, me = p->op->c->comm.rank;
    int until = (int)ax_min(g, p->step + PARTNERS);
    *met = p->step >= g;
    for (int i = p->step; i < until; i++) {
        int to = (me + i) % g, from = (me - i + g) % g;
        int64_t sent = block_bytes(&out, to, g), got = block_bytes(&in, from, g);
        if (got)
            AX_TRY(post_recv(p, block_at(&in, from, g), got, from));
        if (sent)
            AX_TRY(post_send(p, block_at(&out, to, g), sent, to));
    }
    p->step = until;
    return AX_OK;
}

static void copy(void *to, const void *from, int64_t bytes)
{
    if (to != from && bytes)
        memcpy(to, from, (size_t)bytes);
}

/* Sets to[i] to src[0][i] op src[1][i] op …; `to` may be one of the sources. */
static void reduce(const ax_coll_args *a, int g, const void *const *src, int64_t count, void *to)
{
    if (count)
        ax_reduce_for(a->dtype, a->op)(g, src, 1, &to, count);
}

/* ---- the algorithms: each posts the next messages once all posted ones are complete --------------- */

typedef ax_status advance_fn(piece *p, bool *done);

/* Posts the messages of the next round of a Bruck all-gather. In successive rounds this rank (`me`) exchanges
 * blocks with the ranks at distance 1, 2, 4, … from it. If all rounds are complete, sets *known to true;
 * block i of the scratch buffer is then the block of rank me + i (mod g). */
static ax_status bruck_round(piece *p, int64_t bytes, bool *known)
{
    int g = p->op->c->comm.size, me = p->op->c->comm.rank;
    int distance = p->step, n = (int)ax_min(distance, g - distance);
    *known = distance >= g;
    if (*known)
        return AX_OK;
    p->step *= 2;
    AX_TRY(post_recv(p, p->scratch + distance * bytes, n * bytes, (me + distance) % g));
    return post_send(p, p->scratch, n * bytes, (me - distance + g) % g);
}

/* Returns the distance in bytes between successive ranks' blocks in the buffer that a gather writes. */
static int64_t gather_stride(const ax_mpi_op *op)
{
    return (op->stride ? op->stride : op->args.count) * (int64_t)ax_dtype_size(op->args.dtype);
}

static ax_status small_gather(piece *p, bool *done)
{
    const ax_coll_args *a = &p->op->args;
    int g = p->op->c->comm.size, me = p->op->c->comm.rank;
    int64_t bytes = a->coll == AX_BARRIER ? 0 : p->count * (int64_t)ax_dtype_size(a->dtype);
    if (p->step == 1)
        copy(p->scratch, a->send, bytes);
    AX_TRY(bruck_round(p, bytes, done));
    if (!*done || !bytes)
        return AX_OK;
    const void **src = p->op->c->flat->src;
    for (int r = 0; r < g; r++)
        src[r] = p->scratch + (r - me + g) % g * bytes;
    if (a->coll == AX_ALL_REDUCE)
        reduce(a, g, src, p->count, a->recv);
    else
        for (int r = 0; r < g; r++)
            copy((char *)a->recv + r * gather_stride(p->op), src[r], bytes);
    return AX_OK;
}

static ax_status pairwise_move(piece *p, bool *done)
{
    const ax_coll_args *a = &p->op->args;
    int me = p->op->c->comm.rank;
    int64_t element = (int64_t)ax_dtype_size(a->dtype), at = p->first * element;
    bool gathers = a->coll == AX_ALL_GATHER;
    blocks out = {.base = (char *)(uintptr_t)a->send + at,
                  .stride = gathers ? 0 : a->count * element,
                  .bytes = p->count * element};
    blocks in = {.base = (char *)a->recv + at,
                 .stride = gathers ? gather_stride(p->op) : a->count * element,
                 .bytes = p->count * element};
    if (p->step == 1)
        copy(in.base + me * in.stride, out.base + me * out.stride, in.bytes);
    return post_exchange(p, out, in, done);
}

/* Returns the sources of the reduction of this rank's block, in rank order: the other ranks' contributions,
 * of `bytes` bytes each, are in the scratch buffer, this rank's is at `own`. */
static const void *const *parts(piece *p, int64_t bytes, const char *own)
{
    const void **src = p->op->c->flat->src;
    for (int r = 0; r < p->op->c->comm.size; r++)
        src[r] = r == p->op->c->comm.rank ? own : p->scratch + r * bytes;
    return src;
}

static ax_status pairwise_scatter(piece *p, bool *done)
{
    const ax_coll_args *a = &p->op->args;
    int g = p->op->c->comm.size, me = p->op->c->comm.rank;
    int64_t element = (int64_t)ax_dtype_size(a->dtype), bytes = p->count * element;
    blocks out = {.base = (char *)(uintptr_t)a->send + p->first * element,
                  .stride = a->count * element,
                  .bytes = bytes};
    AX_TRY(post_exchange(p, out, (blocks){.base = p->scratch, .stride = bytes, .bytes = bytes}, done));
    if (*done)
        reduce(a, g, parts(p, bytes, out.base + me * out.stride), p->count,
               (char *)a->recv + p->first * element);
    return AX_OK;
}

/* Runs an all-reduce of a piece as reduce-scatter plus all-gather: rank r reduces slice r (phase 0); then all
 * ranks gather the reduced slices (phase 1). */
static ax_status pairwise_all_reduce(piece *p, bool *done)
{
    const ax_coll_args *a = &p->op->args;
    int g = p->op->c->comm.size, me = p->op->c->comm.rank;
    int64_t element = (int64_t)ax_dtype_size(a->dtype);
    blocks whole = {.base = (char *)a->recv + p->first * element, .whole = p->count, .element = element};
    char *own = block_at(&whole, me, g);
    int64_t bytes = block_bytes(&whole, me, g);
    bool met = false;
    if (p->phase == 0) {
        AX_TRY(post_exchange(p, whole, (blocks){.base = p->scratch, .stride = bytes, .bytes = bytes}, &met));
        if (!met)
            return AX_OK;
        reduce(a, g, parts(p, bytes, own), bytes / element, own);
        p->phase = 1;
        p->step = 1;
    }
    return post_exchange(p, (blocks){.base = own, .bytes = bytes}, whole, done);
}

/* Broadcasts along a binomial tree. Ranks are counted from the root: me = rank − root (mod g). Rank `me` > 0
 * receives from the rank whose number is `me` with the lowest 1 bit cleared. */
static ax_status tree(piece *p, bool *done)
{
    const ax_coll_args *a = &p->op->args;
    int g = p->op->c->comm.size, me = (p->op->c->comm.rank - a->root + g) % g;
    int64_t element = (int64_t)ax_dtype_size(a->dtype), bytes = p->count * element;
    char *data = (char *)a->recv + p->first * element;
    int low = 1;
    while (low < g && !(me & low))
        low *= 2;
    if (p->step == 1 && me) {
        p->step = 2;
        return post_recv(p, data, bytes, (me - low + a->root) % g);
    }
    *done = p->step == 3;
    p->step = 3;
    for (int child = low / 2; child && !*done; child /= 2)
        if (me + child < g)
            AX_TRY(post_send(p, data, bytes, (me + child + a->root) % g));
    return AX_OK;
}

/* ---- choice of algorithm and size of pieces ------------------------------------------------------ */

static advance_fn *algorithm_of(const ax_mpi_op *op)
{
    static advance_fn *const large[] = {[AX_ALL_REDUCE] = pairwise_all_reduce,
                                        [AX_ALL_GATHER] = pairwise_move,
                                        [AX_REDUCE_SCATTER] = pairwise_scatter,
                                        [AX_ALL_TO_ALL] = pairwise_move,
                                        [AX_BROADCAST] = tree,
                                        [AX_BARRIER] = small_gather};
    return ax_wire_is_small(&op->args, op->c->comm.size) ? small_gather : large[op->args.coll];
}

/* The phase with which each kind of operation begins. The MPI tag of a message is piece->tag (a multiple of
 * PHASES) plus the phase, so messages of different phases never match. Only a large all-reduce has a second
 * phase. The barrier of AX_MPI_GROUP (creation of a communicator) uses the world's MPI communicator, and has
 * a phase of its own, so that its messages do not match messages of the world's other operations. */
static const int first_phase[] = {
    [AX_MPI_COLLECTIVE] = 0, [AX_MPI_SPLIT] = 2, [AX_MPI_DESTROY] = 2, [AX_MPI_GROUP] = 3};

/* Starts the operation's next piece in p, a struct that is free, unless the piece has to wait for scratch. */
static ax_status start_piece(piece *p, ax_mpi_op *op)
{
    const int g = op->c->comm.size;
    const int64_t index = op->pieces - op->unstarted, cut = ax_wire_cut(&op->args, g), first = index * cut,
                  count = ax_min(cut, op->args.count - first);
    const size_t bytes = ax_wire_scratch(&op->args, g, count);
    scratch *from = NULL;
    if (bytes)
        AX_TRY(find_scratch(op->c, bytes, &from));
    if (bytes && !from)
        return AX_OK;
    *p = (piece){.op = op,
                 .tag = (int)((op->tag + index) % TAGS) * PHASES,
                 .step = 1,
                 .phase = first_phase[op->kind],
                 .first = first,
                 .count = count,
                 .from = from,
                 .scratch = from ? from->data : &op->c->flat->nothing};
    if (from)
        from->busy = true;
    op->unstarted--;
    op->open++;
    return AX_OK;
}

/* Cuts the operation into pieces, which have messages of their own, and assigns a tag number to each piece.
 * All ranks cut an operation into the same pieces, and assign tag numbers in the order of operations. So
 * sender and receiver use the same tag. */
static ax_status flat_start(ax_mpi_op *op)
{
    const int64_t cut = ax_wire_cut(&op->args, op->c->comm.size);
    op->pieces = op->args.coll == AX_BARRIER ? 1 : ax_ceil_div(op->args.count, cut);
    op->unstarted = op->pieces;
    op->tag = op->c->tags;
    op->c->tags = (int)((op->c->tags + op->pieces) % TAGS);
    return AX_OK;
}

/* Sets *came to true if all posted messages of the piece are complete, otherwise to false. */
static ax_status test_messages(piece *p, int *came)
{
    MPI_Status status[2 * PARTNERS];
    int code = MPI_Testall(p->requests, p->request, came, status);
    for (int i = 0; i < p->requests && code == MPI_ERR_IN_STATUS; i++)
        if (status[i].MPI_ERROR != MPI_SUCCESS && status[i].MPI_ERROR != MPI_ERR_PENDING)
            code = status[i].MPI_ERROR;
    if (code == MPI_SUCCESS)
        return AX_OK;
    char what[128];
    ax_mpi_call call = ax_mpi_call_of(p->op);
    ax_mpi_call_describe(&call, what, sizeof what);
    ax_status failed = ax_mpi_check(code, "MPI_Testall");
    ax_error_context(
        "%s, call %lld in a group of %d ranks (do all its ranks call it? a Debug build checks this)", what,
        (long long)call.seq, call.size);
    return failed;
}

/* Makes progress on a piece until the piece has to wait for messages. */
static ax_status progress_piece(piece *p, advance_fn *advance)
{
    int came = 1;
    bool done = false;
    while (came && !done) {
        if (p->requests)
            AX_TRY(test_messages(p, &came));
        if (!came)
            break;
        p->requests = 0;
        p->op->c->world->progress++;
        AX_TRY(advance(p, &done));
        done = done && !p->requests;
    }
    if (done) {
        p->op->open--;
        p->op = NULL;
        if (p->from)
            p->from->busy = false;
    }
    return AX_OK;
}

static ax_status flat_test(ax_mpi_op *op, bool *done)
{
    ax_mpi_flat_state *flat = op->c->flat;
    for (int i = 0; i < PIECES; i++) {
        piece *p = &flat->piece[i];
        if (!p->op && op->unstarted)
            AX_TRY(start_piece(p, op));
        if (p->op == op)
            AX_TRY(progress_piece(p, algorithm_of(op)));
    }
    *done = !op->unstarted && !op->open;
    return AX_OK;
}

const ax_mpi_path ax_mpi_flat = {.name = "flat", .start = flat_start, .test = flat_test};
