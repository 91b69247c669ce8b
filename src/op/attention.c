/* Causal attention of this rank's heads, and the rotary embedding of queries and keys. These operations do
 * not communicate, because each rank has whole heads. */
#include "op/op.h"

#include <math.h>

typedef struct head_counts {
    int64_t batch, q_len, heads, kv_heads;
} head_counts;

static ax_status count_heads(const ax_frame *frame, const ax_tensor *q, const ax_tensor *k,
                             const ax_tensor *v, int64_t head_dim, head_counts *out)
{
    const ax_grid *grid = ax_frame_ctx(frame)->grid;
    AX_TRY(ax_op_no_partial(frame, q, "attention"));
    AX_TRY(ax_op_no_partial(frame, k, "attention"));
    AX_CHECK(
        k->align == v->align, AX_ERR_INTERNAL,
        "attention: the rows of k and v are padded differently (align %d and %d); give both the same align",
        (int)k->align, (int)v->align);
    int64_t q_width = ax_tensor_extent(grid, q, 2), k_width = ax_tensor_extent(grid, k, 2);
    *out = (head_counts){ax_tensor_extent(grid, q, 0), ax_tensor_extent(grid, q, 1), q_width / head_dim,
                         k_width / head_dim};
    AX_CHECK(q_width % head_dim == 0 && k_width % head_dim == 0 &&
                 (out->kv_heads ? out->heads % out->kv_heads == 0 : out->heads == 0),
             AX_ERR_INTERNAL,
             "attention: this rank's query width %lld and key width %lld are not whole heads of %lld",
             (long long)q_width, (long long)k_width, (long long)head_dim);
    return AX_OK;
}

/* Returns the axes that split the query heads but not the key heads that the query heads share. Along these
 * axes dk and dv are partial sums: each rank adds up over its own query heads only. */
static ax_axisset shared_axes(const ax_tensor *q, const ax_tensor *k)
{
    ax_layout of_q = {.dim[0] = q->layout.dim[2]}, of_k = {.dim[0] = k->layout.dim[2]};
    return ax_layout_split_axes(&of_q, 1) & (ax_axisset)~ax_layout_split_axes(&of_k, 1);
}

/* Returns true if dropout sets all probabilities to 0 (p = 1). The kernels cannot run then, because 1/(1-p)
 * is infinite. */
static bool drops_all(const ax_drop *drop) { return drop && drop->p == 1; }

/* Returns the kernel's dropout arguments for this rank's rows and heads of q. */
static ax_attention_dropout dropout_of(const ax_frame *frame, const ax_tensor *q, int64_t head_dim,
                                       const ax_drop *drop)
{
    const ax_grid *grid = ax_frame_ctx(frame)->grid;
    const ax_batch *batch = ax_frame_batch(frame);
    if (!drop || drop->p == 0)
        return (ax_attention_dropout){0};
    ax_box box = ax_tensor_box(grid, q, ax_grid_rank(grid));
    return (ax_attention_dropout){.p = drop->p,
                                  .key = ax_op_drop_key(frame, drop),
                                  .row0 = box.lo[0] * q->dim[1],
                                  .head0 = box.lo[2] / head_dim,
                                  .heads = q->dim[2] / head_dim,
                                  .now = batch ? batch->now : NULL};
}

/* Allocates a tensor with dtype, extents and layout of x, and dense rows. */
static ax_status dense_like(ax_frame *frame, const ax_tensor *x, ax_tensor *out)
{
    ax_tensor like = *x;
    like.align = 0;
    return ax_frame_alloc(frame, &like, out);
}

ax_status ax_op_attention(ax_frame *frame, const ax_tensor *q, const ax_tensor *k, const ax_tensor *v,
                          const ax_tensor *doc_start, int64_t window, int64_t head_dim, int64_t q_offset,
                          const int32_t *positions, int64_t kv_len, const ax_op_chosen *chosen,
                          const ax_drop *drop, ax_tensor *o, ax_tensor *lse)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    head_counts n;
    AX_TRY(count_heads(frame, q, k, v, head_dim, &n));
    AX_TRY(dense_like(frame, q, o));
    if (lse)
        AX_TRY(ax_op_local(frame, 3, (int64_t[]){n.batch, n.heads, n.q_len}, lse));
    if (!n.heads || drops_all(drop))
        return ax_op_zero(frame, o);
    int64_t kv_rows = ax_tensor_extent(ctx->grid, k, 1);
    const ax_op_chosen all = {0}, *some = chosen ? chosen : &all;
    return ax_run_attention(ctx->stream,
                            &(ax_attention_args){.batch = n.batch,
                                                 .q_len = n.q_len,
                                                 .kv_len = kv_len,
                                                 .q_offset = q_offset,
                                                 .heads = n.heads,
                                                 .kv_heads = n.kv_heads,
                                                 .head_dim = head_dim,
                                                 .q_ld = ax_tensor_pitch(ctx->grid, q),
                                                 .kv_ld = ax_tensor_pitch(ctx->grid, k),
                                                 .kv_batch_stride = kv_rows * ax_tensor_pitch(ctx->grid, k),
                                                 .scale = 1 / sqrt((double)head_dim),
                                                 .q = q->data,
                                                 .k = k->data,
                                                 .v = v->data,
                                                 .doc_start = doc_start->data,
                                                 .positions = positions,
                                                 .window = window,
                                                 .chosen = some->bits,
                                                 .choosers = some->choosers,
                                                 .chosen_keys = some->most,
                                                 .o = o->data,
                                                 .lse = lse ? lse->data : NULL,
                                                 .drop = dropout_of(frame, q, head_dim, drop),
                                                 .dtype = q->dtype});
}

/* Allocates the gradients of q, k and v. If q, k and v lie beside each other in memory and `dense` is false,
 * so do the gradients; otherwise their rows are dense. */
static ax_status alloc_gradients(ax_frame *frame, bool dense, const ax_tensor *q, const ax_tensor *k,
                                 const ax_tensor *v, ax_tensor *dq, ax_tensor *dk, ax_tensor *dv)
{
    ax_tensor out[] = {*q, *k, *v};
    for (size_t i = 0; i < AX_COUNT(out) && (dense || !q->align); i++)
        AX_TRY(dense_like(frame, &out[i], &out[i]));
    if (!dense && q->align)
        AX_TRY(ax_frame_alloc_beside(frame, AX_COUNT(out), (ax_tensor[]){*q, *k, *v}, out));
    AX_CHECK(dense || (out[0].align == q->align && out[1].align == k->align && out[2].align == v->align),
             AX_ERR_INTERNAL,
             "attention: q, k and v have padded rows, but are not beside each other: allocate them with "
             "ax_frame_alloc_beside");
    *dq = out[0];
    *dk = out[1];
    *dv = out[2];
    return AX_OK;
}

ax_status ax_op_attention_grad(ax_frame *frame, const ax_tensor *q, const ax_tensor *k, const ax_tensor *v,
                               const ax_tensor *o, const ax_tensor *lse, const ax_tensor *doc_start,
                               int64_t window, int64_t head_dim, const ax_drop *drop, const ax_tensor *dout,
                               ax_tensor *dq, ax_tensor *dk, ax_tensor *dv)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    head_counts n;
    AX_TRY(count_heads(frame, q, k, v, head_dim, &n));
    bool none = !n.heads || drops_all(drop); /* if there are fewer heads than ranks, some ranks have no heads;
                                                they add 0 to the partial sums dk and dv */
    AX_TRY(alloc_gradients(frame, none, q, k, v, dq, dk, dv));
    dk->layout.partial = dv->layout.partial = shared_axes(q, k);
    if (none) {
        AX_TRY(ax_op_zero(frame, dq));
        AX_TRY(ax_op_zero(frame, dk));
        return ax_op_zero(frame, dv);
    }
    void *delta;
    AX_TRY(ax_frame_scratch(frame, ctx->accum, n.batch * n.heads * n.q_len, &delta));
    return ax_run_attention_grad(ctx->stream,
                                 &(ax_attention_grad_args){.batch = n.batch,
                                                           .q_len = n.q_len,
                                                           .heads = n.heads,
                                                           .kv_heads = n.kv_heads,
                                                           .head_dim = head_dim,
                                                           .q_ld = ax_tensor_pitch(ctx->grid, q),
                                                           .kv_ld = ax_tensor_pitch(ctx->grid, k),
                                                           .scale = 1 / sqrt((double)head_dim),
                                                           .q = q->data,
                                                           .k = k->data,
                                                           .v = v->data,
                                                           .o = o->data,
                                                           .lse = lse->data,
                                                           .dout = dout->data,
                                                           .doc_start = doc_start->data,
                                                           .window = window,
                                                           .delta = delta,
                                                           .dq = dq->data,
                                                           .dk = dk->data,
                                                           .dv = dv->data,
                                                           .drop = dropout_of(frame, q, head_dim, drop),
                                                           .dtype = q->dtype});
}

ax_status ax_op_rope(ax_frame *frame, ax_tensor *x, const ax_tensor *positions, const ax_tensor *table,
                     bool inverse)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    int64_t rows, cols, ld, head_dim = 2 * table->dim[1];
    bool changed;
    ax_op_rows(frame, x, &rows, &cols, &ld);
    AX_CHECK(cols % head_dim == 0, AX_ERR_INTERNAL,
             "rotary embedding: this rank's width %lld is not whole heads of %lld", (long long)cols,
             (long long)head_dim);
    AX_TRY(ax_frame_change(frame, x, &changed));
    return changed ? AX_OK
                   : ax_run_rope(ctx->stream, &(ax_rope_args){.rows = rows,
                                                              .heads = cols / head_dim,
                                                              .head_dim = head_dim,
                                                              .ld = ld,
                                                              .table_rows = table->dim[0],
                                                              .positions = positions->data,
                                                              .table = table->data,
                                                              .x = x->data,
                                                              .dtype = x->dtype,
                                                              .inverse = inverse});
}

ax_status ax_op_turn(ax_frame *frame, const ax_tensor *x, const ax_tensor *matrix)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    int64_t rows, cols, ld, head_dim = matrix->dim[2], kv_heads = ax_tensor_extent(ctx->grid, matrix, 0);
    ax_op_rows(frame, x, &rows, &cols, &ld);
    AX_CHECK(cols % head_dim == 0 && (kv_heads ? cols / head_dim % kv_heads == 0 : !cols), AX_ERR_INTERNAL,
             "turning heads: this rank's width %lld is not whole heads of %lld for %lld key heads",
             (long long)cols, (long long)head_dim, (long long)kv_heads);
    return ax_run_turn(ctx->stream, &(ax_turn_args){.rows = cols ? rows : 0,
                                                    .heads = cols / head_dim,
                                                    .kv_heads = kv_heads,
                                                    .head_dim = head_dim,
                                                    .ld = ld,
                                                    .turn = matrix->data,
                                                    .x = x->data,
                                                    .dtype = x->dtype});
}

ax_status ax_op_choose(ax_frame *frame, const ax_tensor *q, const ax_op_keys *keys,
                       const ax_op_choice *choice, const ax_tensor *doc_start, int64_t window,
                       int64_t head_dim, int64_t q_offset, const int32_t *positions, int64_t kv_len,
                       ax_op_chosen *out)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    const int64_t batch = ax_tensor_extent(ctx->grid, q, 0), q_len = ax_tensor_extent(ctx->grid, q, 1),
                  heads = ax_tensor_extent(ctx->grid, q, 2) / head_dim;
    const int64_t share = (int64_t)ceil(choice->share * (double)kv_len);
    void *bits;
    out->choosers = choice->group ? keys->heads : heads;
    out->most = ax_max(1, ax_min(kv_len, choice->keys ? choice->keys : share));
    AX_TRY(
        ax_frame_scratch(frame, AX_I64, batch * q_len * out->choosers * ax_ceil_div(keys->most, 64), &bits));
    out->bits = bits;
    return heads ? ax_run_choose(ctx->stream, &(ax_choose_args){.batch = batch,
                                                                .q_len = q_len,
                                                                .kv_len = kv_len,
                                                                .q_offset = q_offset,
                                                                .heads = heads,
                                                                .kv_heads = keys->heads,
                                                                .width = choice->width,
                                                                .q_ld = ax_tensor_pitch(ctx->grid, q),
                                                                .q_step = head_dim,
                                                                .k_ld = keys->ld,
                                                                .k_step = keys->step,
                                                                .k_batch_stride = keys->batch_stride,
                                                                .q = q->data,
                                                                .k = keys->k,
                                                                .doc_start = doc_start->data,
                                                                .positions = positions,
                                                                .window = window,
                                                                .keys = choice->keys,
                                                                .share = choice->share,
                                                                .chosen = bits,
                                                                .dtype = q->dtype,
                                                                .group = choice->group})
                 : AX_OK;
}
