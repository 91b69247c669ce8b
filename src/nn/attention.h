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
    ax_tensor low; /* the first elements of each key head, [kv_heads, sequences, capacity, dims], by which
                      queries choose keys (ax_loki.dims); ndim 0: they choose by k */
} ax_attention_cache;
ax_attention_cache *ax_attention_cache_of(ax_layer *layer);
/* Returns, without data, the shape and layout of ax_attention_cache.low; ndim 0: there is none. */
ax_tensor ax_attention_cache_low(const ax_layer *layer, int64_t sequences, int64_t capacity);
/* Returns what ax_kv_cache_set has set. */
int64_t ax_kv_cache_sequence(const ax_kv_cache *cache);
int64_t ax_kv_cache_first(const ax_kv_cache *cache);
bool ax_kv_cache_chooses(const ax_kv_cache *cache);

/* Returns true if the layer belongs to this rank's pipeline stage. */
bool ax_attention_is_here(const ax_layer *layer);
/* Sets what the layer does (ax_loki_attach), and allocates its tensor. */
ax_status ax_attention_attach(ax_layer *layer, const ax_loki *how);
/* Returns the layer's tensor (ax_loki_attach); ndim 0: none. */
ax_tensor *ax_attention_matrix(ax_layer *layer);

#endif
