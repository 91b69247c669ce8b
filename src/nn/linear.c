/* The linear layer. It names no axis: with the hidden width on x and the residual width on y this is the 3D
 * algorithm of 2502.08145 (Alg. 1), with one axis Megatron's, on the grid of ones the serial layer. */
#include "nn/linear.h"

#include <stdio.h>

typedef struct linear {
    ax_layer base;
    ax_layout x_layout, y_layout;
    uint16_t align; /* of y's rows */
} linear;

enum { WEIGHT, BIAS };

/* x split as the weight's inputs are: gathered for a head, whose weight has the vocabulary on all axes; else
 * as it is. */
static ax_status fit_width(const ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *in)
{
    ax_layout layout = x->layout;
    layout.dim[2] = self->param[WEIGHT]->use.dim[1];
    return ax_settle(frame, x, &layout, in);
}

static ax_status linear_forward(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y)
{
    static const char spec[] = "bti,oi->bto";
    linear *l = (linear *)self;
    const ax_grid *grid = self->ctx->grid;
    ax_tensor in, w, rule, partial, b; /* partial along whatever axes split the input width */
    AX_TRY(fit_width(self, frame, x, &in));
    AX_TRY(ax_param_acquire(frame, self->param[WEIGHT], &w));
    AX_TRY(ax_contract_rule(grid, spec, &in, &w, &rule));
    bool whole = ax_layout_equal(grid, &rule.layout, &l->y_layout, rule.ndim);
    bool with_bias = whole && self->param[BIAS];
    if (with_bias)
        AX_TRY(ax_param_acquire(frame, self->param[BIAS], &b));
    rule.align = whole ? l->align : 0;
    AX_TRY(ax_frame_alloc(frame, &rule, &partial));
    AX_TRY(ax_contract_run(frame, spec, &in, &w, with_bias ? &b : NULL, false, &partial));
    AX_TRY(ax_settle(frame, &partial, &l->y_layout, y));
    if (self->param[BIAS] && !whole)
        AX_TRY(ax_op_bias(frame, y, self->param[BIAS]));
    return ax_frame_save(frame, &in);
}

static const ax_layout *input_layout(const ax_layer *self) { return &((const linear *)self)->x_layout; }

/* The part of dx that one of several layers adds: the sum over all of them travels once. */
static ax_status add_input_grad(const ax_layer *self, ax_frame *frame, const ax_tensor *dy, bool first,
                                ax_tensor *partial)
{
    static const char spec[] = "bto,oi->bti";
    ax_tensor w;
    AX_TRY(ax_param_acquire(frame, self->param[WEIGHT], &w));
    return first ? ax_contract(frame, spec, dy, &w, NULL, partial)
                 : ax_contract_run(frame, spec, dy, &w, NULL, true, partial);
}

static ax_status add_param_grads(const ax_layer *self, ax_frame *frame, const ax_tensor *dy,
                                 const ax_tensor *x)
{
    AX_TRY(ax_param_accumulate(frame, self->param[WEIGHT], "bto,bti->oi", dy, x));
    return self->param[BIAS] ? ax_op_bias_grad(frame, dy, self->param[BIAS]) : AX_OK;
}

ax_status ax_linear_backward_shared(ax_layer *const *layers, int n, ax_frame *frame, const ax_tensor *dy,
                                    ax_tensor *dx)
{
    ax_tensor x, partial;
    ax_work *work;
    for (int i = n - 1; i >= 0; i--) {
        AX_TRY(ax_frame_restore(frame, &x)); /* the same for all */
        AX_TRY(add_input_grad(layers[i], frame, &dy[i], i == n - 1, &partial));
    }
    AX_TRY(ax_redistribute(frame, &partial, input_layout(layers[0]), dx, &work));
    if (!layers[0]->ctx->parallel.overlap.oar)
        AX_TRY(ax_wait(&work));
    for (int i = n - 1; i >= 0; i--)
        AX_TRY(add_param_grads(layers[i], frame, &dy[i], &x));
    return ax_wait(&work);
}

static ax_status linear_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx)
{
    return ax_linear_backward_shared(&self, 1, frame, dy, dx);
}

static const ax_layer_ops linear_ops = {
    .kind = "linear", .forward = linear_forward, .backward = linear_backward};

static ax_status declare(linear *l, const char *name, const ax_linear_config *c)
{
    char full[256];
    int64_t out_unit = c->out_unit;
    if (!out_unit && c->out_role == AX_ROLE_VOCAB)
        out_unit = ax_vocab_unit(l->base.ctx, c->out);
    l->x_layout = ax_activation_layout(l->base.ctx, c->in_role);
    l->y_layout = ax_activation_layout(l->base.ctx, c->out_role);
    l->align = c->out_role == AX_ROLE_VOCAB ? AX_ROW_ALIGN : 0;
    if (c->tied) {
        l->base.param[WEIGHT] = c->tied;
        l->base.borrows[WEIGHT] = true;
    } else {
        snprintf(full, sizeof full, "%s.weight", name);
        AX_TRY(ax_param_create(l->base.ctx, full, 2, (int64_t[]){c->out, c->in},
                               (int64_t[]){out_unit, c->in_unit}, (ax_role[]){c->out_role, c->in_role},
                               AX_INIT_NORMAL, c->init_std, &l->base.param[WEIGHT]));
    }
    if (c->no_bias)
        return AX_OK;
    snprintf(full, sizeof full, "%s.bias", name);
    return ax_param_create(l->base.ctx, full, 1, &c->out, &out_unit, &c->out_role, AX_INIT_ZERO, 0,
                           &l->base.param[BIAS]);
}

ax_layer *ax_linear(ax_ctx *ctx, const char *name, const ax_linear_config *config)
{
    ax_layer *layer = ax_layer_new(ctx, &linear_ops, name, sizeof(linear));
    if (layer && declare((linear *)layer, name, config) != AX_OK)
        ax_layer_destroy(&layer);
    return layer;
}
