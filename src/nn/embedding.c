/* The embedding of tokens, plus an embedding of positions if the layer has a table of positions. */
#include "axonn/nn.h"

#include <stdio.h>

typedef struct embedding {
    ax_layer base;
    ax_layout y_layout;
} embedding;

enum { TOKENS, POSITIONS };

static ax_status need_batch(const ax_layer *self, const ax_frame *frame)
{
    AX_CHECK(ax_frame_batch(frame), AX_ERR_USAGE,
             "embedding \"%s\" needs a batch: give one to ax_frame_begin", self->name);
    return AX_OK;
}

static ax_status embedding_forward(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y)
{
    (void)x;
    AX_TRY(need_batch(self, frame));
    const ax_batch *batch = ax_frame_batch(frame);
    ax_tensor partial;
    AX_TRY(ax_op_embedding(frame, &batch->tokens, self->param[TOKENS], false, &partial));
    AX_TRY(ax_settle(frame, &partial, &((embedding *)self)->y_layout, y));
    if (self->param[POSITIONS])
        AX_TRY(ax_op_embedding(frame, &batch->positions, self->param[POSITIONS], true, y));
    return AX_OK;
}

static ax_status embedding_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx)
{
    const ax_batch *batch = ax_frame_batch(frame);
    ax_tensor rows; /* dy, with its last dim split along the same grid axes as the width of the token table */
    ax_layout layout = dy->layout;
    layout.dim[2] = self->param[TOKENS]->use.dim[1];
    if (dx)
        *dx = (ax_tensor){0};
    if (!ax_layer_trains(self))
        return AX_OK;
    AX_TRY(ax_settle(frame, dy, &layout, &rows));
    AX_TRY(ax_op_embedding_grad(frame, &batch->tokens, &rows, self->param[TOKENS]));
    if (self->param[POSITIONS])
        AX_TRY(ax_op_embedding_grad(frame, &batch->positions, dy, self->param[POSITIONS]));
    return AX_OK;
}

static const ax_layer_ops embedding_ops = {
    .kind = "embedding", .forward = embedding_forward, .backward = embedding_backward};

static ax_status declare(embedding *e, const char *name, const ax_embedding_config *c)
{
    char full[256];
    e->y_layout = ax_activation_layout(e->base.ctx, AX_ROLE_MODEL);
    snprintf(full, sizeof full, "%s.tokens", name);
    AX_TRY(ax_param_create(e->base.ctx, full, 2, (int64_t[]){c->vocab, c->width},
                           (int64_t[]){ax_vocab_unit(e->base.ctx, c->vocab), 1},
                           (ax_role[]){AX_ROLE_VOCAB, AX_ROLE_MODEL}, AX_INIT_NORMAL, c->init_std,
                           &e->base.param[TOKENS]));
    ax_param_pad_rows(e->base.param[TOKENS], ax_vocab_pad(e->base.ctx)); /* a tied head uses the table too */
    if (!c->positions)
        return AX_OK;
    snprintf(full, sizeof full, "%s.positions", name);
    return ax_param_create(e->base.ctx, full, 2, (int64_t[]){c->positions, c->width}, NULL,
                           (ax_role[]){AX_ROLE_NONE, AX_ROLE_MODEL}, AX_INIT_NORMAL, c->init_std,
                           &e->base.param[POSITIONS]);
}

ax_layer *ax_embedding(ax_ctx *ctx, const char *name, const ax_embedding_config *config)
{
    ax_layer *layer = ax_layer_new(ctx, &embedding_ops, name, sizeof(embedding));
    if (layer && declare((embedding *)layer, name, config) != AX_OK)
        ax_layer_destroy(&layer);
    return layer;
}
