/* The MLP of a transformer block: up, activation, down. The activation and its derivative are fused with the
 * GEMMs, because the activations between up and down are the widest of a block and costly to read and write
 * again. */
#include "nn/linear.h"

#include <stdio.h>

typedef struct mlp {
    ax_layer base; /* children: UP, DOWN */
    ax_activation activation;
} mlp;

enum { UP, DOWN };

static ax_status mlp_forward(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y)
{
    ax_tensor preact, h;
    AX_TRY(ax_linear_forward_activation(self->child[UP], frame, x, ((mlp *)self)->activation, &preact, &h));
    AX_TRY(ax_frame_save(frame, &preact));
    return ax_layer_forward(self->child[DOWN], frame, &h, y);
}

static ax_status mlp_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx)
{
    ax_tensor dpre;
    AX_TRY(ax_linear_backward_activation(self->child[DOWN], frame, dy, ((mlp *)self)->activation, &dpre));
    return ax_layer_backward(self->child[UP], frame, &dpre, dx);
}

static const ax_layer_ops mlp_ops = {.kind = "mlp", .forward = mlp_forward, .backward = mlp_backward};

static ax_status add_linear(ax_layer *self, const char *part, const ax_linear_config *config)
{
    char full[256];
    snprintf(full, sizeof full, "%s.%s", self->name, part);
    return ax_layer_add(self, ax_linear(self->ctx, full, config));
}

ax_layer *ax_mlp(ax_ctx *ctx, const char *name, const ax_mlp_config *c)
{
    ax_layer *layer = ax_layer_new(ctx, &mlp_ops, name, sizeof(mlp));
    ax_linear_config up = {.in = c->width,
                           .out = c->ffn,
                           .in_role = AX_ROLE_MODEL,
                           .out_role = AX_ROLE_INNER,
                           .init_std = c->init_std,
                           .no_bias = c->no_bias};
    ax_linear_config down = {.in = c->ffn,
                             .out = c->width,
                             .in_role = AX_ROLE_INNER,
                             .out_role = AX_ROLE_MODEL,
                             .init_std = c->down_init_std,
                             .no_bias = c->no_bias};
    if (!layer)
        return NULL;
    ((mlp *)layer)->activation = c->activation;
    if (add_linear(layer, "up", &up) != AX_OK || add_linear(layer, "down", &down) != AX_OK)
        ax_layer_destroy(&layer);
    return layer;
}
