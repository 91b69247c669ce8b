/* The key/value cache: the keys and values of all earlier positions, for each attention layer in a tree of
 * layers. */
#include "nn/attention.h"

#include <stdlib.h>

struct ax_kv_cache {
    ax_ctx *ctx;
    ax_layer *root;
    int64_t sequences, capacity;
    int64_t sequence, first;  /* ax_kv_cache_set */
    bool chooses;             /* ax_kv_cache_choose */
    int64_t from, to, copied; /* arguments of the running ax_kv_cache_copy */
    char *block;              /* device memory for the keys and values of all layers */
    size_t bytes, placed;     /* size of `block`; bytes of `block` already assigned to layers */
};

typedef ax_status visit_fn(ax_kv_cache *cache, ax_layer *layer, ax_attention_cache *part);

bool ax_attention_is_here(const ax_layer *layer)
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
    if (layer->ops == &ax_attention_ops && ax_attention_is_here(layer))
        AX_TRY(visit(cache, layer, ax_attention_cache_of(layer)));
    for (int i = 0; i < layer->children; i++)
        AX_TRY(visit_attention(cache, layer->child[i], visit));
    return AX_OK;
}

static size_t bytes_of(const ax_kv_cache *cache, const ax_tensor *tensor)
{
    return (size_t)ax_round_up(ax_tensor_bytes(cache->ctx->grid, tensor), 64);
}

static size_t low_bytes(const ax_kv_cache *cache, const ax_attention_cache *part)
{
    return part->low.ndim ? bytes_of(cache, &part->low) : 0;
}

static ax_status attach(ax_kv_cache *cache, ax_layer *layer, ax_attention_cache *part)
{
    AX_CHECK(!part->cache, AX_ERR_USAGE,
             "attention \"%s\" already has a key/value cache: destroy that one before creating another",
             layer->name);
    ax_tensor like = ax_attention_cache_tensor(layer, cache->sequences, cache->capacity);
    AX_TRY(ax_tensor_check(&like));
    part->cache = cache;
    part->k = part->v = like;
    part->low = ax_attention_cache_low(layer, cache->sequences, cache->capacity);
    AX_TRY(ax_tensor_check(&part->low));
    cache->bytes += 2 * bytes_of(cache, &part->k) + low_bytes(cache, part);
    return AX_OK;
}

static ax_status place(ax_kv_cache *cache, ax_layer *layer, ax_attention_cache *part)
{
    (void)layer;
    part->k.data = cache->block + cache->placed;
    part->v.data = cache->block + cache->placed + bytes_of(cache, &part->k);
    cache->placed += 2 * bytes_of(cache, &part->k);
    part->low.data = part->low.ndim ? cache->block + cache->placed : NULL;
    cache->placed += low_bytes(cache, part);
    return AX_OK;
}

static ax_status detach(ax_kv_cache *cache, ax_layer *layer, ax_attention_cache *part)
{
    (void)layer;
    if (part->cache == cache)
        *part = (ax_attention_cache){0};
    return AX_OK;
}

/* Copies the elements by which queries choose, of all key heads at once. */
static ax_status copy_low(const ax_kv_cache *cache, const ax_layer *layer, const ax_tensor *low)
{
    if (!low->ndim)
        return AX_OK;
    const ax_grid *grid = cache->ctx->grid;
    const int64_t heads = ax_tensor_extent(grid, low, 0), sequences = ax_tensor_extent(grid, low, 1),
                  each = cache->capacity * low->dim[3], bytes = each * (int64_t)ax_dtype_size(low->dtype);
    return ax_run_copy_box(layer->ctx->stream,
                           &(ax_copy_box_args){.n = {1, 1, heads, cache->copied * low->dim[3]},
                                               .x_stride = {0, 0, sequences * each, 1},
                                               .y_stride = {0, 0, sequences * each, 1},
                                               .x = (const char *)low->data + cache->from * bytes,
                                               .y = (char *)low->data + cache->to * bytes,
                                               .dtype = low->dtype});
}

/* Copies a layer's keys and values of one sequence to another. */
static ax_status copy_sequence(ax_kv_cache *cache, ax_layer *layer, ax_attention_cache *part)
{
    const ax_grid *grid = cache->ctx->grid;
    const ax_tensor *both[] = {&part->k, &part->v};
    const int64_t width = ax_tensor_extent(grid, &part->k, 2), size = (int64_t)ax_dtype_size(part->k.dtype),
                  bytes = cache->capacity * width * size;
    for (int i = 0; i < 2; i++)
        AX_TRY(ax_run_convert(layer->ctx->stream,
                              &(ax_convert_args){.n = cache->copied * width,
                                                 .x = (const char *)both[i]->data + cache->from * bytes,
                                                 .y = (char *)both[i]->data + cache->to * bytes,
                                                 .x_dtype = part->k.dtype,
                                                 .y_dtype = part->k.dtype}));
    return copy_low(cache, layer, &part->low);
}

ax_status ax_kv_cache_create(ax_ctx *ctx, ax_layer *root, int64_t sequences, int64_t capacity,
                             ax_kv_cache **out)
{
    *out = NULL;
    ax_kv_cache *cache;
    AX_TRY(ax_calloc(1, sizeof *cache, &cache));
    *cache = (ax_kv_cache){.ctx = ctx, .root = root, .sequences = sequences, .capacity = capacity};
    ax_status status = visit_attention(cache, root, attach);
    /* On a rank without heads, cache->bytes is 0. An allocation of 0 bytes also gives a pointer that is not
     * NULL, which the layers need. */
    if (status == AX_OK)
        status = ax_ctx_alloc(ctx, AX_MEMORY_CACHE, cache->bytes, (void **)&cache->block);
    if (status == AX_OK)
        status = visit_attention(cache, root, place);
    if (status == AX_OK)
        status = ax_run_fill(ctx->stream,
                             &(ax_fill_args){.n = (int64_t)cache->bytes, .y = cache->block, .dtype = AX_U8});
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
        ax_ctx_free(c->ctx, AX_MEMORY_CACHE, c->block, c->bytes);
    free(c);
    *cache = NULL;
}

void ax_kv_cache_set(ax_kv_cache *cache, int64_t sequence, int64_t first)
{
    AX_ASSERT(sequence >= 0 && sequence < cache->sequences);
    cache->sequence = sequence;
    cache->first = first;
}

ax_status ax_kv_cache_copy(ax_kv_cache *cache, int64_t from, int64_t to, int64_t positions)
{
    AX_ASSERT(from != to && positions >= 0 && positions <= cache->capacity);
    cache->from = from;
    cache->to = to;
    cache->copied = positions;
    return visit_attention(cache, cache->root, copy_sequence);
}

void ax_kv_cache_choose(ax_kv_cache *cache, bool choose) { cache->chooses = choose; }

bool ax_kv_cache_chooses(const ax_kv_cache *cache) { return cache->chooses; }
int64_t ax_kv_cache_sequence(const ax_kv_cache *cache) { return cache->sequence; }
int64_t ax_kv_cache_first(const ax_kv_cache *cache) { return cache->first; }

size_t ax_kv_cache_bytes(const ax_kv_cache *cache) { return cache->bytes; }
