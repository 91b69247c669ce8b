/* The costs of a model's blocks, by which the model is cut into pipeline stages. */
#ifndef AXONN_ENGINE_COSTS_H
#define AXONN_ENGINE_COSTS_H

#include "axonn/engine.h"

/* Counts what the embedding, each block, and the final norm with the head cost in a training step (in an
 * evaluation if options->optim is NULL), so that the model can be cut by these costs (ax_model_use.costs).
 * *out has options->model->layers + 2 integers, whose sum is about 2^40; the caller frees them. *out is NULL
 * if no costs are needed, because the grid of `ctx` has one stage, or the context says where stages begin
 * (key pipe.cut). All ranks get the same costs. Not collective. */
AX_MUST_CHECK ax_status ax_block_costs(const ax_ctx *ctx, const ax_engine_options *options, int64_t **out);

#endif
