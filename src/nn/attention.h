/* Shared by the attention layer and the key/value cache. */
#ifndef AXONN_NN_ATTENTION_H
#define AXONN_NN_ATTENTION_H

#include "axonn/nn.h"

extern const ax_layer_ops ax_attention_ops;

/* Returns the tensor [batch, capacity, kv width] of an attention layer's keys or values, without data. */
ax_tensor ax_attention_cache_tensor(const ax_layer *layer, int64_t batch, int64_t capacity);

/* The part of a cache that belongs to an attention layer. `cache` is NULL if the layer has no cache. */
typedef struct ax_attention_cache {
    const ax_kv_cache *cache;
    ax_tensor k, v;
} ax_attention_cache;
ax_attention_cache *ax_attention_cache_of(ax_layer *layer);

#endif
