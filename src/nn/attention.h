/* Declarations that the attention layer and the key/value cache share. */
#ifndef AXONN_NN_ATTENTION_H
#define AXONN_NN_ATTENTION_H

#include "axonn/nn.h"

extern const ax_layer_ops ax_attention_ops;

/* Returns, as a tensor without data, the shape and layout of an attention layer's cache of keys, [sequences,
 * capacity, kv_heads · head_dim]. The cache of values has the same shape and layout. */
ax_tensor ax_attention_cache_tensor(const ax_layer *layer, int64_t sequences, int64_t capacity);

/* The part of a key/value cache that belongs to one attention layer. `cache` is NULL if the layer has no
 * cache. */
typedef struct ax_attention_cache {
    const ax_kv_cache *cache;
    ax_tensor k, v;
} ax_attention_cache;
ax_attention_cache *ax_attention_cache_of(ax_layer *layer);
/* Returns what ax_kv_cache_set has set. */
int64_t ax_kv_cache_sequence(const ax_kv_cache *cache);
int64_t ax_kv_cache_first(const ax_kv_cache *cache);

#endif
