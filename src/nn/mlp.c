/* The MLP of a transformer block: up, activation, down; or gated: down(activation(gate) · up). In the MLP
 * without a gate, epilogues of the GEMMs apply the activation and its derivative: the tensors between up and
 * down are the widest of a block, so another pass over their memory would be costly. */
#include "nn/linear.h"

#include <stdio.h>

typedef struct mlp {
    ax_layer base; /* children: UP; if gated also GATE; the last one is down */
    ax_activation activation;
} mlp;

enum { UP, GATE, GATED }; /* indices of children; GATED: number of layers that read x in a gated MLP */

static ax_layer *down_of(const ax_layer *self) { return self->child[self->children - 1]; }

/* ---- plain: the activation is fused with the GEMMs ---- */

static ax_status plain_forward(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y)
{
    ax_tensor preact, h;
    AX_TRY(ax_linear_forward_activation(self->child[UP], frame, x, ((mlp *)self)->activation, &preact, &h));
    AX_TRY(ax_frame_save(frame, &preact));
    return ax_layer_forward(down_of(self), frame, &h, y);
}

static ax_status plain_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx)
{
    ax_tensor dpre;
    if (!dx && !ax_layer_trains(self->child[UP]))
        return ax_layer_backward(down_of(self), frame, dy, NULL);
    AX_TRY(ax_linear_backward_activation(down_of(self), frame, dy, ((mlp *)self)->activation, &dpre));
    return ax_layer_backward(self->child[UP], frame, &dpre, dx);
}

static const ax_layer_ops plain_ops = {.kind = "mlp", .forward = plain_forward, .backward = plain_backward};

/* ---- gated: y = down(activation(gate(x)) · up(x)) ---- */

static ax_status gated_forward(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y)
{
    ax_tensor in[GATED], h;
    AX_TRY(ax_linear_forward_shared(self->child, GATED, frame, x, true, in));
    AX_TRY(ax_op_glu(frame, &in[GATE], &in[UP], ((mlp *)self)->activation, &h));
    AX_TRY(ax_frame_save(frame, &in[GATE]));
    AX_TRY(ax_frame_save(frame, &in[UP]));
    return ax_layer_forward(down_of(self), frame, &h, y);
}

/* Runs backward of down, then of up and gate together: they have the same input, so their input gradients are
 * added before they are reduced over ranks. */
static ax_status gated_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx)
{
    ax_tensor grad[GATED]; /* outputs of up and gate, which ax_op_glu_grad overwrites with their gradients */
    ax_tensor dh;
    if (!dx && !ax_layer_trains(self->child[UP]) && !ax_layer_trains(self->child[GATE]))
        return ax_layer_backward(down_of(self), frame, dy, NULL);
    AX_TRY(ax_layer_backward(down_of(self), frame, dy, &dh));
    AX_TRY(ax_frame_restore(frame, &grad[UP]));
    AX_TRY(ax_frame_restore(frame, &grad[GATE]));
    AX_TRY(ax_op_glu_grad(frame, &grad[GATE], &grad[UP], &dh, ((mlp *)self)->activation));
    return ax_linear_backward_shared(self->child, GATED, frame, grad, dx);
}

static const ax_layer_ops gated_ops = {.kind = "mlp", .forward = gated_forward, .backward = gated_backward};

/* ---- construction ---- */

static ax_status add_linear(ax_layer *self, const char *part, const ax_linear_config *config)
{
    char full[256];
    snprintf(full, sizeof full, "%s.%s", self->name, part);
    return ax_layer_add(self, ax_linear(self->ctx, full, config));
}

static ax_status add_parts(ax_layer *self, const ax_mlp_config *c)
{
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
    AX_TRY(add_linear(self, "up", &up));
    if (c->gated) {
        AX_TRY(add_linear(self, "gate", &up));
        ax_linear_join(self->child, GATED);
    }
    return add_linear(self, "down", &down);
}

ax_layer *ax_mlp(ax_ctx *ctx, const char *name, const ax_mlp_config *c)
{
    ax_layer *layer = ax_layer_new(ctx, c->gated ? &gated_ops : &plain_ops, name, sizeof(mlp));
    if (!layer)
        return NULL;
    ((mlp *)layer)->activation = c->activation;
    if (add_parts(layer, c) != AX_OK)
        ax_layer_destroy(&layer);
    return layer;
}
