/* The key/value cache: keys and values of earlier positions for each attention layer of a tree. */
#include "nn/attention.h"

#include <stdlib.h>

typedef struct entry {
    const ax_layer *layer;
    ax_tensor k, v;
} entry;

struct ax_kv_cache {
    ax_ctx *ctx;
    int64_t length;
    int n;
    entry *entries; /* sorted by layer */
    size_t bytes;
    char *block;
};

static int count_attention(const ax_layer *layer)
{
    int n = layer->ops == &ax_attention_ops;
    for (int i = 0; i < layer->children; i++)
        n += count_attention(layer->child[i]);
    return n;
}

/* Adds an entry for each attention layer of the tree, and the bytes of its tensors to cache->bytes. */
static void add_entries(ax_kv_cache *cache, const ax_layer *layer, int64_t batch, int64_t capacity)
{
    if (layer->ops == &ax_attention_ops) {
        ax_tensor t = ax_attention_cache_tensor(layer, batch, capacity);
        cache->entries[cache->n++] = (entry){layer, t, t};
        cache->bytes += 2 * (size_t)ax_round_up(ax_tensor_bytes(cache->ctx->grid, &t), 64);
    }
    for (int i = 0; i < layer->children; i++)
        add_entries(cache, layer->child[i], batch, capacity);
}

static int by_layer(const void *x, const void *y)
{
    uintptr_t a = (uintptr_t)((const entry *)x)->layer, b = (uintptr_t)((const entry *)y)->layer;
    return (a > b) - (a < b);
}

ax_status ax_kv_cache_create(ax_ctx *ctx, const ax_layer *root, int64_t batch, int64_t capacity,
                             ax_kv_cache **out)
{
    ax_kv_cache *cache;
    AX_TRY(ax_calloc(1, sizeof *cache, &cache));
    cache->ctx = ctx;
    ax_status status = ax_calloc((size_t)count_attention(root), sizeof *cache->entries, &cache->entries);
    if (status == AX_OK) {
        add_entries(cache, root, batch, capacity);
        status = ax_device_alloc(ctx->dev, cache->bytes, (void **)&cache->block);
    }
    if (status != AX_OK) {
        ax_kv_cache_destroy(&cache);
        return status;
    }
    char *at = cache->block;
    for (int i = 0; i < cache->n; i++) {
        size_t size = (size_t)ax_round_up(ax_tensor_bytes(ctx->grid, &cache->entries[i].k), 64);
        cache->entries[i].k.data = at;
        cache->entries[i].v.data = at + size;
        at += 2 * size;
    }
    qsort(cache->entries, (size_t)cache->n, sizeof *cache->entries, by_layer);
    *out = cache;
    return AX_OK;
}

void ax_kv_cache_destroy(ax_kv_cache **cache)
{
    if (!*cache)
        return;
    if ((*cache)->block)
        ax_device_free((*cache)->ctx->dev, (*cache)->block, (*cache)->bytes);
    free((*cache)->entries);
    free(*cache);
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

ax_status ax_kv_cache_find(const ax_kv_cache *cache, const ax_layer *layer, ax_tensor *k, ax_tensor *v)
{
    const entry *found = cache->n ? bsearch(&(entry){.layer = layer}, cache->entries, (size_t)cache->n,
                                            sizeof *cache->entries, by_layer)
                                  : NULL;
    AX_CHECK(found, AX_ERR_INTERNAL,
             "the key/value cache has no attention layer \"%s\": it was created for another network",
             layer->name);
    *k = found->k;
    *v = found->v;
    return AX_OK;
}
