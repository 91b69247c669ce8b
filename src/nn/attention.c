/* Multi-head causal self-attention: q, k, v and output projections around the attention operation. */
#include "nn/attention.h"
#include "nn/linear.h"
#include "nn/rope.h"

#include <stdio.h>

typedef struct attention {
    ax_layer base;   /* children: Q, K, V, PROJ; with RMSNorms of q and k also Q_NORM, K_NORM */
    bool wide_norms; /* the norms are over all heads, not of each head */
    int64_t head_dim, kv_width, window;
    ax_role kv_role;
    ax_drop drop;
    ax_tensor table;    /* cosines and sines of the rotary embedding; ndim 0: there is none */
    bool borrows_table; /* another layer owns `table` */
    ax_attention_cache cached;
    const ax_loki *loki; /* NULL: the layer reads all keys */
    ax_tensor matrix;    /* ax_loki_attach; ndim 0: none */
} attention;

enum { Q, K, V, PROJ, Q_NORM, K_NORM };

/* Copies rows of x, [b, t, ..], which have `parts` parts of `cols` elements each, `step` apart, to the
 * batch's places in an array of the cache that has `rows` rows. */
static ax_status append(const ax_layer *self, const ax_batch *batch, const ax_tensor *x, int64_t parts,
                        int64_t cols, int64_t step, int64_t rows, void *to)
{
    const ax_grid *grid = self->ctx->grid;
    return ax_run_scatter(self->ctx->stream,
                          &(ax_scatter_args){.n = ax_tensor_extent(grid, x, 0) * ax_tensor_extent(grid, x, 1),
                                             .rows = rows,
                                             .parts = parts,
                                             .cols = cols,
                                             .ld = ax_tensor_pitch(grid, x),
                                             .step = step,
                                             .x = x->data,
                                             .place = batch->places.data,
                                             .y = to,
                                             .dtype = x->dtype});
}

/* Computes attention of q to the first kv_len keys, of which queries choose some if `choosing` is not NULL:
 * the keys among which they choose. The other arguments are those of ax_op_attention. */
static ax_status attend(ax_layer *self, ax_frame *frame, const ax_tensor *q, const ax_tensor *k,
                        const ax_tensor *v, const ax_op_keys *choosing, const ax_tensor *doc_start,
                        int64_t first, const int32_t *positions, int64_t kv_len, ax_tensor *o)
{
    const attention *a = (const attention *)self;
    ax_op_chosen chosen = {0};
    if (choosing) {
        const ax_loki *how = a->loki;
        const ax_op_choice choice = {how->keys, how->share, how->dims ? how->dims : a->head_dim, how->group};
        AX_TRY(ax_op_choose(frame, q, choosing, &choice, doc_start, a->window, a->head_dim, first, positions,
                            kv_len, &chosen));
    }
    return ax_op_attention(frame, q, k, v, doc_start, a->window, a->head_dim, first, positions, kv_len,
                           choosing ? &chosen : NULL, NULL, o, NULL);
}

/* Writes k and v of the batch's tokens to the key/value cache, then computes the attention of q to the keys
 * in the cache (generation). Positions of several sequences are read on the device, so that each step
 * launches the same; that of one sequence, a chunk of a prompt or a text alone, is an argument. */
static ax_status attend_cached(ax_layer *self, ax_frame *frame, const ax_tensor *q, const ax_tensor *k,
                               const ax_tensor *v, ax_tensor *o)
{
    const attention *a = (const attention *)self;
    const ax_attention_cache *c = ax_attention_cache_of(self);
    const ax_grid *grid = self->ctx->grid;
    const ax_batch *batch = ax_frame_batch(frame);
    const int64_t b = ax_tensor_extent(grid, k, 0), t = ax_tensor_extent(grid, k, 1),
                  width = ax_tensor_extent(grid, k, 2), sequences = ax_tensor_extent(grid, &c->k, 0),
                  capacity = ax_tensor_extent(grid, &c->k, 1), first = ax_kv_cache_first(c->cache),
                  size = (int64_t)ax_dtype_size(k->dtype), rows = sequences * capacity,
                  skipped = b == 1 ? ax_kv_cache_sequence(c->cache) * capacity : 0, e = a->head_dim;
    ax_tensor cached[] = {c->k, c->v}, no_documents = {0};
    AX_CHECK(batch && batch->places.data && (b == 1 || (b == sequences && batch->positions.data)),
             AX_ERR_USAGE,
             "attention \"%s\" has a key/value cache of %lld sequences: it needs a batch with positions and "
             "places, of one sample or of as many as sequences",
             self->name, (long long)sequences);
    for (int i = 0; i < 2; i++) {
        AX_TRY(append(self, batch, i ? v : k, 1, width, width, rows, cached[i].data));
        cached[i].data = (char *)cached[i].data + skipped * width * size;
    }
    ax_op_keys keys = {cached[0].data, width, e, capacity * width, width / e, capacity};
    if (c->low.ndim) {
        const int64_t dims = c->low.dim[3];
        AX_TRY(append(self, batch, k, width / e, dims, e, rows, c->low.data));
        keys = (ax_op_keys){(char *)c->low.data + skipped * dims * size,
                            dims,
                            rows * dims,
                            capacity * dims,
                            width / e,
                            capacity};
    }
    return attend(self, frame, q, &cached[0], &cached[1],
                  a->loki && ax_kv_cache_chooses(c->cache) ? &keys : NULL, &no_documents, first,
                  b == 1 ? NULL : batch->positions.data, b == 1 ? first + t : capacity, o);
}

/* Computes attention of the tokens of whole sequences, each of which chooses the keys that it reads. */
static ax_status attend_choosing(ax_layer *self, ax_frame *frame, const ax_tensor *q, const ax_tensor *k,
                                 const ax_tensor *v, const ax_tensor *doc_start, ax_tensor *o)
{
    const attention *a = (const attention *)self;
    const ax_grid *grid = self->ctx->grid;
    const int64_t ld = ax_tensor_pitch(grid, k), t = ax_tensor_extent(grid, k, 1), e = a->head_dim;
    const ax_op_keys keys = {k->data, ld, e, t * ld, ax_tensor_extent(grid, k, 2) / e, t};
    return attend(self, frame, q, k, v, &keys, doc_start, 0, NULL, t, o);
}

/* Returns x, of shape [b, t, h·e], as a view of shape [b, t, h, e], where e is the width of a head (head_dim)
 * and h the number of heads. */
static ax_tensor heads_of(const ax_tensor *x, int64_t head_dim)
{
    ax_tensor heads = *x;
    heads.ndim = 4;
    heads.dim[2] /= head_dim;
    heads.unit[2] /= head_dim;
    heads.dim[3] = head_dim;
    heads.unit[3] = 1;
    return heads;
}

static bool has_norms(const ax_layer *self) { return self->children > Q_NORM; }

/* Runs forward or backward of child number `norm` (Q_NORM or K_NORM) on x, and makes x the result. Does
 * nothing if the layer has no such child. */
static ax_status norm_heads(ax_layer *self, int norm, ax_frame *frame, bool backward, ax_tensor *x)
{
    const attention *a = (const attention *)self;
    ax_tensor in = a->wide_norms ? *x : heads_of(x, a->head_dim), out;
    if (!has_norms(self))
        return AX_OK;
    AX_TRY(backward ? ax_layer_backward(self->child[norm], frame, &in, &out)
                    : ax_layer_forward(self->child[norm], frame, &in, &out));
    x->data = out.data;
    return AX_OK;
}

static ax_status rotate(ax_layer *self, ax_frame *frame, ax_tensor *x, bool inverse)
{
    const ax_tensor *table = &((attention *)self)->table;
    const ax_batch *batch = ax_frame_batch(frame);
    if (!table->ndim)
        return AX_OK;
    AX_CHECK(batch, AX_ERR_USAGE,
             "attention \"%s\" has a rotary embedding and needs a batch with positions: give one to "
             "ax_frame_begin",
             self->name);
    return ax_op_rope(frame, x, &batch->positions, table, inverse);
}

/* Returns what the layer does with keys (ax_loki) in the running task; NULL: nothing. */
static const ax_loki *loki_now(const ax_layer *self, const ax_frame *frame)
{
    return ax_frame_training(frame) ? NULL : ((const attention *)self)->loki;
}

/* Adds the products kᵀk and the sums of the keys of each head to the layer's moments, if these are measured
 * here. */
static ax_status measure_keys(ax_layer *self, ax_frame *frame, const ax_tensor *k, ax_loki_kind here)
{
    const attention *a = (const attention *)self;
    const ax_loki *how = loki_now(self, frame);
    const ax_grid *grid = self->ctx->grid;
    if (!how || how->kind != here)
        return AX_OK;
    const int64_t rows = ax_tensor_extent(grid, k, 0) * ax_tensor_extent(grid, k, 1), e = a->head_dim,
                  ld = ax_tensor_pitch(grid, k);
    const size_t size = ax_dtype_size(k->dtype), accum = ax_dtype_size(a->matrix.dtype);
    for (int64_t h = 0; h < ax_tensor_extent(grid, k, 2) / e; h++) {
        const char *heads = (const char *)k->data + (size_t)(h * e) * size;
        char *to = (char *)a->matrix.data + (size_t)(h * (e + 1) * e) * accum;
        AX_TRY(ax_run_gemm(self->ctx->stream, &(ax_gemm_args){.m = e,
                                                              .n = e,
                                                              .k = rows,
                                                              .a = heads,
                                                              .b = heads,
                                                              .c = to,
                                                              .lda = ld,
                                                              .ldb = ld,
                                                              .ldc = e,
                                                              .dtype = k->dtype,
                                                              .c_dtype = a->matrix.dtype,
                                                              .trans_a = true,
                                                              .accumulate = true,
                                                              .col_sums = to + (size_t)(e * e) * accum,
                                                              .accumulate_sums = true}));
    }
    return AX_OK;
}

/* Replaces q and k by the result of their norms followed by the rotary embedding, and by the layer's matrices
 * if it has any. */
static ax_status prepare_heads(ax_layer *self, ax_frame *frame, ax_tensor *q, ax_tensor *k)
{
    const attention *a = (const attention *)self;
    const ax_loki *how = loki_now(self, frame);
    AX_TRY(norm_heads(self, Q_NORM, frame, false, q));
    AX_TRY(norm_heads(self, K_NORM, frame, false, k));
    AX_TRY(measure_keys(self, frame, k, AX_LOKI_MEASURE_BEFORE));
    AX_TRY(rotate(self, frame, q, false));
    AX_TRY(rotate(self, frame, k, false));
    AX_TRY(measure_keys(self, frame, k, AX_LOKI_MEASURE_AFTER));
    if (!how || how->kind != AX_LOKI_READ || !how->turned)
        return AX_OK;
    AX_TRY(ax_op_turn(frame, q, &a->matrix));
    return ax_op_turn(frame, k, &a->matrix);
}

/* Runs backward of prepare_heads: at the call dq and dk are the gradients of the results of prepare_heads,
 * afterwards those of its inputs. dk may be a partial sum over ranks, because backward of the norm and of the
 * rotary embedding is linear in dk. */
static ax_status prepare_heads_grad(ax_layer *self, ax_frame *frame, ax_tensor *dq, ax_tensor *dk)
{
    AX_TRY(rotate(self, frame, dk, true));
    AX_TRY(rotate(self, frame, dq, true));
    AX_TRY(norm_heads(self, K_NORM, frame, true, dk));
    return norm_heads(self, Q_NORM, frame, true, dq);
}

/* Returns true if the RMSNorm of q or of k is trained. */
static bool norms_train(const ax_layer *self)
{
    bool trains = false;
    for (int i = Q_NORM; i < self->children; i++)
        trains |= ax_layer_trains(self->child[i]);
    return trains;
}

static const ax_drop *drop_now(const attention *a, const ax_frame *frame)
{
    return ax_frame_training(frame) ? &a->drop : NULL;
}

static ax_status attention_forward(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y)
{
    attention *a = (attention *)self;
    const ax_batch *batch = ax_frame_batch(frame);
    const ax_loki *how = loki_now(self, frame);
    ax_tensor in[3], o, lse, no_documents = {0};
    const ax_tensor *doc_start = batch ? &batch->doc_start : &no_documents;
    AX_TRY(ax_linear_forward_shared(&self->child[Q], V - Q + 1, frame, x, !has_norms(self), in));
    AX_TRY(prepare_heads(self, frame, &in[Q], &in[K]));
    if (a->cached.cache && !ax_frame_training(frame)) {
        AX_TRY(attend_cached(self, frame, &in[Q], &in[K], &in[V], &o));
    } else if (how && how->kind == AX_LOKI_READ) {
        AX_TRY(attend_choosing(self, frame, &in[Q], &in[K], &in[V], doc_start, &o));
    } else {
        AX_TRY(ax_op_attention(frame, &in[Q], &in[K], &in[V], doc_start, a->window, a->head_dim, 0, NULL,
                               x->dim[1], NULL, drop_now(a, frame), &o, &lse));
        for (int i = Q; i <= V; i++)
            AX_TRY(ax_frame_save(frame, &in[i]));
        AX_TRY(ax_frame_save(frame, &o));
        AX_TRY(ax_frame_save(frame, &lse));
    }
    return ax_layer_forward(self->child[PROJ], frame, &o, y);
}

static ax_status attention_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx)
{
    attention *a = (attention *)self;
    const ax_batch *batch = ax_frame_batch(frame);
    ax_tensor in[3], grad[3], o, lse, dout, no_documents = {0};
    if (!dx && ax_layer_first_trained(self) == PROJ && !norms_train(self))
        return ax_layer_backward(self->child[PROJ], frame, dy, NULL);
    AX_TRY(ax_layer_backward(self->child[PROJ], frame, dy, &dout));
    AX_TRY(ax_frame_restore(frame, &lse));
    AX_TRY(ax_frame_restore(frame, &o));
    for (int i = V; i >= Q; i--)
        AX_TRY(ax_frame_restore(frame, &in[i]));
    AX_TRY(ax_op_attention_grad(frame, &in[Q], &in[K], &in[V], &o, &lse,
                                batch ? &batch->doc_start : &no_documents, a->window, a->head_dim,
                                drop_now(a, frame), &dout, &grad[Q], &grad[K], &grad[V]));
    AX_TRY(prepare_heads_grad(self, frame, &grad[Q], &grad[K]));
    return ax_linear_backward_shared(&self->child[Q], V - Q + 1, frame, grad, dx);
}

/* Returns the bytes of the layer's matrices or moments. */
static size_t matrix_bytes(const ax_layer *self)
{
    const ax_tensor *matrix = &((const attention *)self)->matrix;
    return matrix->ndim ? (size_t)ax_round_up(ax_tensor_bytes(self->ctx->grid, matrix), 64) : 0;
}

static void attention_destroy(ax_layer *self)
{
    attention *a = (attention *)self;
    if (!a->borrows_table)
        ax_rope_table_free(self->ctx, &a->table);
    if (a->matrix.data)
        ax_ctx_free(self->ctx, AX_MEMORY_TABLES, a->matrix.data, matrix_bytes(self));
}

const ax_layer_ops ax_attention_ops = {.kind = "attention",
                                       .forward = attention_forward,
                                       .backward = attention_backward,
                                       .destroy = attention_destroy};

size_t ax_layer_table_bytes(const ax_layer *layer)
{
    const attention *a = layer->ops == &ax_attention_ops ? (const attention *)layer : NULL;
    size_t bytes = a && !a->borrows_table ? ax_rope_table_bytes(&a->table) : 0;
    if (a)
        bytes += matrix_bytes(layer);
    for (int i = 0; i < layer->children; i++)
        bytes += ax_layer_table_bytes(layer->child[i]);
    return bytes;
}

ax_attention_cache *ax_attention_cache_of(ax_layer *layer) { return &((attention *)layer)->cached; }

ax_tensor ax_attention_cache_tensor(const ax_layer *layer, int64_t sequences, int64_t capacity)
{
    const attention *a = (const attention *)layer;
    ax_layout layout = ax_activation_layout(layer->ctx, a->kv_role);
    return ax_tensor_make(layer->ctx->compute, 3, (int64_t[]){sequences, capacity, a->kv_width},
                          (int64_t[]){1, 1, a->head_dim}, &layout);
}

ax_tensor ax_attention_cache_low(const ax_layer *layer, int64_t sequences, int64_t capacity)
{
    const attention *a = (const attention *)layer;
    const int64_t dims = a->loki ? a->loki->dims : 0;
    ax_layout layout = ax_layout_of_roles(layer->ctx, (ax_role[]){a->kv_role, AX_ROLE_BATCH}, 2);
    if (!dims || dims >= a->head_dim)
        return (ax_tensor){0};
    return ax_tensor_make(layer->ctx->compute, 4,
                          (int64_t[]){a->kv_width / a->head_dim, sequences, capacity, dims}, NULL, &layout);
}

ax_tensor *ax_attention_matrix(ax_layer *layer) { return &((attention *)layer)->matrix; }

ax_status ax_attention_attach(ax_layer *layer, const ax_loki *how)
{
    attention *a = (attention *)layer;
    const int64_t e = a->head_dim;
    const bool measures = how->kind != AX_LOKI_READ;
    ax_layout layout = ax_layout_of_roles(layer->ctx, (ax_role[]){a->kv_role}, 1);
    AX_CHECK(!a->loki, AX_ERR_USAGE, "ax_loki_attach was called for attention \"%s\" before", layer->name);
    a->loki = how;
    if (!measures && !how->turned)
        return AX_OK;
    ax_tensor matrix = ax_tensor_make(layer->ctx->accum, 3,
                                      (int64_t[]){a->kv_width / e, measures ? e + 1 : e, e}, NULL, &layout);
    AX_TRY(ax_tensor_check(&matrix));
    a->matrix = matrix;
    AX_TRY(ax_ctx_alloc(layer->ctx, AX_MEMORY_TABLES, matrix_bytes(layer), &a->matrix.data));
    return ax_run_fill(layer->ctx->stream, &(ax_fill_args){.n = ax_tensor_count(layer->ctx->grid, &matrix),
                                                           .y = a->matrix.data,
                                                           .dtype = matrix.dtype});
}

/* Adds the layers q_norm and k_norm, unless head_norm_eps is 0. All heads of q share the weight of q_norm,
 * and all heads of k share the weight of k_norm, unless the norms are over all heads. */
static ax_status add_norms(ax_layer *layer, const char *name, const ax_attention_config *c,
                           const ax_heads *split)
{
    const attention *a = (const attention *)layer;
    const int64_t e = a->head_dim;
    const struct {
        const char *name;
        int64_t width, unit;
        ax_role role;
    } norms[] = {{"q_norm", c->heads * e, split->q_unit * e, split->q},
                 {"k_norm", a->kv_width, e, split->kv}};
    for (size_t i = 0; i < AX_COUNT(norms) && c->head_norm_eps > 0; i++) {
        char full[256];
        snprintf(full, sizeof full, "%s.%s", name, norms[i].name);
        AX_TRY(ax_layer_add(layer, c->wide_norms
                                       ? ax_rmsnorm_of_units(layer->ctx, full, norms[i].width, norms[i].unit,
                                                             norms[i].role, c->head_norm_eps)
                                       : ax_rmsnorm(layer->ctx, full, e, split->head, c->head_norm_eps)));
    }
    return AX_OK;
}

static ax_status add_table(ax_layer *layer, const ax_attention_config *c)
{
    attention *a = (attention *)layer;
    if (c->rope.theta == 0)
        return AX_OK;
    if (!c->rope_from)
        return ax_rope_table_make(layer->ctx, &c->rope, a->head_dim, c->positions, &a->table);
    const ax_tensor *table = &((const attention *)c->rope_from)->table;
    AX_CHECK(table->ndim && 2 * table->dim[1] == a->head_dim && table->dim[0] == c->positions, AX_ERR_USAGE,
             "the layer rope_from has no rotary table of %lld positions for heads of width %lld",
             (long long)c->positions, (long long)a->head_dim);
    a->table = *table;
    a->borrows_table = true;
    return AX_OK;
}

static ax_status add_parts(ax_layer *layer, const char *name, const ax_attention_config *c)
{
    static const char *const names[] = {"q", "k", "v", "proj"};
    attention *a = (attention *)layer;
    int64_t kv_heads = c->kv_heads ? c->kv_heads : c->heads;
    ax_heads split;
    AX_TRY(ax_heads_split(layer->ctx, c->heads, kv_heads, &split));
    a->head_dim = c->head_dim ? c->head_dim : c->width / c->heads;
    a->kv_width = kv_heads * a->head_dim;
    a->window = c->window;
    a->wide_norms = c->wide_norms;
    a->kv_role = split.kv;
    for (int i = Q; i <= PROJ; i++) {
        char full[256];
        snprintf(full, sizeof full, "%s.%s", name, names[i]);
        bool kv = i == K || i == V, out = i == PROJ;
        int64_t inner = kv ? a->kv_width : c->heads * a->head_dim,
                unit = kv ? a->head_dim : split.q_unit * a->head_dim;
        ax_role role = kv ? split.kv : split.q;
        ax_linear_config linear = {.in = out ? inner : c->width,
                                   .out = out ? c->width : inner,
                                   .in_role = out ? role : AX_ROLE_MODEL,
                                   .out_role = out ? AX_ROLE_MODEL : role,
                                   .in_unit = out ? unit : 1,
                                   .out_unit = out ? 1 : unit,
                                   .init_std = out ? c->proj_init_std : c->init_std,
                                   .no_bias = c->no_bias || (out && c->no_proj_bias)};
        AX_TRY(ax_layer_add(layer, ax_linear(layer->ctx, full, &linear)));
    }
    ax_linear_join(&layer->child[Q], V - Q + 1);
    AX_TRY(add_norms(layer, name, c, &split));
    return add_table(layer, c);
}

ax_layer *ax_attention(ax_ctx *ctx, const char *name, const ax_attention_config *c)
{
    int64_t kv_heads = c->kv_heads ? c->kv_heads : c->heads;
    if (c->heads < 1 || (!c->head_dim && c->width % c->heads) || kv_heads < 1 || c->heads % kv_heads) {
        ax_fail(AX_ERR_USAGE,
                "attention \"%s\": width = %lld must be a multiple of heads = %lld (unless head_dim is "
                "given), and heads a multiple of kv_heads = %lld",
                name, (long long)c->width, (long long)c->heads, (long long)kv_heads);
        return NULL;
    }
    if (c->head_dim < 0 || c->head_dim > INT64_MAX / c->heads) {
        ax_fail(
            AX_ERR_USAGE,
            "attention \"%s\": head_dim = %lld is out of range: with %lld heads it must be from 0 (width / "
            "heads) to %lld",
            name, (long long)c->head_dim, (long long)c->heads, (long long)(INT64_MAX / c->heads));
        return NULL;
    }
    if (c->window < 0) {
        ax_fail(AX_ERR_USAGE,
                "attention \"%s\": window = %lld must be a number of positions, or 0 for no window", name,
                (long long)c->window);
        return NULL;
    }
    if (!(c->dropout >= 0 && c->dropout <= 1)) {
        ax_fail(AX_ERR_USAGE, "attention \"%s\": dropout = %g is not in [0, 1]", name, c->dropout);
        return NULL;
    }
    ax_layer *layer = ax_layer_new(ctx, &ax_attention_ops, name, sizeof(attention));
    if (layer)
        ((attention *)layer)->drop = (ax_drop){c->dropout, ax_rng_key(ctx->seed, name, 0)};
    if (layer && add_parts(layer, name, c) != AX_OK) {
        ax_error_context("attention \"%s\"", name);
        ax_layer_destroy(&layer);
    }
    return layer;
}
