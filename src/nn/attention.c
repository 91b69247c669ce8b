/* Multi-head causal self-attention: q, k, v and output projections around the attention operation. */
#include "nn/attention.h"
#include "nn/linear.h"

#include <stdio.h>

typedef struct attention {
    ax_layer base; /* children: Q, K, V, PROJ */
    int64_t head_dim, kv_width;
    ax_role kv_role;
    ax_drop drop;
    ax_attention_cache cached;
} attention;

enum { Q, K, V, PROJ };

/* For generation: appends k and v of the new positions to the KV cache, and attends to all of the cache. */
static ax_status attend_cached(ax_layer *self, ax_frame *frame, const ax_tensor *q, const ax_tensor *k,
                               const ax_tensor *v, ax_tensor *o)
{
    const ax_attention_cache *c = ax_attention_cache_of(self);
    const ax_grid *grid = self->ctx->grid;
    int64_t length = ax_kv_cache_length(c->cache), b = ax_tensor_extent(grid, k, 0),
            t = ax_tensor_extent(grid, k, 1), width = ax_tensor_extent(grid, k, 2),
            capacity = ax_tensor_extent(grid, &c->k, 1);
    AX_CHECK(length + t <= capacity, AX_ERR_INTERNAL,
             "a cache of %lld positions cannot hold %lld more after %lld", (long long)capacity, (long long)t,
             (long long)length);
    for (int i = 0; i < 2; i++) {
        const ax_tensor *fresh = i ? v : k;
        char *place = (char *)(i ? c->v : c->k).data + (size_t)(length * width) * ax_dtype_size(fresh->dtype);
        AX_TRY(ax_run_copy_box(self->ctx->stream,
                               &(ax_copy_box_args){.n = {1, b, t, width},
                                                   .x_stride = {0, t * width, width, 1},
                                                   .y_stride = {0, capacity * width, width, 1},
                                                   .x = fresh->data,
                                                   .y = place,
                                                   .dtype = fresh->dtype}));
    }
    ax_tensor no_documents = {0};
    return ax_op_attention(frame, q, &c->k, &c->v, &no_documents, ((attention *)self)->head_dim, length,
                           length + t, NULL, o, NULL);
}

static const ax_drop *drop_now(const attention *a, const ax_frame *frame)
{
    return ax_frame_training(frame) ? &a->drop : NULL;
}

static ax_status attention_forward(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y)
{
    attention *a = (attention *)self;
    const ax_batch *batch = ax_frame_batch(frame);
    ax_tensor in[3], o, lse, no_documents = {0};
    for (int i = Q; i <= V; i++)
        AX_TRY(ax_layer_forward(self->child[i], frame, x, &in[i]));
    if (a->cached.cache && !ax_frame_training(frame)) {
        AX_TRY(attend_cached(self, frame, &in[Q], &in[K], &in[V], &o));
    } else {
        AX_TRY(ax_op_attention(frame, &in[Q], &in[K], &in[V], batch ? &batch->doc_start : &no_documents,
                               a->head_dim, 0, x->dim[1], drop_now(a, frame), &o, &lse));
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
    AX_TRY(ax_layer_backward(self->child[PROJ], frame, dy, &dout));
    AX_TRY(ax_frame_restore(frame, &lse));
    AX_TRY(ax_frame_restore(frame, &o));
    for (int i = V; i >= Q; i--)
        AX_TRY(ax_frame_restore(frame, &in[i]));
    AX_TRY(ax_op_attention_grad(frame, &in[Q], &in[K], &in[V], &o, &lse,
                                batch ? &batch->doc_start : &no_documents, a->head_dim, drop_now(a, frame),
                                &dout, &grad[Q], &grad[K], &grad[V]));
    return ax_linear_backward_shared(&self->child[Q], V - Q + 1, frame, grad, dx);
}

const ax_layer_ops ax_attention_ops = {
    .kind = "attention", .forward = attention_forward, .backward = attention_backward};

ax_attention_cache *ax_attention_cache_of(ax_layer *layer) { return &((attention *)layer)->cached; }

ax_tensor ax_attention_cache_tensor(const ax_layer *layer, int64_t batch, int64_t capacity)
{
    const attention *a = (const attention *)layer;
    ax_layout layout = ax_activation_layout(layer->ctx, a->kv_role);
    return ax_tensor_make(layer->ctx->compute, 3, (int64_t[]){batch, capacity, a->kv_width},
                          (int64_t[]){1, 1, a->head_dim}, &layout);
}

static ax_status add_projections(ax_layer *layer, const char *name, const ax_attention_config *c)
{
    static const char *const names[] = {"q", "k", "v", "proj"};
    attention *a = (attention *)layer;
    int64_t kv_heads = c->kv_heads ? c->kv_heads : c->heads;
    ax_heads split;
    AX_TRY(ax_heads_split(layer->ctx, c->heads, kv_heads, &split));
    a->head_dim = c->width / c->heads;
    a->kv_width = kv_heads * a->head_dim;
    a->kv_role = split.kv;
    for (int i = Q; i <= PROJ; i++) {
        char full[256];
        snprintf(full, sizeof full, "%s.%s", name, names[i]);
        bool kv = i == K || i == V, out = i == PROJ;
        int64_t inner = kv ? a->kv_width : c->width, unit = kv ? a->head_dim : split.q_unit * a->head_dim;
        ax_role role = kv ? split.kv : split.q;
        ax_linear_config linear = {.in = out ? inner : c->width,
                                   .out = out ? c->width : inner,
                                   .in_role = out ? role : AX_ROLE_MODEL,
                                   .out_role = out ? AX_ROLE_MODEL : role,
                                   .in_unit = out ? unit : 1,
                                   .out_unit = out ? 1 : unit,
                                   .init_std = out ? c->proj_init_std : c->init_std,
                                   .no_bias = c->no_bias};
        AX_TRY(ax_layer_add(layer, ax_linear(layer->ctx, full, &linear)));
    }
    return AX_OK;
}

ax_layer *ax_attention(ax_ctx *ctx, const char *name, const ax_attention_config *c)
{
    int64_t kv_heads = c->kv_heads ? c->kv_heads : c->heads;
    if (c->heads < 1 || c->width % c->heads || kv_heads < 1 || c->heads % kv_heads) {
        ax_fail(AX_ERR_USAGE,
                "attention \"%s\": width %lld must be a multiple of its %lld heads, and those of its %lld "
                "key heads",
                name, (long long)c->width, (long long)c->heads, (long long)kv_heads);
        return NULL;
    }
    if (!(c->dropout >= 0 && c->dropout <= 1)) {
        ax_fail(AX_ERR_USAGE, "attention \"%s\": dropout = %g is not in [0, 1]", name, c->dropout);
        return NULL;
    }
    ax_layer *layer = ax_layer_new(ctx, &ax_attention_ops, name, sizeof(attention));
    if (layer)
        ((attention *)layer)->drop = (ax_drop){c->dropout, ax_rng_key(ctx->seed, name, 0)};
    if (layer && add_projections(layer, name, c) != AX_OK) {
        ax_error_context("attention \"%s\"", name);
        ax_layer_destroy(&layer);
    }
    return layer;
}
