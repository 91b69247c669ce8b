/* Parameters that two pipeline stages have: the token embedding table, if the output head uses it too. The
 * last stage sends its gradient to the first stage. The first stage adds the two gradients, updates the
 * weights, and sends the weights to the last stage in the dtype that kernels read. Gradient and weights are
 * sent in pieces of PIECE elements, with at most WINDOW pieces in flight. Read param.h first. */
#include "parallel/param.h"

enum {
    PIECE = 1 << 20,
    WINDOW = 2,
    PINNED = 2 * WINDOW
}; /* PIECE: elements of a piece; WINDOW: most pieces in flight */

static bool is_tied(const ax_param *p) { return p->place == AX_PARAM_LENT || p->place == AX_PARAM_COPY; }

/* Returns the bytes of a piece of the gradient; 0 if the set has no tied weights. A piece of weights has at
 * most as many, because a gradient is not narrower than the weights that kernels read. */
static size_t piece_bytes(const ax_param_set *set)
{
    size_t bytes = 0;
    for (int i = 0; i < set->n; i++)
        if (is_tied(set->param[i]))
            bytes = PIECE * ax_dtype_size(set->param[i]->grad.dtype);
    return bytes;
}

ax_status ax_param_tied_make(ax_param_set *set)
{
    bool lent = false;
    for (int i = 0; i < set->n; i++)
        lent = lent || (set->param[i]->place == AX_PARAM_LENT && ax_param_trains(set->param[i]));
    for (int k = 0; k < WINDOW && lent; k++)
        AX_TRY(ax_ctx_alloc(set->ctx, AX_MEMORY_GRADIENTS, piece_bytes(set), &set->flow->tied_piece[k]));
    set->memory.bytes[AX_MEMORY_GRADIENTS] += lent ? WINDOW * piece_bytes(set) : 0;
    return AX_OK;
}

void ax_param_tied_free(ax_param_set *set)
{
    for (int k = 0; k < WINDOW; k++)
        if (set->flow->tied_piece[k])
            ax_ctx_free(set->ctx, AX_MEMORY_GRADIENTS, set->flow->tied_piece[k], piece_bytes(set));
    if (set->flow->tied_comm)
        ax_comm_release_messages(set->flow->tied_comm, set->ctx->dev, piece_bytes(set), PINNED);
}

/* Returns the communicator along pipe. At the first call, reserves pinned memory for PINNED pieces: besides
 * WINDOW pieces in flight, WINDOW received pieces may still be copied to the device. */
static ax_status find_comm(const ax_param_set *set, ax_comm **out)
{
    ax_param_flow *flow = set->flow;
    AX_TRY(ax_grid_comm(set->ctx->grid, 1 << AX_PIPE, out));
    if (!flow->tied_comm)
        AX_TRY(ax_comm_reserve_messages(*out, set->ctx->dev, piece_bytes(set), PINNED));
    flow->tied_comm = *out;
    return AX_OK;
}

ax_status ax_param_set_reserve_messages(ax_param_set *set)
{
    ax_comm *comm;
    for (int i = 0; i < set->n; i++)
        if (is_tied(set->param[i]))
            return find_comm(set, &comm);
    return AX_OK;
}

/* One piece of a tensor: the elements [first, first + count), and the message that carries them. */
typedef struct piece {
    int64_t first, count;
    ax_message message;
} piece;

static piece piece_of(const ax_tensor *t, int64_t n, int64_t index)
{
    int64_t first = index * PIECE, count = ax_min(PIECE, n - first);
    return (piece){
        first, count,
        (ax_message){
            .kind = AX_MESSAGE_WEIGHT, .dtype = t->dtype, .micro_batch = index, .ndim = 1, .dim = {count}}};
}

/* If `sends` is true, sends this rank's box of t to rank `peer` along pipe; otherwise receives the box from
 * that rank. */
static ax_status move(ax_ctx *ctx, ax_comm *comm, const ax_tensor *t, bool sends, int peer)
{
    int64_t n = ax_tensor_count(ctx->grid, t), pieces = ax_ceil_div(n, PIECE);
    ax_work *work[WINDOW] = {0};
    for (int64_t i = 0; i < pieces + WINDOW; i++) {
        AX_TRY(ax_wait(&work[i % WINDOW]));
        piece p = piece_of(t, n, i);
        if (i < pieces)
            AX_TRY(sends ? ax_send(comm, ctx->stream, &p.message, ax_param_at(t, p.first), peer,
                                   &work[i % WINDOW])
                         : ax_recv(comm, ctx->stream, &p.message, ax_param_at(t, p.first), peer,
                                   &work[i % WINDOW]));
    }
    return AX_OK;
}

/* Receives the pieces of the gradient of rank `peer` along pipe and adds them to t. */
static ax_status receive_and_add(ax_param_set *set, ax_comm *comm, const ax_tensor *t, int peer)
{
    ax_ctx *ctx = set->ctx;
    int64_t n = ax_tensor_count(ctx->grid, t), pieces = ax_ceil_div(n, PIECE);
    ax_work *work[WINDOW] = {0};
    for (int64_t i = 0; i < pieces + WINDOW; i++) {
        int k = (int)(i % WINDOW);
        if (i >= WINDOW && i - WINDOW < pieces) {
            piece old = piece_of(t, n, i - WINDOW);
            AX_TRY(ax_wait(&work[k]));
            AX_TRY(ax_run_add(ctx->stream, &(ax_add_args){.n = old.count,
                                                          .a = ax_param_at(t, old.first),
                                                          .b = set->flow->tied_piece[k],
                                                          .y = ax_param_at(t, old.first),
                                                          .dtype = t->dtype}));
        }
        piece p = piece_of(t, n, i);
        if (i < pieces)
            AX_TRY(ax_recv(comm, ctx->stream, &p.message, set->flow->tied_piece[k], peer, &work[k]));
    }
    return AX_OK;
}

static int last_stage(const ax_ctx *ctx) { return ax_grid_axis_size(ctx->grid, AX_PIPE) - 1; }

ax_status ax_param_tied_grad(ax_param *p)
{
    ax_comm *comm;
    ax_ctx *ctx = p->set->ctx;
    if (!is_tied(p) || p->frozen)
        return AX_OK;
    AX_TRY(find_comm(p->set, &comm));
    return p->place == AX_PARAM_COPY ? move(ctx, comm, &p->grad, true, 0)
                                     : receive_and_add(p->set, comm, &p->grad, last_stage(ctx));
}

ax_status ax_param_tied_weights(ax_param *p)
{
    ax_comm *comm;
    ax_ctx *ctx = p->set->ctx;
    if (!is_tied(p))
        return AX_OK;
    bool sends = p->place == AX_PARAM_LENT;
    AX_TRY(find_comm(p->set, &comm));
    return move(ctx, comm, &p->rounded, sends, sends ? last_stage(ctx) : 0);
}
