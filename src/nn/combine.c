/* Combinators: sequence, residual, recompute. */
#include "axonn/nn.h"

/* ---- sequence ---- */

static ax_status sequence_forward(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y)
{
    if (x)
        *y = *x;
    for (int i = 0; i < self->children; i++) {
        ax_tensor in = *y;
        AX_TRY(ax_layer_forward(self->child[i], frame, i || x ? &in : NULL, y));
    }
    return AX_OK;
}

static ax_status sequence_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx)
{
    *dx = *dy;
    for (int i = self->children - 1; i >= 0; i--) {
        ax_tensor in = *dx;
        AX_TRY(ax_layer_backward(self->child[i], frame, &in, dx));
    }
    return AX_OK;
}

static const ax_layer_ops sequence_ops = {"sequence", sequence_forward, sequence_backward};

ax_layer *ax_sequence(ax_ctx *ctx, const char *name)
{
    return ax_layer_new(ctx, &sequence_ops, name, sizeof(ax_layer));
}

ax_layer *ax_sequence_of(ax_ctx *ctx, const char *name, int n, ax_layer *const *layers)
{
    ax_layer *sequence = ax_sequence(ctx, name);
    for (int i = 0; i < n; i++)
        if (ax_layer_add(sequence, layers[i]) != AX_OK)
            ax_layer_destroy(&sequence);
    return sequence;
}

static ax_layer *around(ax_ctx *ctx, const ax_layer_ops *ops, const char *name, ax_layer *body)
{
    ax_layer *layer = ax_layer_new(ctx, ops, name, sizeof(ax_layer));
    if (ax_layer_add(layer, body) != AX_OK)
        ax_layer_destroy(&layer);
    return layer;
}

/* ---- residual: y = x + body(x), so dx = dy + body'(dy) ---- */

static ax_status residual_forward(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y)
{
    ax_tensor branch;
    AX_TRY(ax_layer_forward(self->child[0], frame, x, &branch));
    return ax_op_add(frame, x, &branch, y);
}

static ax_status residual_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx)
{
    ax_tensor branch;
    AX_TRY(ax_layer_backward(self->child[0], frame, dy, &branch));
    return ax_op_add(frame, dy, &branch, dx);
}

static const ax_layer_ops residual_ops = {"residual", residual_forward, residual_backward};

ax_layer *ax_residual(ax_ctx *ctx, const char *name, ax_layer *body)
{
    return around(ctx, &residual_ops, name, body);
}

/* ---- recompute: keeps x alone; backward runs forward again, this time saving ---- */

static ax_status recompute_forward(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y)
{
    bool saving = ax_frame_set_saving(frame, false);
    AX_TRY(ax_layer_forward(self->child[0], frame, x, y));
    ax_frame_set_saving(frame, saving);
    return ax_frame_save(frame, x);
}

static ax_status recompute_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx)
{
    ax_tensor x, again;
    AX_TRY(ax_frame_restore(frame, &x));
    bool saving = ax_frame_set_saving(frame, true);
    AX_TRY(ax_layer_forward(self->child[0], frame, &x, &again));
    ax_frame_set_saving(frame, saving);
    return ax_layer_backward(self->child[0], frame, dy, dx);
}

static const ax_layer_ops recompute_ops = {"recompute", recompute_forward, recompute_backward};

ax_layer *ax_recompute(ax_ctx *ctx, const char *name, ax_layer *body)
{
    return around(ctx, &recompute_ops, name, body);
}
