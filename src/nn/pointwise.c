/* Layers that call one operation each and keep the layout of x: norms, activations, dropout. */
#include "axonn/nn.h"

#include <stdio.h>

/* ---- norms: save x and its statistics ---- */

typedef struct norm {
    ax_layer base;
    ax_norm_kind kind;
    double eps;
} norm;

enum { WEIGHT, BIAS };

static ax_norm_of norm_of(const ax_layer *self)
{
    const norm *n = (const norm *)self;
    return (ax_norm_of){n->kind, n->eps, self->param[WEIGHT], self->param[BIAS]};
}

static ax_status norm_forward_sum(ax_layer *self, ax_frame *frame, const ax_tensor *a, const ax_tensor *b,
                                  ax_tensor *x, ax_tensor *y)
{
    ax_tensor stats;
    const ax_norm_of of = norm_of(self);
    AX_TRY(ax_op_norm(frame, &of, a, b, x, y, &stats));
    AX_TRY(ax_frame_save(frame, x));
    return ax_frame_save(frame, &stats);
}

static ax_status norm_forward(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y)
{
    ax_tensor same;
    return norm_forward_sum(self, frame, x, NULL, &same, y);
}

static ax_status norm_backward_add(ax_layer *self, ax_frame *frame, const ax_tensor *dy, const ax_tensor *add,
                                   ax_tensor *dx)
{
    ax_tensor x, stats, unused;
    const ax_norm_of of = norm_of(self);
    AX_TRY(ax_frame_restore(frame, &stats));
    AX_TRY(ax_frame_restore(frame, &x));
    return ax_op_norm_grad(frame, &of, &x, &stats, dy, add, dx ? dx : &unused);
}

static ax_status norm_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx)
{
    return norm_backward_add(self, frame, dy, NULL, dx);
}

static const ax_layer_ops norm_ops = {.kind = "norm",
                                      .forward = norm_forward,
                                      .backward = norm_backward,
                                      .forward_sum = norm_forward_sum,
                                      .backward_add = norm_backward_add};

static ax_status declare_norm(ax_layer *layer, int64_t width, int64_t unit, ax_role role)
{
    char full[256];
    snprintf(full, sizeof full, "%s.weight", layer->name);
    AX_TRY(ax_param_create(layer->ctx, full, 1, &width, &unit, &role, AX_INIT_ONE, 0, &layer->param[WEIGHT]));
    if (((norm *)layer)->kind == AX_NORM_RMS)
        return AX_OK;
    snprintf(full, sizeof full, "%s.bias", layer->name);
    return ax_param_create(layer->ctx, full, 1, &width, &unit, &role, AX_INIT_ZERO, 0, &layer->param[BIAS]);
}

static ax_layer *new_norm(ax_ctx *ctx, const char *name, ax_norm_kind kind, int64_t width, int64_t unit,
                          ax_role role, double eps)
{
    ax_layer *layer = ax_layer_new(ctx, &norm_ops, name, sizeof(norm));
    if (!layer)
        return NULL;
    ((norm *)layer)->kind = kind;
    ((norm *)layer)->eps = eps;
    if (declare_norm(layer, width, unit, role) != AX_OK)
        ax_layer_destroy(&layer);
    return layer;
}

ax_layer *ax_layernorm(ax_ctx *ctx, const char *name, int64_t width, ax_role role, double eps)
{
    return new_norm(ctx, name, AX_NORM_LAYER, width, 1, role, eps);
}

ax_layer *ax_rmsnorm(ax_ctx *ctx, const char *name, int64_t width, ax_role role, double eps)
{
    return ax_rmsnorm_of_units(ctx, name, width, 1, role, eps);
}

ax_layer *ax_rmsnorm_of_units(ax_ctx *ctx, const char *name, int64_t width, int64_t unit, ax_role role,
                              double eps)
{
    return new_norm(ctx, name, AX_NORM_RMS, width, unit, role, eps);
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
