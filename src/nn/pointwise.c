/* Layers around operations that keep the layout: LayerNorm, activations, dropout. */
#include "axonn/nn.h"

#include <stdio.h>

/* ---- LayerNorm: saves x and its statistics ---- */

typedef struct layernorm {
    ax_layer base;
    double eps;
} layernorm;

enum { WEIGHT, BIAS };

static ax_status layernorm_forward_sum(ax_layer *self, ax_frame *frame, const ax_tensor *a,
                                       const ax_tensor *b, ax_tensor *x, ax_tensor *y)
{
    ax_tensor stats;
    AX_TRY(ax_op_layernorm(frame, a, b, self->param[WEIGHT], self->param[BIAS], ((layernorm *)self)->eps, x,
                           y, &stats));
    AX_TRY(ax_frame_save(frame, x));
    return ax_frame_save(frame, &stats);
}

static ax_status layernorm_forward(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y)
{
    ax_tensor same;
    return layernorm_forward_sum(self, frame, x, NULL, &same, y);
}

static ax_status layernorm_backward_add(ax_layer *self, ax_frame *frame, const ax_tensor *dy,
                                        const ax_tensor *add, ax_tensor *dx)
{
    ax_tensor x, stats;
    AX_TRY(ax_frame_restore(frame, &stats));
    AX_TRY(ax_frame_restore(frame, &x));
    return ax_op_layernorm_grad(frame, &x, &stats, dy, add, self->param[WEIGHT], self->param[BIAS],
                                ((layernorm *)self)->eps, dx);
}

static ax_status layernorm_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx)
{
    return layernorm_backward_add(self, frame, dy, NULL, dx);
}

static const ax_layer_ops layernorm_ops = {.kind = "layernorm",
                                           .forward = layernorm_forward,
                                           .backward = layernorm_backward,
                                           .forward_sum = layernorm_forward_sum,
                                           .backward_add = layernorm_backward_add};

ax_layer *ax_layernorm(ax_ctx *ctx, const char *name, int64_t width, ax_role role, double eps)
{
    ax_layer *layer = ax_layer_new(ctx, &layernorm_ops, name, sizeof(layernorm));
    if (!layer)
        return NULL;
    ((layernorm *)layer)->eps = eps;
    char weight[256], bias[256];
    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    if (ax_param_create(ctx, weight, 1, &width, NULL, &role, AX_INIT_ONE, 0, &layer->param[WEIGHT]) !=
            AX_OK ||
        ax_param_create(ctx, bias, 1, &width, NULL, &role, AX_INIT_ZERO, 0, &layer->param[BIAS]) != AX_OK)
        ax_layer_destroy(&layer);
    return layer;
}

/* ---- activations: save x ---- */

typedef struct activation {
    ax_layer base;
    ax_activation kind;
} activation;

static ax_status activation_forward(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y)
{
    AX_TRY(ax_op_activation(frame, x, ((activation *)self)->kind, y));
    return ax_frame_save(frame, x);
}

static ax_status activation_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx)
{
    ax_tensor x;
    AX_TRY(ax_frame_restore(frame, &x));
    return ax_op_activation_grad(frame, &x, dy, ((activation *)self)->kind, dx);
}

static const ax_layer_ops activation_ops = {
    .kind = "activation", .forward = activation_forward, .backward = activation_backward};

static ax_layer *new_activation(ax_ctx *ctx, const char *name, ax_activation kind)
{
    ax_layer *layer = ax_layer_new(ctx, &activation_ops, name, sizeof(activation));
    if (layer)
        ((activation *)layer)->kind = kind;
    return layer;
}

ax_layer *ax_gelu(ax_ctx *ctx, const char *name, ax_activation form)
{
    if (form != AX_GELU_TANH && form != AX_GELU_EXACT) {
        ax_fail(AX_ERR_USAGE, "gelu \"%s\": the form is neither AX_GELU_TANH nor AX_GELU_EXACT", name);
        return NULL;
    }
    return new_activation(ctx, name, form);
}

ax_layer *ax_relu(ax_ctx *ctx, const char *name) { return new_activation(ctx, name, AX_RELU); }

ax_layer *ax_tanh(ax_ctx *ctx, const char *name) { return new_activation(ctx, name, AX_TANH); }

ax_layer *ax_silu(ax_ctx *ctx, const char *name) { return new_activation(ctx, name, AX_SILU); }

/* ---- dropout: saves nothing; backward draws the same mask again ---- */

typedef struct dropout {
    ax_layer base;
    ax_drop drop;
} dropout;

static ax_status dropout_apply(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y)
{
    const ax_drop *drop = &((dropout *)self)->drop;
    *y = *x;
    return ax_frame_training(frame) && drop->p > 0 ? ax_op_dropout(frame, x, drop, y) : AX_OK;
}

static const ax_layer_ops dropout_ops = {
    .kind = "dropout", .forward = dropout_apply, .backward = dropout_apply};

ax_layer *ax_dropout(ax_ctx *ctx, const char *name, double p)
{
    if (!(p >= 0 && p <= 1)) {
        ax_fail(AX_ERR_USAGE, "dropout \"%s\": p = %g is not in [0, 1]", name, p);
        return NULL;
    }
    ax_layer *layer = ax_layer_new(ctx, &dropout_ops, name, sizeof(dropout));
    if (layer)
        ((dropout *)layer)->drop = (ax_drop){p, ax_rng_key(ctx->seed, name, 0)};
    return layer;
}
