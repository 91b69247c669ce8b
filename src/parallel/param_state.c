/* The state of a parameter: its master weights and the arrays of the optimizer, as far as this rank has them.
 * Read param.h first. */
#include "parallel/mask.h"
#include "parallel/offload.h"

#include "axonn/philox.h"

#include <stdlib.h>

static void *element(const ax_param_state *s, int64_t first)
{
    return (char *)s->data + first * (int64_t)ax_dtype_size(s->dtype);
}

/* read and write copy elements of the array itself, which has those that a mask keeps. */
static ax_status read(ax_ctx *ctx, const ax_param_state *s, int64_t first, int64_t n, void *host)
{
    return s->offload
               ? ax_offload_move(s, false, first, n, host)
               : ax_copy_out(ctx->stream, host, element(s, first), (size_t)n * ax_dtype_size(s->dtype));
}

static ax_status write(ax_ctx *ctx, const ax_param_state *s, int64_t first, int64_t n, const void *host)
{
    return s->offload ? ax_offload_move(s, true, first, n, (void *)(uintptr_t)host) /* only read */
                      : ax_copy_in(ctx->stream, element(s, first), host, (size_t)n * ax_dtype_size(s->dtype));
}

ax_status ax_param_state_read(ax_ctx *ctx, const ax_param_state *s, int64_t first, int64_t n, void *host)
{
    if (!s->mask)
        return read(ctx, s, first, n, host);
    const int64_t begin = ax_mask_rank(s->mask, first), kept = ax_mask_rank(s->mask, first + n) - begin;
    char *end = (char *)host + (size_t)(n - kept) * ax_dtype_size(s->dtype);
    if (kept)
        AX_TRY(read(ctx, s, begin, kept, end));
    ax_mask_spread(s->mask, s->dtype, first, n, host);
    return AX_OK;
}

ax_status ax_param_state_write(ax_ctx *ctx, const ax_param_state *s, int64_t first, int64_t n,
                               const void *host)
{
    if (!s->mask)
        return write(ctx, s, first, n, host);
    const int64_t begin = ax_mask_rank(s->mask, first), kept = ax_mask_rank(s->mask, first + n) - begin;
    void *packed;
    AX_TRY(ax_calloc((size_t)ax_max(kept, 1), ax_dtype_size(s->dtype), &packed));
    ax_status status = AX_OK;
    if (!ax_mask_pack(s->mask, s->dtype, first, n, host, packed))
        status =
            ax_fail(AX_ERR_DATA,
                    "elements that the mask of this pruned matrix does not keep are not zero: read weights "
                    "and state of a run of the same pruned model (model.from), or set train.sparse to false");
    if (status == AX_OK && kept)
        status = write(ctx, s, begin, kept, packed);
    free(packed);
    return status;
}

/* Returns the number of elements of an array that a kernel can access at once. */
static int64_t piece_of(const ax_param_state *s)
{
    return s->offload ? ax_offload_piece(s) : ax_max(s->n, 1);
}

/* piece_begin sets *out to the address at which kernels can write elements first … of an array, piece_stream
 * returns the stream for these kernels, and piece_end stores what they have written. */
static ax_status piece_begin(const ax_param_state *s, int64_t first, void **out)
{
    if (s->offload)
        return ax_offload_room(s, first, out);
    *out = element(s, first);
    return AX_OK;
}

static ax_stream *piece_stream(ax_ctx *ctx, const ax_param_state *s)
{
    return s->offload ? &s->offload->stream : ctx->stream;
}

static ax_status piece_end(const ax_param_state *s, int64_t first, int64_t n)
{
    return s->offload ? ax_offload_put(s, first, n) : AX_OK;
}

static ax_status fill(ax_ctx *ctx, const ax_param_state *s, double value)
{
    for (int64_t first = 0, n; first < s->n; first += n) {
        n = ax_min(piece_of(s), s->n - first);
        ax_fill_args args = {.n = n, .value = value, .dtype = s->dtype};
        AX_TRY(piece_begin(s, first, &args.y));
        AX_TRY(ax_run_fill(piece_stream(ctx, s), &args));
        AX_TRY(piece_end(s, first, n));
    }
    return AX_OK;
}

/* Offloaded arrays are zero when they are made. */
ax_status ax_param_state_clear(ax_ctx *ctx, const ax_param *p)
{
    for (int i = AX_STATE_MOMENT; i < AX_STATE_ARRAYS; i++)
        if (p->state[i].data)
            AX_TRY(fill(ctx, &p->state[i], 0));
    return AX_OK;
}

/* Converts an array of state: n elements from x to y. */
static ax_status convert(ax_ctx *ctx, int64_t n, ax_dtype from, const void *x, ax_dtype to, void *y)
{
    ax_convert_args args = {.n = n, .x = x, .y = y, .x_dtype = from, .y_dtype = to};
    return n ? ax_run_convert(ctx->stream, &args) : AX_OK;
}

bool ax_param_rounds(const ax_param *p)
{
    return p->mask || p->state[AX_STATE_MASTER].dtype != p->rest.dtype;
}

/* Writes the master weights of a pruned matrix, in pieces if they are offloaded, to the weights that kernels
 * read, which are zero elsewhere. */
static ax_status expand(ax_ctx *ctx, const ax_param *p)
{
    const ax_param_state *s = &p->state[AX_STATE_MASTER];
    const ax_tensor *to = &p->rounded;
    if (!s->offload)
        return ax_mask_expand(ctx->stream, p->mask, 0, s->n, s->data, s->dtype, to);
    ax_fill_args zero = {.n = ax_tensor_count(ctx->grid, to), .y = to->data, .dtype = to->dtype};
    if (zero.n)
        AX_TRY(ax_run_fill(ctx->stream, &zero));
    for (int64_t first = 0, n; first < s->n; first += n) {
        void *x;
        n = ax_min(ax_offload_piece(s), s->n - first);
        AX_TRY(ax_offload_fetch(s, first, n));
        AX_TRY(ax_offload_room(s, first, &x));
        AX_TRY(ax_mask_expand(piece_stream(ctx, s), p->mask, first, n, x, s->dtype, to));
        AX_TRY(ax_stream_wait(piece_stream(ctx, s))); /* as in ax_offload_round */
    }
    return AX_OK;
}

ax_status ax_param_state_round(ax_ctx *ctx, const ax_param *p)
{
    const ax_param_state *s = &p->state[AX_STATE_MASTER];
    const ax_tensor *to = &p->rounded;
    if (!ax_param_rounds(p) || !ax_param_is_owned(p))
        return AX_OK;
    if (p->mask)
        return expand(ctx, p);
    if (!s->offload)
        return convert(ctx, s->n, s->dtype, s->data, to->dtype, to->data);
    for (int64_t first = 0, n; first < s->n; first += n) {
        n = ax_min(ax_offload_piece(s), s->n - first);
        AX_TRY(ax_offload_round(s, first, n, to));
    }
    return AX_OK;
}

ax_status ax_param_expand(const ax_param *p, int64_t first, int64_t n, const void *master)
{
    return ax_mask_expand(p->set->ctx->stream, p->mask, first, n, master, p->state[AX_STATE_MASTER].dtype,
                          &p->rounded);
}

/* ---- initial values ------------------------------------------------------------------------------ */

/* Describes this rank's box of the master weights, without a target. Leading dims that a parameter does not
 * have are 1. */
static void describe_box(const ax_ctx *ctx, const ax_param *p, ax_init_normal_args *args)
{
    const ax_tensor *t = &p->rounded;
    ax_box box = ax_tensor_box(ctx->grid, t, ax_grid_rank(ctx->grid));
    *args = (ax_init_normal_args){.extent = {1, 1, 1, 1},
                                  .n = {1, 1, 1, 1},
                                  .key = ax_rng_key(ctx->seed, p->name, 0),
                                  .std = p->init_std};
    for (int d = 0, at = AX_MAX_DIMS - t->ndim; d < t->ndim; d++, at++) {
        args->extent[at] = t->dim[d];
        args->lo[at] = box.lo[d];
        args->n[at] = box.n[d];
    }
}

/* Draws n elements of the rank's box from element `first` on, all in one row, or all of some rows, which the
 * box has one after the other. The rows are those of the last two dims. */
static ax_status draw_piece(ax_ctx *ctx, const ax_param *p, int64_t first, int64_t rows, int64_t cols)
{
    const ax_param_state *s = &p->state[AX_STATE_MASTER];
    ax_init_normal_args args;
    describe_box(ctx, p, &args);
    int64_t at = first;
    for (int d = 3; d >= 0; d--) {
        args.lo[d] += at % args.n[d];
        at /= args.n[d];
        args.n[d] = d == 3 ? cols : d == 2 ? rows : 1;
    }
    AX_TRY(piece_begin(s, first, &args.y));
    args.dtype = s->dtype;
    AX_TRY(ax_run_init_normal(piece_stream(ctx, s), &args));
    return piece_end(s, first, rows * cols);
}

/* Draws offloaded weights piece by piece. */
static ax_status draw_pieces(ax_ctx *ctx, const ax_param *p)
{
    const ax_param_state *s = &p->state[AX_STATE_MASTER];
    ax_init_normal_args box;
    describe_box(ctx, p, &box);
    const int64_t piece = piece_of(s), cols = box.n[3], whole = cols <= piece ? piece / cols : 0;
    for (int64_t first = 0, n; first < s->n; first += n) {
        int64_t row = first / cols % box.n[2], rows = whole ? ax_min(whole, box.n[2] - row) : 1,
                part = whole ? cols : ax_min(piece, cols - first % cols);
        n = rows * part;
        AX_TRY(draw_piece(ctx, p, first, rows, part));
    }
    return AX_OK;
}

/* Draws the initial weights of a parameter. */
static ax_status draw(ax_ctx *ctx, const ax_param *p)
{
    const ax_param_state *s = &p->state[AX_STATE_MASTER];
    ax_init_normal_args args;
    if (!s->n)
        return AX_OK;
    if (s->offload)
        return draw_pieces(ctx, p);
    describe_box(ctx, p, &args);
    args.y = s->data;
    args.dtype = s->dtype;
    return ax_run_init_normal(ctx->stream, &args);
}

/* Sets this rank's box of a matrix, in host memory, to uniform random numbers. Only low-rank factors
 * (matrices whose product is added to a weight) have such initial values. They are small, so the host draws
 * them. */
static void uniform_box(const ax_ctx *ctx, const ax_param *p, const ax_box *box, void *out)
{
    enum { UNIFORM = 2 }; /* number of the Philox stream; normal numbers use stream 1 */
    uint64_t key = ax_rng_key(ctx->seed, p->name, 0);
    for (int64_t r = 0; r < box->n[0]; r++)
        for (int64_t c = 0; c < box->n[1]; c++) {
            int64_t index = (box->lo[0] + r) * p->rest.dim[1] + box->lo[1] + c;
            double u = ax_philox_uniform(key, UNIFORM, (uint64_t)index);
            ax_store(p->state[AX_STATE_MASTER].dtype, out, r * box->n[1] + c, p->init_std * (2 * u - 1));
        }
}

static ax_status draw_uniform(ax_ctx *ctx, const ax_param *p)
{
    const ax_param_state *s = &p->state[AX_STATE_MASTER];
    void *host;
    ax_box box = ax_tensor_box(ctx->grid, &p->rounded, ax_grid_rank(ctx->grid));
    AX_ASSERT(p->rest.ndim == 2);
    AX_TRY(ax_calloc(1, (size_t)s->n * ax_dtype_size(s->dtype) + 1, &host));
    uniform_box(ctx, p, &box, host);
    ax_status status = s->n ? ax_param_state_write(ctx, s, 0, s->n, host) : AX_OK;
    free(host);
    return status;
}

ax_status ax_param_state_init(ax_ctx *ctx, const ax_param *p)
{
    AX_CHECK(!p->mask, AX_ERR_INTERNAL,
             "the weights of %s, a pruned matrix, cannot be drawn: read those to which its mask belongs",
             p->name);
    if (p->init == AX_INIT_NORMAL)
        return draw(ctx, p);
    if (p->init == AX_INIT_UNIFORM)
        return draw_uniform(ctx, p);
    return fill(ctx, &p->state[AX_STATE_MASTER], p->init == AX_INIT_ONE);
}
