/* The key/value cache: the keys and values of all earlier positions, for each attention layer in a tree of
 * layers. */
#include "nn/attention.h"

#include <stdlib.h>

struct ax_kv_cache {
    ax_ctx *ctx;
    ax_layer *root;
    int64_t batch, capacity, length;
    char *block;          /* device memory for the keys and values of all layers */
    size_t bytes, placed; /* size of `block`; bytes of `block` already assigned to layers */
};

typedef ax_status visit_fn(ax_kv_cache *cache, ax_layer *layer, ax_attention_cache *part);

/* Returns true if the layer belongs to this rank's pipeline stage. */
static bool is_here(const ax_layer *layer)
{
    ax_param *first;
    int n = 0;
    ax_layer_params(layer, &first, 1, &n);
    return !n || first->place != AX_PARAM_AWAY;
}

/* Calls `visit` for each attention layer in the tree `layer` that belongs to this rank's pipeline stage,
 * until a call fails. */
static ax_status visit_attention(ax_kv_cache *cache, ax_layer *layer, visit_fn *visit)
{
    if (layer->ops == &ax_attention_ops && is_here(layer))
        AX_TRY(visit(cache, layer, ax_attention_cache_of(layer)));
    for (int i = 0; i < layer->children; i++)
        AX_TRY(visit_attention(cache, layer->child[i], visit));
    return AX_OK;
}

static size_t bytes_of(const ax_kv_cache *cache, const ax_tensor *tensor)
{
    return (size_t)ax_round_up(ax_tensor_bytes(cache->ctx->grid, tensor), 64);
}

static ax_status attach(ax_kv_cache *cache, ax_layer *layer, ax_attention_cache *part)
{
    AX_CHECK(!part->cache, AX_ERR_USAGE,
             "attention \"%s\" already has a key/value cache: destroy that one before creating another",
             layer->name);
    ax_tensor like = ax_attention_cache_tensor(layer, cache->batch, cache->capacity);
    AX_TRY(ax_tensor_check(&like));
    part->cache = cache;
    part->k = part->v = like;
    cache->bytes += 2 * bytes_of(cache, &part->k);
    return AX_OK;
}

static ax_status place(ax_kv_cache *cache, ax_layer *layer, ax_attention_cache *part)
{
    (void)layer;
    part->k.data = cache->block + cache->placed;
    part->v.data = cache->block + cache->placed + bytes_of(cache, &part->k);
    cache->placed += 2 * bytes_of(cache, &part->k);
    return AX_OK;
}

static ax_status detach(ax_kv_cache *cache, ax_layer *layer, ax_attention_cache *part)
{
    (void)layer;
    if (part->cache == cache)
        *part = (ax_attention_cache){0};
    return AX_OK;
}

ax_status ax_kv_cache_create(ax_ctx *ctx, ax_layer *root, int64_t batch, int64_t capacity, ax_kv_cache **out)
{
    *out = NULL;
    ax_kv_cache *cache;
    AX_TRY(ax_calloc(1, sizeof *cache, &cache));
    *cache = (ax_kv_cache){.ctx = ctx, .root = root, .batch = batch, .capacity = capacity};
    ax_status status = visit_attention(cache, root, attach);
    /* On a rank without heads, cache->bytes is 0. An allocation of 0 bytes also gives a pointer that is not
     * NULL, which the layers need. */
    if (status == AX_OK)
        status = ax_ctx_alloc(ctx, cache->bytes, (void **)&cache->block);
    if (status == AX_OK)
        status = visit_attention(cache, root, place);
    if (status != AX_OK)
        ax_kv_cache_destroy(&cache);
    *out = cache;
    return status;
}

void ax_kv_cache_destroy(ax_kv_cache **cache)
{
    ax_kv_cache *c = *cache;
    if (!c)
        return;
    (void)visit_attention(c, c->root, detach); /* detach does not fail */
    if (c->block)
        ax_ctx_free(c->ctx, c->block, c->bytes);
    free(c);
    *cache = NULL;
}

int64_t ax_kv_cache_length(const ax_kv_cache *cache) { return cache->length; }
void ax_kv_cache_advance(ax_kv_cache *cache, int64_t positions) { cache->length += positions; }
void ax_kv_cache_truncate(ax_kv_cache *cache, int64_t positions)
{
    AX_ASSERT(positions >= 0 && positions <= cache->length);
    cache->length = positions;
}
size_t ax_kv_cache_bytes(const ax_kv_cache *cache) { return cache->bytes; }
