/* Shared by the attention layer and the key/value cache. */
#ifndef AXONN_NN_ATTENTION_H
#define AXONN_NN_ATTENTION_H

#include "axonn/nn.h"

extern const ax_layer_ops ax_attention_ops;

/* Returns the tensor [batch, capacity, kv width] of an attention layer's keys or values, without data. */
ax_tensor ax_attention_cache_tensor(const ax_layer *layer, int64_t batch, int64_t capacity);

/* The cached keys and values of `layer`; AX_ERR_INTERNAL if the cache was made for another tree. */
ax_status ax_kv_cache_find(const struct ax_kv_cache *cache, const ax_layer *layer, ax_tensor *k,
                           ax_tensor *v);

#endif
