/* An engine that evaluates an open model. */
#ifndef AXONN_INFER_EVALUATE_H
#define AXONN_INFER_EVALUATE_H

#include "axonn/infer.h"

typedef ax_status ax_engine_use_fn(void *user, ax_engine *engine);

/* Creates an engine for evaluations in micro-batches of `batch` rows, loads the weights, and calls `use`.
 * `loki`: what attention layers do (ax_loki_attach), or NULL; if it is the model's, loads its matrices.
 * Collective along the grid. */
AX_MUST_CHECK ax_status ax_pretrained_use_engine(ax_ctx *ctx, const ax_pretrained *model, const ax_loki *loki,
                                                 const ax_row_shape *shape, int64_t batch, bool scores,
                                                 ax_engine_use_fn *use, void *user);

#endif
