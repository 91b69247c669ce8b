/* The embedding of tokens, plus an embedding of positions if the layer has a table of positions, plus the
 * low-rank update of the token table if it has one. */
#include "axonn/nn.h"

#include <stdio.h>

typedef struct embedding {
    ax_layer base;
    ax_layout y_layout;
    ax_low_rank update; /* of the token table; rank 0: none */
} embedding;

enum { TOKENS, POSITIONS, LORA_A = AX_LINEAR_LORA_A, LORA_B = AX_LINEAR_LORA_B };

static ax_status need_batch(const ax_layer *self, const ax_frame *frame)
{
    AX_CHECK(ax_frame_batch(frame), AX_ERR_USAGE,
             "embedding \"%s\" needs a batch: give one to ax_frame_begin", self->name);
    return AX_OK;
}

/* ---- the low-rank update: scale · a[tokens]·Bᵀ, where the rows of a, the transpose of factor A, are looked
 * up ---- */

/* Reduces a partial sum [b, t, rank] over ranks, and multiplies it by the scale of the update. */
static ax_status finish_narrow(const ax_layer *self, ax_frame *frame, const ax_tensor *partial,
                               ax_tensor *out)
{
    ax_layout whole = partial->layout;
    bool changed;
    whole.partial = 0;
    AX_TRY(ax_settle(frame, partial, &whole, out));
    AX_TRY(ax_frame_change(frame, out, &changed));
    ax_scale_args scale = {.n = ax_tensor_count(self->ctx->grid, out),
                           .factor = ((const embedding *)self)->update.scale,
                           .x = out->data,
                           .dtype = out->dtype};
    return scale.n && scale.factor != 1 && !changed ? ax_run_scale(self->ctx->stream, &scale) : AX_OK;
}

/* Adds the update to y, and saves u = scale · a[tokens] for backward. */
static ax_status add_update(ax_layer *self, ax_frame *frame, const ax_tensor *y)
{
    ax_tensor partial, u, b;
    bool changed;
    if (!((const embedding *)self)->update.rank)
        return AX_OK;
    AX_TRY(ax_op_embedding(frame, &ax_frame_batch(frame)->tokens, self->param[LORA_A], false, &partial));
    AX_TRY(finish_narrow(self, frame, &partial, &u));
    AX_TRY(ax_param_acquire(frame, self->param[LORA_B], &b));
    AX_TRY(ax_frame_change(frame, y, &changed));
    if (!changed)
        AX_TRY(ax_contract_run(frame, "btr,or->bto", &u, &b, NULL, true, y));
    return ax_frame_save(frame, &u);
}

static ax_status update_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy)
{
    ax_tensor u, b, partial, v;
    if (!((const embedding *)self)->update.rank)
        return AX_OK;
    AX_TRY(ax_frame_restore(frame, &u));
    AX_TRY(ax_param_acquire(frame, self->param[LORA_B], &b));
    AX_TRY(ax_contract(frame, "bto,or->btr", dy, &b, NULL, &partial));
    AX_TRY(finish_narrow(self, frame, &partial, &v));
    AX_TRY(ax_param_accumulate(frame, self->param[LORA_B], "bto,btr->or", dy, &u));
    return ax_op_embedding_grad(frame, &ax_frame_batch(frame)->tokens, &v, self->param[LORA_A]);
}

/* ---- forward and backward ------------------------------------------------------------------------ */

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
    return add_update(self, frame, y);
}

static ax_status tables_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy)
{
    const ax_batch *batch = ax_frame_batch(frame);
    ax_tensor rows; /* dy, with its last dim split along the same grid axes as the width of the token table */
    ax_layout layout = dy->layout;
    layout.dim[2] = self->param[TOKENS]->use.dim[1];
    if (!self->param[TOKENS]->frozen) {
        AX_TRY(ax_settle(frame, dy, &layout, &rows));
        AX_TRY(ax_op_embedding_grad(frame, &batch->tokens, &rows, self->param[TOKENS]));
    }
    return self->param[POSITIONS] ? ax_op_embedding_grad(frame, &batch->positions, dy, self->param[POSITIONS])
                                  : AX_OK;
}

static ax_status embedding_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx)
{
    if (dx)
        *dx = (ax_tensor){0};
    if (!ax_layer_trains(self))
        return AX_OK;
    AX_TRY(update_backward(self, frame, dy));
    return tables_backward(self, frame, dy);
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

ax_status ax_embedding_add_low_rank(ax_layer *layer, const ax_low_rank *update)
{
    char name[2][256];
    embedding *e = (embedding *)layer;
    ax_ctx *ctx = layer->ctx;
    AX_CHECK(layer->ops == &embedding_ops && !e->update.rank, AX_ERR_INTERNAL,
             "ax_embedding_add_low_rank: layer \"%s\" is not an embedding, or has a low-rank update already",
             layer->name);
    const int64_t *dim = layer->param[TOKENS]->rest.dim, rank = update->rank;
    AX_CHECK(rank >= 1, AX_ERR_USAGE,
             "embedding \"%s\": the rank of a low-rank update is %lld, but must be at least 1", layer->name,
             (long long)rank);
    snprintf(name[0], sizeof name[0], "%s.lora_A", layer->name);
    snprintf(name[1], sizeof name[1], "%s.lora_B", layer->name);
    AX_TRY(ax_param_create(ctx, name[0], 2, (int64_t[]){dim[0], rank},
                           (int64_t[]){ax_vocab_unit(ctx, dim[0]), 1},
                           (ax_role[]){AX_ROLE_VOCAB, AX_ROLE_NONE}, AX_INIT_ZERO, 0, &layer->param[LORA_A]));
    AX_TRY(ax_param_create(ctx, name[1], 2, (int64_t[]){dim[1], rank}, NULL,
                           (ax_role[]){AX_ROLE_MODEL, AX_ROLE_NONE}, AX_INIT_NORMAL, 1,
                           &layer->param[LORA_B]));
    e->update = *update;
    return AX_OK;
}
