/* The table of rotary position embeddings, for attention layers. */
#ifndef AXONN_NN_ROPE_H
#define AXONN_NN_ROPE_H

#include "axonn/nn.h"

/* Makes the table of cosines and sines for positions 0 … positions-1: F32 [positions, head_dim/2, 2], in
 * device memory. The caller frees it with ax_rope_table_free. */
ax_status ax_rope_table_make(ax_ctx *ctx, const ax_rope_config *config, int64_t head_dim, int64_t positions,
                             ax_tensor *out);
void ax_rope_table_free(ax_ctx *ctx, ax_tensor *table);
size_t ax_rope_table_bytes(const ax_tensor *table);

#endif
